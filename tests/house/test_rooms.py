"""Rooms of a package come one after the other: no two of them import each other, however it is done.

`test_imports` holds the order of packages. Here every folder is looked at by itself: what it contains,
modules and folders, must have an order, also counting imports inside functions and for type checkers.
"""

from __future__ import annotations

import graphlib
from pathlib import Path

from tests.house.test_imports import SOURCE, read_imports


def find_circles(source: Path) -> list[str]:
    """For every folder, the first circle among the things in it."""
    needs: dict[str, dict[str, set[str]]] = {}
    for each in read_imports(source):
        one, other = each.module.split("."), each.target.split(".")
        shared = 0
        while shared < min(len(one), len(other)) and one[shared] == other[shared]:
            shared += 1
        if shared < len(one) and shared < len(other):
            folder = ".".join(one[:shared])
            needs.setdefault(folder, {}).setdefault(one[shared], set()).add(other[shared])
    circles = []
    for folder, graph in sorted(needs.items()):
        try:
            tuple(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            names = " -> ".join(reversed(error.args[1]))
            circles.append(f"in {folder or 'the package'}: {names}")
    return circles


def test_the_rooms_of_every_folder_have_an_order() -> None:
    assert find_circles(SOURCE) == []


def _write(source: Path, **files: str) -> Path:
    for name, text in files.items():
        path = source / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_a_circle_between_rooms_is_found(tmp_path: Path) -> None:
    source = _write(
        tmp_path / "shorthaul",
        jit__emit__text="",
        jit__emit__names="from shorthaul.jit.cache.disk import find\n",
        jit__cache__disk="",
        jit__cache__index="from shorthaul.jit.emit.text import Text\n",
    )
    (found,) = find_circles(source)
    assert found.startswith("in jit: ")
    assert "emit" in found
    assert "cache" in found


def test_a_circle_inside_functions_or_for_checkers_is_found(tmp_path: Path) -> None:
    source = _write(
        tmp_path / "shorthaul",
        jit__one="def later():\n    from shorthaul.jit.two import Two\n",
        jit__two="if TYPE_CHECKING:\n    from shorthaul.jit.one import One\n",
    )
    assert len(find_circles(source)) == 1


def test_one_way_is_left_alone(tmp_path: Path) -> None:
    source = _write(
        tmp_path / "shorthaul",
        jit__one="",
        jit__room__inner="from shorthaul.jit.one import One\n",
        jit__two="from shorthaul.jit.room.inner import Inner\n",
    )
    assert find_circles(source) == []
