"""`shorthaul doctor`: complete, survivable, and honest in its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shorthaul.cli.doctor import summarize
from shorthaul.cli.findings import Finding, Section
from shorthaul.cli.probes import PROBES

STATUSES = {"ok", "warning", "missing", "broken"}


def read(shown) -> dict:
    document = json.loads(shown.stdout)
    assert set(document) == {"shorthaul", "works", "findings"}
    for each in document["findings"]:
        assert set(each) == {"section", "name", "status", "value", "advice", "facts"}
        assert each["status"] in STATUSES
        assert all(isinstance(each[key], str) for key in ("section", "name", "value", "advice"))
        assert each["value"]
        assert isinstance(each["facts"], dict)
    return document


def statuses(document: dict) -> dict[str, str]:
    return {each["name"]: each["status"] for each in document["findings"]}


def test_quick_json_has_everything_but_measurements(shorthaul) -> None:
    shown = shorthaul("doctor", "--quick", "--json")
    document = read(shown)
    found = statuses(document)
    groups = ("extras", "fallbacks")  # their findings have names of their own
    expected = [each.name for each in PROBES if not each.is_measurement and each.name not in groups]
    assert [name for name in found if name in expected] == expected
    assert not {each.name for each in PROBES if each.is_measurement} & set(found)
    assert {"shorthaul[compress]", "shorthaul[gpu]", "shorthaul[dev]"} <= set(found)
    assert document["works"] is True
    assert shown.exit_code == 0


def test_measurements_are_figures(shorthaul, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shorthaul.jit.peaks.SMALLEST_STREAM_BYTES", 2**20)
    monkeypatch.setattr("shorthaul.jit.peaks.BEYOND_CACHE", 0)
    monkeypatch.setattr("shorthaul.jit.peaks.RUN_SECONDS", 1e-5)
    monkeypatch.setattr("shorthaul.cli.trials.disk.LARGEST_FILE_BYTES", 16 * 2**20)
    document = read(shorthaul("doctor", "--json"))
    facts = {each["name"]: each["facts"] for each in document["findings"]}
    measured = {
        "multiply-add peak": {"one_thread_flops", "all_threads_flops"},
        "memory bandwidth": {
            "read_one_thread_bytes_per_second",
            "read_all_threads_bytes_per_second",
            "copy_one_thread_bytes_per_second",
            "copy_all_threads_bytes_per_second",
        },
        "disk bandwidth": {
            "write_bytes_per_second",
            "read_bytes_per_second",
            "random_4096_byte_reads_per_second",
        },
    }
    for name, figures in measured.items():
        assert figures <= set(facts[name])
        assert all(facts[name][figure] > 0 for figure in figures)


def test_people_read_sections_and_a_last_line(shorthaul) -> None:
    shown = shorthaul("doctor", "--quick")
    lines = [line.rstrip() for line in shown.output.splitlines()]
    assert lines[0] == "Kernels"
    assert "Storage" in lines
    assert "Optional packages" in lines
    assert lines[-1].startswith("Kernels and storage work here.")


def test_without_a_compiler_it_survives_and_fails(shorthaul) -> None:
    shown = shorthaul("doctor", "--quick", "--json", CXX="no-such-compiler")
    document = read(shown)
    found = statuses(document)
    assert found["generated kernels"] == "broken"
    assert found["compiler"] == "warning"
    assert found["O_DIRECT"] in ("ok", "warning")  # the rest was looked at all the same
    assert document["works"] is False
    assert shown.exit_code == 1


def test_a_torch_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libc10.so: cannot open shared object')\n"
    )
    done = subprocess.run(
        (sys.executable, "-m", "shorthaul", "doctor", "--quick", "--json"),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    document = read(done)
    (found,) = (each for each in document["findings"] if each["name"] == "torch")
    assert found["status"] == "broken"
    assert found["value"] == "ImportError: libc10.so: cannot open shared object"
    assert statuses(document)["scratch directory"] in ("ok", "warning")


def test_a_fallback_that_was_chosen_is_only_a_warning(shorthaul) -> None:
    shown = shorthaul(
        *("doctor", "--quick", "--json"),
        SHORTHAUL_KERNELS="torch",
        SHORTHAUL_ENGINE="thread",
        CXX="no-such-compiler",
    )
    found = statuses(read(shown))
    assert found["generated kernels"] == "warning"
    assert found["storage engine"] == "ok"
    assert shown.exit_code == 0


def test_a_cache_that_others_may_write_to_is_broken(shorthaul, cache_directory: Path) -> None:
    (cache_directory / "kernels").mkdir(parents=True)
    cache_directory.chmod(0o777)
    shown = shorthaul("doctor", "--quick", "--json")
    (found,) = (each for each in read(shown)["findings"] if each["name"] == "cache")
    assert found["status"] == "broken"
    assert "others may write to it (mode 0777)" in found["value"]
    assert "chmod 700" in found["advice"]
    assert shown.exit_code == 1


def test_another_scratch_directory_can_be_looked_at(shorthaul, tmp_path: Path) -> None:
    shown = shorthaul("doctor", "--quick", "--json", "--scratch", str(tmp_path / "nowhere"))
    found = statuses(read(shown))
    assert found["scratch directory"] == "broken"
    assert found["storage engine"] == "broken"
    assert shown.exit_code == 1


@pytest.mark.parametrize(
    ("kinds", "line"),
    [
        (("ok", "missing"), "Kernels and storage work here."),
        (("ok", "warning", "warning"), "Kernels and storage work here. Warnings: 2."),
        (("warning", "broken"), "Something essential is broken: 1."),
    ],
)
def test_the_last_line(kinds, line: str) -> None:
    findings = tuple(Finding(str(number), kind, "x") for number, kind in enumerate(kinds))
    assert summarize((Section("s", findings),)) == line


def test_the_last_line_tells_a_gpu_from_none() -> None:
    device, kernel = Finding("cuda:0", "ok", "a GPU"), Finding("gathers", "ok", "x")
    interpreted = Finding("device", "warning", "none: the CPU, in Triton's interpreter")
    assert summarize((Section("s", (device, kernel)),), is_gpu=True) == "The GPU works here."
    assert summarize((Section("s", (interpreted, kernel)),), is_gpu=True) == (
        "The kernels' numbers are right in Triton's interpreter. No GPU was tried: none is here. "
        "Warnings: 1."
    )
