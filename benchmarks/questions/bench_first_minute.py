"""How soon does a model with replaced convolutions run, and how fast once everything is decided?

Two images. Each sample is a process of its own: plain PyTorch, with an empty cache, again with the cache that
it left, and, sampled once, waiting for its compilers. Four models unless `--parts` names others or all: twenty from Hugging Face's
configurations, and a small U-Net.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.arms.first_minute_models import MODELS
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import not_compared
from benchmarks.measuring.told import Told, ask_process

EAGER = "PyTorch eager"
FIRST, SETTLED, STEP = "first output", "until nothing changes any more", "a step from then on"


def measure(answer: Answer) -> None:
    size = 64 if answer.is_quick else 224
    answer.state(image=f"2 x 3 x {size} x {size}, float32")
    names = ["U-Net"] if answer.is_quick else answer.choose_parts(MODELS)
    modes = ("inference",) if answer.is_quick else ("inference", "training")
    for case in answer.each_left(f"{name}, {mode}" for name in names for mode in modes):
        _measure_model(answer, *case.split(", "), size)


def _measure_model(answer: Answer, name: str, mode: str, size: int) -> None:
    told: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    figures: dict[str, dict[str, float]] = {}

    def ask(arm: str, way: str, cache: Path) -> None:
        variables = {"SHORTHAUL_CACHE": str(cache)}
        said = ask_process("first_minute", name, mode, way, str(size), variables=variables)
        for case, key in ((FIRST, "first"), (SETTLED, "settled"), (STEP, "step")):
            told[case][arm].append(said[key])
        figures[arm] = {"kernels": said["kernels"]}

    for number in range(answer.rounds):
        with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as other:
            ask(EAGER, "eager", Path(kept))
            ask("shorthaul, empty cache", "replaced", Path(kept))
            ask("shorthaul, second process", "replaced", Path(kept))
            if number == 0:  # it takes as long as the others together
                ask("shorthaul, waiting", "waiting", Path(other))
    for case, arms in told.items():
        answer.compare(
            f"{name}, {mode}, {case}",
            [Told(arm, seconds) for arm, seconds in arms.items()],
            baseline=EAGER,
            same=not_compared,
            figures=figures if case == FIRST else None,
        )


if __name__ == "__main__":
    answer_question(measure, rounds=3, parts=("ResNet-18", "MobileNet-V1", "ConvNeXt-T", "U-Net"))
