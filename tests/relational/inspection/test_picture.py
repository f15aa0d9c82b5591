"""The picture of a plan: every kernel, every value in memory, and nothing that overlaps."""

import itertools
import xml.etree.ElementTree as ElementTree

from shorthaul.relational.inspection.explain import explain_definition, guess_sizes
from shorthaul.relational.inspection.picture import BOX_HEIGHT, BOX_WIDTH, draw_flow
from tests.relational.programs import attend, everything

WIDTHS = {"width": 5, "out": 3, "heads": 2}
GRAPH = guess_sizes(nodes=100, edges=1000, relations=10)
SVG = "{http://www.w3.org/2000/svg}"


def _boxes(text):
    for box in ElementTree.fromstring(text).iter(f"{SVG}rect"):
        title = box.find(f"{SVG}title")
        if title is not None:
            yield title.text, float(box.get("x")), float(box.get("y"))


def test_every_kernel_and_value_is_there():
    explained = explain_definition(attend, WIDTHS, GRAPH)
    titles = [title for title, _, _ in _boxes(explained.picture())]
    costs = explained.estimate()
    for number, kernel in enumerate(costs.kernels):
        (found,) = [each for each in titles if each.startswith(f"{number + 1}. ")]
        assert f"{kernel.flops / 1e6:.2f} MFLOP" in found
        for name, _ in (*kernel.reads, *kernel.writes):
            assert any(each.split(",")[0].split(" = ")[-1] == name for each in titles), name
    assert "x, 5 over node, 2.0 KiB" in titles


def test_results_have_the_authors_names():
    titles = [title for title, _, _ in _boxes(explain_definition(attend, WIDTHS, GRAPH).picture())]
    assert any(each.startswith("gradient_of_key = ") for each in titles)


def test_boxes_do_not_overlap():
    boxes = list(_boxes(explain_definition(everything, WIDTHS, GRAPH).picture()))
    for (_, x, y), (_, other_x, other_y) in itertools.combinations(boxes, 2):
        assert abs(x - other_x) >= BOX_WIDTH or abs(y - other_y) >= BOX_HEIGHT


def test_arrows_point_down_and_the_bytes_are_the_same_every_time():
    explained = explain_definition(attend, WIDTHS, GRAPH)
    text = explained.picture()
    assert text == explained.picture()
    for arrow in ElementTree.fromstring(text).iter(f"{SVG}path"):
        begin, end = arrow.get("d").split("C")[0], arrow.get("d").split(" ")[-1]
        assert float(begin.split(" ")[1]) < float(end)


def test_without_a_graph_there_are_no_bytes():
    text = draw_flow(explain_definition(attend, WIDTHS, GRAPH).compilation.plan)
    assert "MFLOP" not in text
    assert "64 over" not in text
    assert "5 over node" in text
