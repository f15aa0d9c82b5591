"""How many lines of C++ are generated from how many lines of R-GCN, RGAT and HGT?

The three layers are written in the language as an author would, without options; counted are the lines of
decorator, signature and body, and of the generated text, forward and backward for the gradients of
all arguments, 64 wide. Blank lines, comments and docstrings count nowhere. Nothing is compiled or timed.
"""

from __future__ import annotations

from benchmarks.arms.three_layers import LAYERS, WIDTHS, count_lines, count_written
from benchmarks.measuring.answer import Answer, answer_question
from shorthaul.relational.inspection.explain import explain_definition, guess_sizes


def measure(answer: Answer) -> None:
    answer.state(counted="lines that are not blank, comments or docstrings")
    sizes = guess_sizes(nodes=10_000, edges=100_000, relations=4, node_types=3)
    for each in LAYERS:
        name = each.function.__name__
        explained = explain_definition(each, WIDTHS[name], sizes)
        _, generated = explained.compilation.sections()[-1]
        written = count_written(each.function)
        answer.count(name, "written", "written", lines=written)
        answer.count(name, "generated", "written", lines=count_lines(generated))


if __name__ == "__main__":
    answer_question(measure)
