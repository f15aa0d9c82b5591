"""`bodies` on every CUDA device that is there: what `make test-gpu` runs."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.suites import Body, load_bodies

pytestmark = pytest.mark.gpu


@pytest.fixture(
    params=range(max(1, torch.cuda.device_count())), ids=lambda number: f"cuda:{number}"
)
def device(request: pytest.FixtureRequest) -> torch.device:
    if not torch.cuda.is_available():
        pytest.fail("make test-gpu needs a CUDA device that PyTorch can use, and there is none")
    return torch.device("cuda", request.param)


@pytest.mark.parametrize("each", load_bodies(), ids=lambda each: each.__name__)
def test_it_holds_on_the_device(each: Body, device: torch.device) -> None:
    torch.manual_seed(0)
    each(device)


def test_the_doctor_finds_nothing_broken() -> None:
    from shorthaul.cli.doctor import examine

    sections = examine(is_quick=True, is_gpu=True, say=lambda _: None)
    findings = [each for section in sections for each in section.findings]
    assert not [each for each in findings if each.status == "broken"]
