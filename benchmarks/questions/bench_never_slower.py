"""Is any model slower with replaced convolutions, warmed up, than as it is?

Twenty models from Hugging Face's configurations and a small U-Net, two images; a process for each model and mode. A run
that is broken off goes on after what it had finished, with `--resume`.
"""

from __future__ import annotations

from benchmarks.arms.first_minute_models import MODELS
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import same_within
from benchmarks.peers.process import ARMS_FOLDER, ArmProcess

SCRIPT = ARMS_FOLDER / "never_slower.py"
EAGER, OURS = "PyTorch eager", "shorthaul, warmed up"
SAME = same_within(relative=1e-2, absolute=1e-3)  # rounding of some fifty layers adds up


def measure(answer: Answer) -> None:
    size = 64 if answer.is_quick else 224
    answer.state(image=f"2 x 3 x {size} x {size}, float32", weights="random")
    names = ["U-Net"] if answer.is_quick else answer.choose_parts(MODELS)
    modes = ("inference", "training")
    for case in answer.each_left(f"{name}, {mode}" for name in names for mode in modes):
        name, mode = case.split(", ")
        process = ArmProcess.here(SCRIPT)
        try:
            arms = [
                process.arm(arm, name=arm, model=name, is_training=mode == "training", size=size)
                for arm in (EAGER, OURS)
            ]
            answer.compare(case, arms, baseline=EAGER, same=SAME)
        finally:
            process.close()


if __name__ == "__main__":
    answer_question(measure, rounds=7)
