"""Runs for tests: what a benchmark would have written, with given figures."""

from typing import Any


def make_spread(median: float) -> dict[str, float]:
    return {"low": 0.9 * median, "median": median, "high": 1.1 * median}


def make_row(case: str, arm: str, seconds: float, speed: float = 1.0, **figures: float) -> dict:
    return {
        "case": case,
        "arm": arm,
        "baseline": "plain",
        "rounds": 9,
        "calls": 4,
        "wall_seconds": make_spread(seconds),
        "cpu_seconds": make_spread(2 * seconds),
        "speedup": make_spread(speed),
        "figures": figures,
    }


def make_run(question: str = "rows", **changes: Any) -> dict[str, Any]:
    run = {
        "schema": 1,
        "question": question,
        "asks": "How long do rows take?",
        "date": "2025-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "is_changed": False,
        "machine": {
            "cpu": "Abacus 9",
            "vectors": "abacus",
            "cores": 4,
            "memory_bytes": 8 * 2**30,
            "torch": "2.13.0",
            "torch_threads": 2,
            "allocator": "glibc, default settings",
            "load_before": 0.25,
        },
        "conditions": {"page_cache": "cold"},
        "rows": [
            make_row("10 rows", "plain", 0.002, read_bytes=81920),
            make_row("10 rows", "shorthaul", 0.001, 2.0, read_bytes=40960, hit_share=0.125),
            make_row("1 row", "plain", 0.0001),
            make_row("1 row", "shorthaul", 0.0002, 0.5),
        ],
    }
    return run | changes
