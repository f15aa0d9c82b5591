"""How far from what is measured is what `advise` and `fit` predict?

Models of many kinds from Hugging Face's configurations and plain PyTorch, each in a process of its own for each question:
what a step with everything kept takes, from shapes alone; the offloading that `sh.advise` puts first, against `sh.apply`;
a fit within two thirds of what a step takes, against the step that verifies it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

from benchmarks.arms.advice_models import MODELS
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.told import ask_process

QUESTIONS = {
    "shapes": "from shapes alone",
    "offload": "advise, offloaded",
    "fit": "fit, two thirds",
}
MEASURED = "measured"


def measure(answer: Answer) -> None:
    size = "4 x 64 tokens" if answer.is_quick else "8 x 256 tokens"
    answer.state(batch=f"{size}, or images of a like size", optimizer="none")
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = ("GPT-2", "ResNet-18") if answer.is_quick else tuple(MODELS)
    for name in names:
        for question, arm in QUESTIONS.items():
            if not answer.wants(f"{name}, {arm}"):
                continue
            words = ("quick",) if answer.is_quick else ()
            said = ask_process("advice_errors", name, question, *words, variables={})
            if not said:
                continue  # nothing that is large enough to leave memory, or no plan fits
            for what, unit in (("memory", "bytes"), ("time", "step_seconds")):
                if said.get(f"measured_{unit}"):
                    error = said[f"predicted_{unit}"] / said[f"measured_{unit}"] - 1
                    said[f"{what}_error_share"] = error
                    errors[arm][what].append(abs(error))
            answer.count(name, arm, MEASURED, **said)
    for arm, found in errors.items():
        figures: dict[str, float] = {}
        for what, each in found.items():
            figures[f"median_{what}_error_share"] = statistics.median(each)
            figures[f"worst_{what}_error_share"] = max(each)
            within = 0.10 if what == "memory" else 0.15
            figures[f"models_within_{within:.0%}_of_{what}"] = sum(x <= within for x in each)
        answer.count(f"all {len(names):,} models", arm, MEASURED, **figures)


if __name__ == "__main__":
    answer_question(measure, rounds=1)
