"""The package as a whole: its names, and a page whose examples run."""

import re
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul import jit

PAGE = Path(__file__).parents[2] / "docs" / "jit.md"


def test_every_name_is_there_and_documented() -> None:
    assert sh.jit is jit
    assert sorted(jit.__all__) == jit.__all__
    for name in jit.__all__:
        assert getattr(jit, name).__doc__


def test_the_error_of_the_page_is_the_error() -> None:
    names: dict[str, object] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0], names)
    refused = (torch.ones(1000, 64), 2.0, torch.ones(999, 64))
    with pytest.raises(sh.errors.KernelArgumentError) as caught:
        names["kernel"].scale(*refused)  # type: ignore[attr-defined]
    assert f"KernelArgumentError: {caught.value}" in PAGE.read_text()
