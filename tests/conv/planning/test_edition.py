"""A choice measured with other kernels is not remembered."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from shorthaul.conv.planning import choice as schedule
from shorthaul.conv.planning import edition
from shorthaul.conv.planning.choice import candidate_schedules, remembered_schedule, tuning_key
from shorthaul.conv.planning.edition import digest_texts, kernel_edition, strip_header, strip_module
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit import Candidate, autotune
from shorthaul.settings import settings

PROBLEM, SIZES = ConvProblem(5, 19, (1, 3, 3)), (1, 1, 9, 11)


@pytest.mark.parametrize(
    "other",
    [{"a.h": "1", "b.h": "3"}, {"a.h": "1"}, {"a.h": "12", "b.h": ""}, {"c.h": "1", "b.h": "2"}],
)
def test_the_digest_is_that_of_names_and_texts(other: dict[str, str]) -> None:
    assert digest_texts(other) != digest_texts({"a.h": "1", "b.h": "2"})


def test_order_does_not_matter() -> None:
    assert digest_texts({"a.h": "1", "b.h": "2"}) == digest_texts({"b.h": "2", "a.h": "1"})


def test_python_and_headers_are_part_of_the_edition(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def note(texts: dict[str, str]) -> str:
        seen.update(texts)
        return "noted"

    monkeypatch.setattr(edition, "digest_texts", note)
    assert kernel_edition.__wrapped__() == "noted"
    expected = {"methods/window.py", "methods/window_block.h", "layout/function.py"}
    assert {f"conv/{each}" for each in expected} | {"jit/include/parallel.h"} <= seen.keys()
    assert "conv/methods/gradients/weight.py" in seen
    assert "-ffp-contract=fast" in seen["flags of the compiler"].split()
    assert not [each for each in seen if re.search("execution|models|arguments", each)]


def test_folders_are_read_to_the_bottom(tmp_path: Path) -> None:
    deeper = tmp_path / "gradients" / "rows"
    deeper.mkdir(parents=True)
    (deeper / "sum.h").write_text("int x;")
    (deeper / "notes.md").write_text("words")
    (tmp_path / "window.py").write_text("x = 1")
    assert dict(edition.read_texts(tmp_path, "conv/methods")) == {
        "conv/methods/gradients/rows/sum.h": "int x;",
        "conv/methods/window.py": "x = 1",
    }


def test_words_for_readers_are_no_part_of_the_edition() -> None:
    module = '"""What it is for."""\n\n# Why.\nTEXT = """\\\n#define A 1  // kept\n"""\nvalue = 1\n'
    assert strip_module(module) == '\n\nTEXT = """\\\n#define A 1  // kept\n"""\nvalue = 1\n'
    assert strip_header("// Why.\n#define A 1  // kept\n\nint b;\n") == "#define A 1\nint b;\n"


@pytest.mark.parametrize("name", ["window_kernel", "sweep", "planar", "winograd"])
def test_the_loops_of_kernels_are_part_of_the_edition(name: str) -> None:
    module = importlib.import_module(f"shorthaul.conv.methods.{name}")
    assert module._LOOPS in strip_module(Path(str(module.__file__)).read_text())


def test_another_edition_remembers_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = candidate_schedules(PROBLEM, SIZES)[-1].describe()
    with settings.override(cache_directory=tmp_path, autotune="on"):
        autotune(tuning_key(PROBLEM, SIZES, 1), [Candidate(name, lambda: None)])
        assert remembered_schedule(PROBLEM, SIZES, 1) is not None
        monkeypatch.setattr(schedule, "kernel_edition", lambda: "00000000")
        assert remembered_schedule(PROBLEM, SIZES, 1) is None
