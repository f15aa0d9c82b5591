"""Training while kernels are compiled: right before they are there, in the step in which they come, and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import shorthaul as sh
from shorthaul.jit import Candidate, Choice
from shorthaul.jit.compiling.loading import wait_for_compilers
from shorthaul.jit.compiling.pool import compilers
from shorthaul.meter import Meter, meter
from tests.conv.nothing_compiled import nothing_compiled
from tests.conv.tolerances import require_close
from tests.jit.gated_compiler import closed_gate

# Two convolutions in float32, where plain PyTorch in float64 is the measure.
TOLERANCE = 1e-4

# The gradients of a step, of the image first; what is given is called between its two passes.
Step = Callable[[Tensor, Callable[[], object]], list[Tensor]]
Way = Callable[[nn.Module, Path], contextlib.AbstractContextManager[Step]]


def _nothing() -> None:
    pass


def _find_gradients(
    call: Callable[[Tensor], Tensor],
    parameters: Iterator[nn.Parameter],
    image: Tensor,
    meanwhile: Callable[[], object] = _nothing,
) -> list[Tensor]:
    leaf = image.clone().requires_grad_()
    output = call(leaf)
    meanwhile()
    leaves = [leaf, *parameters]
    for each in leaves:
        each.grad = None
    output.pow(2).sum().backward()
    return [each.grad for each in leaves if each.grad is not None]


def _calling(call: Callable[[nn.Module, Tensor], Tensor]) -> Way:
    @contextlib.contextmanager
    def way(model: nn.Module, _: Path) -> Iterator[Step]:
        yield lambda image, meanwhile: _find_gradients(
            lambda leaf: call(model, leaf), model.parameters(), image, meanwhile
        )

    return way


@contextlib.contextmanager
def _offloaded(model: nn.Module, folder: Path) -> Iterator[Step]:
    folder.mkdir()
    offload = sh.offload_activations(folder, minimum_bytes=64, allow_memory=True)

    def step(image: Tensor, meanwhile: Callable[[], object]) -> list[Tensor]:
        with offload:
            return _find_gradients(model, model.parameters(), image, meanwhile)

    yield step
    assert offload.report().counts.offloaded


@contextlib.contextmanager
def _distributed(model: nn.Module, folder: Path) -> Iterator[Step]:
    import torch.distributed as dist

    folder.mkdir()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        yield lambda image, meanwhile: _find_gradients(
            wrapped, model.parameters(), image, meanwhile
        )
    finally:
        dist.destroy_process_group()


def _transformed(*, per_image: bool) -> Way:
    @contextlib.contextmanager
    def way(model: nn.Module, _: Path) -> Iterator[Step]:
        def find_loss(image: Tensor, parameters: dict[str, Tensor]) -> Tensor:
            output: Tensor = torch.func.functional_call(model, parameters, (image,))
            return output.pow(2).sum()

        def step(image: Tensor, meanwhile: Callable[[], object]) -> list[Tensor]:
            meanwhile()
            parameters = {name: each.detach() for name, each in model.named_parameters()}
            find: Any = torch.func.grad(find_loss, argnums=(0, 1))
            if per_image:
                find = torch.func.vmap(find, in_dims=(0, None))
            of_image, by_name = find(image, parameters)
            found = [by_name[name] for name in parameters]
            return [of_image, *(each.sum(0) if per_image else each for each in found)]

        yield step

    return way


WAYS: dict[str, Way] = {
    "plain": _calling(lambda model, image: model(image)),
    "checkpoint": _calling(lambda model, image: checkpoint(model, image, use_reentrant=False)),
    "checkpoints": _calling(
        lambda model, image: checkpoint_sequential(model, 3, image, use_reentrant=False)
    ),
    "offload": _offloaded,
    "torch.func.grad": _transformed(per_image=False),
    "vmap of torch.func.grad": _transformed(per_image=True),
    "one rank": _distributed,
}
KINDS = ("sh.Conv2d", "replace_convs")


def _plain_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.SiLU(), nn.Conv2d(6, 5, 3, stride=2), nn.Tanh()
    )


def _make(kind: str, monkeypatch: pytest.MonkeyPatch) -> nn.Sequential:
    """The model with our layers, or replaced: where that is measured, ours wins."""
    torch.manual_seed(0)
    model = _plain_model()
    if kind == "replace_convs":

        def compare(key: str, candidates: list[Candidate], **_: object) -> Choice:
            for each in candidates:
                each.run()
            return Choice("window order", "measured", {"window order": 1.0, "aten": 2.0})

        monkeypatch.setattr("shorthaul.conv.models.replaced_layer.autotune", compare)
        sh.replace_convs(model, policy="auto")
        return model
    ours = nn.Sequential(
        sh.Conv2d(3, 6, 3, padding=1), nn.SiLU(), sh.Conv2d(6, 5, 3, stride=2), nn.Tanh()
    )
    ours.load_state_dict(model.state_dict())
    return ours


def _expect(model: nn.Module, image: Tensor) -> list[Tensor]:
    """The gradients of plain PyTorch in float64, at the weights of now."""
    plain = _plain_model().double()
    plain.load_state_dict(model.state_dict())
    return _find_gradients(plain, plain.parameters(), image.double())


def _compare(
    model: nn.Module, step: Step, image: Tensor, meanwhile: Callable[[], object] = _nothing
) -> list[Tensor]:
    """The gradients of one step, which are those of plain PyTorch."""
    expected = _expect(model, image)
    found = step(image, meanwhile)
    for one, other in zip(found, expected, strict=True):
        require_close(one, other, TOLERANCE)
    return found


def _train(
    model: nn.Module, step: Step, image: Tensor, meanwhile: Callable[[], object] = _nothing
) -> None:
    """The same, and a step of descent."""
    found = _compare(model, step, image, meanwhile)
    with torch.no_grad():
        for each, gradient in zip(model.parameters(), found[1:], strict=True):
            each -= 0.01 * gradient


def _has_launched(counted: Meter) -> bool:
    """Whether a convolution ran by a kernel of ours."""
    return any(name.startswith("conv_") for name in counted.launches)


def _images(count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(2, 3, 9, 10, generator=generator)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    with nothing_compiled(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_steps_are_right_before_kernels_come_when_they_do_and_after(
    gate: Path, monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    model = _make(kind, monkeypatch)
    with WAYS[way](model, gate / "scratch") as step:
        with contextlib.ExitStack() as until_they_come:
            until_they_come.enter_context(closed_gate(gate))
            with meter() as before:
                for image in _images(2):
                    _train(model, step, image)
            assert not _has_launched(before)

            def let_them_come() -> None:
                until_they_come.close()
                wait_for_compilers()

            for image in _images(1):
                _train(model, step, image, let_them_come)
        with meter() as after:
            for image in _images(3):
                _train(model, step, image)
                wait_for_compilers()
        assert _has_launched(after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["plain", "checkpoint", "offload"])
def test_steps_are_right_while_kernels_come_one_by_one(
    gate: Path, monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    model = _make(kind, monkeypatch)
    with WAYS[way](model, gate / "scratch") as step:
        (image,) = _images(1)
        with closed_gate(gate):
            _compare(model, step, image)
            assert not compilers.is_idle()
        has_taken_over = False
        while not has_taken_over:
            with meter() as counted:
                _compare(model, step, image)
            has_taken_over = _has_launched(counted)
        wait_for_compilers()
        _compare(model, step, image)


def test_a_step_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _make("sh.Conv2d", monkeypatch)
    (image,) = _images(1)
    wrong = _calling(lambda model, image: model(image) * 1.001)
    with (
        wrong(model, Path()) as step,
        pytest.raises(AssertionError, match="of the largest value"),
    ):
        _compare(model, step, image)
