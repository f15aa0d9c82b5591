"""Every program on a page runs as it is printed, alone, in a folder of its own."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shorthaul.settings import settings

ROOT = Path(__file__).parents[2]
# Pages whose programs belong into a place of their own, such as a rank of `torchrun`; other tests run them.
ELSEWHERE = {"how-to", "cli.md", "distributed.md"}
# Too long for every day: the whole standard library is read, a model is compiled, figures are measured.
SLOW = {
    "datasets.md:0",
    "relational.md:3",
    "relational.md:4",
    "conv.md:5",
    "integrations.md:0",
    "integrations.md:1",
    "integrations.md:2",
    "hugging-face.md:0",
}
# Imported by programs, and not installed everywhere.
OPTIONAL = {"lightning", "accelerate", "transformers", "torch_geometric", "dgl", "trl", "duckdb"}


def find_blocks() -> Iterator[tuple[str, str]]:
    """Name and text of every program: the page, and which one of it."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if {page.name, page.parent.name} & ELSEWHERE:
            continue
        texts = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        for number, text in enumerate(texts):
            yield f"{page.name}:{number}", text


def list_cases() -> list[object]:
    return [
        pytest.param(text, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, text in find_blocks()
    ]


@pytest.mark.filterwarnings("ignore")  # of other people's libraries
@pytest.mark.parametrize("text", list_cases())
def test_a_program_runs_as_printed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for package in sorted(OPTIONAL & set(re.findall(r"^(?:import|from) (\w+)", text, re.M))):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    source = tmp_path / "program.py"
    source.write_text(text)
    namespace = {"__name__": "a_page", "__file__": str(source)}
    touched = ("engine", "autotune", "cache_limit_bytes", "scratch_directory")
    with settings.override(**{name: getattr(settings, name) for name in touched}):
        try:
            exec(compile(text, source, "exec"), namespace)
        except ImportError as error:
            if "pyg-lib" in str(error):  # PyG's own loaders need it
                pytest.skip(str(error))
            raise
        finally:
            logging.getLogger("shorthaul").setLevel(logging.NOTSET)


def test_nearly_every_page_shows_a_program() -> None:
    names = [name for name, _ in find_blocks()]
    assert len(names) >= 50
    assert {*names} >= SLOW


def test_a_program_that_needs_another_is_found(tmp_path: Path) -> None:
    with pytest.raises(NameError):
        exec("print(model)", {"__name__": "a_page"})
