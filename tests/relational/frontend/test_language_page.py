"""The pages on the language are true: its examples run, with their derivatives, and its wrong programs are wrong."""

import re
from pathlib import Path

import pytest
import torch

from shorthaul import relational
from shorthaul.errors import LayerLanguageError, RelationalProgramError
from shorthaul.relational.frontend.expressions import FUNCTIONS
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.topology.topology import Topology
from tests.relational.passes.test_differentiate_operators import _check
from tests.relational.programs import sample_graph

DOCS = Path(__file__).parents[3] / "docs"
OPERATIONS = (DOCS / "language.md").read_text().partition("\n## Operations")[2]
ERRORS = (DOCS / "language-errors.md").read_text()
BLOCK = re.compile(r"^```py\n(.*?)^```", re.M | re.S)
HEAD = re.search(r"^def example\(.*?^\):$", OPERATIONS, re.M | re.S)


def _split(block):
    return [each.strip("\n") for each in block.split("\n\n")]


EXAMPLES = [each for block in BLOCK.findall(OPERATIONS) for each in _split(block)]
WRONG = re.findall(r"^```py\n(.*?)^```\n\n^```text\n(.*?)\n```", ERRORS, re.M | re.S)


def _record(text, path):
    """The program of an example, in the page's function."""
    result = "e.out" if "e.out" in text else "n.out"
    lines = [f"    {line}" for line in text.splitlines()]
    path.write_text("\n".join([HEAD.group(), *lines, f"    return {result}"]))
    namespace = {**vars(relational), "torch": torch}
    exec(compile(path.read_text(), path, "exec"), namespace)
    return trace(namespace["example"], {})


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[1].strip()[:50])
def test_an_example_has_the_derivatives_of_its_differences(text, tmp_path):
    assert len(text.splitlines()) == 2
    program = _record(text, tmp_path / "example.py")
    _check(program, Topology.of(sample_graph(nodes=5, edges=9, relations=2), 5))


def test_every_operation_has_an_example():
    words = set(re.findall(r"\w+", " ".join(EXAMPLES)))
    assert words >= FUNCTIONS
    assert words >= {"reshape", "split", "count", "relation", "type", "source", "target"}


@pytest.mark.parametrize(("programs", "said"), WRONG, ids=lambda text: text.splitlines()[0][:30])
def test_the_wrong_program_is_refused_and_the_right_one_recorded(programs, said, tmp_path):
    wrong, right = _split(programs)
    with pytest.raises((LayerLanguageError, RelationalProgramError), match=re.escape(said)) as seen:
        _record(f"for e in g.edges():\n    e.seen = e.source.x\n{wrong}", tmp_path / "wrong.py")
    assert wrong.splitlines()[-1].strip() in str(seen.value)  # the author's line
    _record(right, tmp_path / "right.py")


def test_all_errors_of_the_page_are_tested():
    assert len(WRONG) == ERRORS.count("```text") > 8


def test_every_error_of_the_page_is_tried():
    assert len(WRONG) == ERRORS.count("```text") > 5
