"""How much faster are whole models with replaced convolutions, in inference and in training?

ResNet-50, ConvNeXt-T and MobileNet v2 from Hugging Face's configurations with random weights, channels
last, beside PyTorch eager and `torch.compile`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import shorthaul as sh
from benchmarks.arms.conv_models import MODELS, make
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_within

EAGER = "PyTorch eager"


def measure(answer: Answer) -> None:
    size, batch = (64, 1) if answer.is_quick else (224, 4)
    names = list(MODELS)[2:] if answer.is_quick else list(MODELS)
    image = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    answer.state(
        threads=str(torch.get_num_threads()),
        image=f"{batch} x 3 x {size} x {size}, float32, channels last",
        weights="random; models of transformers, from its default configurations",
    )
    for name in names:
        _measure_inference(answer, name, image, has_compile=not answer.is_quick)
        _measure_training(answer, name, image)


def _measure_inference(answer: Answer, name: str, image: Tensor, *, has_compile: bool) -> None:
    plain = make(name).eval()
    folded, replaced = copy.deepcopy(plain), copy.deepcopy(plain)
    sh.replace_convs(replaced, example=image)
    sh.replace_convs(folded, fold=True, example=image)
    models: dict[str, Callable[[Tensor], Tensor]] = {
        EAGER: plain,
        "shorthaul": replaced,
        "shorthaul, batch norms folded": folded,
    }
    if has_compile:
        models["torch.compile"] = torch.compile(copy.deepcopy(plain))
    answer.compare(
        f"{name}, inference",
        [Arm(key, _inference(model, image)) for key, model in models.items()],
        baseline=EAGER,
        same=same_within(1e-2, 1e-3),  # rounding of some fifty layers adds up
    )


def _inference(model: Callable[[Tensor], Tensor], image: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return model(image)

    return run


def _measure_training(answer: Answer, name: str, image: Tensor) -> None:
    plain = make(name)
    replaced = copy.deepcopy(plain)
    sh.replace_convs(replaced)
    answer.compare(
        f"{name}, training step",
        [Arm(EAGER, _step(plain, image)), Arm("shorthaul", _step(replaced, image))],
        baseline=EAGER,
        same=same_within(1e-2, 1e-3),
    )


def _step(model: nn.Module, image: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(image).logsumexp(dim=1).mean()
        loss.backward()
        return loss.detach()

    return run


if __name__ == "__main__":
    answer_question(measure, allocator="reuse", rounds=5)
