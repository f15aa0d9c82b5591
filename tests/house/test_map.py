"""The map is true: each square box of docs/how-it-flows.md exists, each arrow is an import. So is the road of a convolution."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_imports import SOURCE, read_imports

PAGE = Path(__file__).parents[2] / "docs" / "how-it-flows.md"
ROAD = PAGE.with_name("conv-design.md")
_BOX = re.compile(r"(?P<name>\w+)(?:(?P<round>\(\[.*?\]\))|\[\"(?P<path>[^\"]*)\"\])?")


def read_pictures(text: str) -> Iterator[tuple[dict[str, str], list[tuple[str, str]]]]:
    """For each picture: square boxes with their paths, and arrows between names."""
    for picture in re.findall(r"^```mermaid\nflowchart \w+\n(.*?)^```", text, re.M | re.S):
        boxes: dict[str, str] = {}
        round_boxes: set[str] = set()
        arrows = []
        for line in filter(None, map(str.strip, picture.splitlines())):
            sides = [_read_boxes(each, boxes, round_boxes) for each in line.split(" --> ")]
            for left, right in itertools.pairwise(sides):
                arrows += [(one, other) for one in left for other in right]
        for name in {each for arrow in arrows for each in arrow} - round_boxes:
            boxes.setdefault(name, name)
        square = {name: path for name, path in boxes.items() if name not in round_boxes}
        yield square, [(a, b) for a, b in arrows if not {a, b} & round_boxes]


def _read_boxes(text: str, boxes: dict[str, str], round_boxes: set[str]) -> list[str]:
    names = []
    for part in text.split(" & "):
        found = _BOX.fullmatch(part)
        assert found, f"not a box: {part}"
        names.append(found["name"])
        if found["round"]:
            round_boxes.add(found["name"])
        elif found["path"]:
            boxes[found["name"]] = found["path"]
    return names


def find_lies(text: str, source: Path) -> list[str]:
    """Boxes that are not there, and arrows that no import goes along."""
    problems = []
    imports = {(each.module, each.target) for each in read_imports(source)}
    for boxes, arrows in read_pictures(text):
        problems += [
            f"there is no {path}"
            for path in boxes.values()
            if not (source / path).is_dir() and not (source / f"{path}.py").is_file()
        ]
        for one, other in arrows:
            a, b = (boxes[each].replace("/", ".") for each in (one, other))
            if not any(
                (_is_in(m, a) and _is_in(t, b)) or (_is_in(m, b) and _is_in(t, a))
                for m, t in imports
            ):
                problems.append(f"nothing imports along {boxes[one]} --> {boxes[other]}")
    return problems


def _is_in(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def test_the_map_is_true() -> None:
    assert find_lies(PAGE.read_text(), SOURCE) == []


def test_there_is_a_picture_for_each_flow() -> None:
    assert len(list(read_pictures(PAGE.read_text()))) >= 8


def test_a_lie_is_found(tmp_path: Path) -> None:
    source = tmp_path / "shorthaul"
    for name, text in {
        "jit/kernel.py": "from shorthaul.jit.cache import Cache\n",
        "jit/cache.py": "",
        "jit/other.py": "",
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    picture = """
```mermaid
flowchart LR
    text(["a text"]) --> cache["jit/cache"] --> kernel["jit/kernel"]
    kernel --> other["jit/other"]
    gone["jit/gone"] --> text
```
"""
    assert find_lies(picture, source) == [
        "there is no jit/gone",
        "nothing imports along jit/kernel --> jit/other",
    ]


def read_road(text: str) -> list[str]:
    """The modules of a numbered list, in its order."""
    return [each.replace("/", ".") for each in re.findall(r"^\d+\. `([\w/]+)\.py`", text, re.M)]


def find_detours(text: str, source: Path) -> list[str]:
    """Modules of a road that no module before them imports, by itself or through its package."""
    imports = {(each.module, each.target) for each in read_imports(source)}
    road = read_road(text)
    return [
        f"nothing on the road before {module} imports it"
        for number, module in enumerate(road)
        if number
        and not any(
            (before, target) in imports
            for before in road[:number]
            for target in (module, module.rpartition(".")[0])
        )
    ]


def test_the_road_of_a_convolution_is_short_and_true() -> None:
    text = ROAD.read_text()
    assert read_road(text)[0] == "conv.functional"
    assert 2 < len(read_road(text)) <= 8
    assert find_detours(text, SOURCE) == []


def test_a_detour_is_found(tmp_path: Path) -> None:
    source = tmp_path / "shorthaul"
    for name, text in {
        "one.py": "from shorthaul import two\n",
        "two.py": "",
        "three.py": "",
    }.items():
        source.mkdir(exist_ok=True)
        (source / name).write_text(text)
    road = "1. `one.py`: first;\n2. `two.py`: then;\n3. `three.py`: last.\n"
    assert find_detours(road, source) == ["nothing on the road before three imports it"]
