"""Folders of parts, whole ones and half written ones: what must come of damaged ones.

Whole parts are opened with their checksums: an error of ours, or the very parts that were written.
A run over a folder that holds damaged parts ends with an error of ours, or with the very parts, too.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import shorthaul as sh
from shorthaul.distributed.partition.manifest import JOURNAL, MANIFEST, Manifest
from shorthaul.errors import ShorthaulError
from tests.distributed.part_folders import cut_homogeneous
from tests.hostile.damage import damage_bytes

PARTS = 3


def write_whole(folder: Path) -> Path:
    """Parts as a run leaves them."""
    cut_homogeneous(folder, PARTS, hot=0.1)
    return folder


def write_stopped(folder: Path) -> Path:
    """Parts as a run leaves them that was stopped before its last step."""
    write_whole(folder)
    whole = json.loads((folder / MANIFEST).read_text())
    facts = {"asked": whole["asked"], "files": whole["files"], "begun": sorted(whole["files"])}
    (folder / JOURNAL).write_text(json.dumps(facts))
    (folder / MANIFEST).unlink()
    return folder


def read_parts(folder: Path) -> dict[str, torch.Tensor]:
    """Everything that parts hold."""
    with sh.distributed.open(folder) as parts:
        graph = parts.graph
        found = {name: column.clone() for name, column in vars(graph.by_target()).items()}
        rows = torch.arange(graph.num_nodes)
        found |= {"seeds": parts.seeds(), "originals": parts.originals().clone()}
        for name in ("features", "labels"):
            with parts.table(name) as table:
                found[name] = table[rows]
    return found


def open_hostile(folder: Path, expected: dict[str, torch.Tensor]) -> bool:
    """Open what may be damaged; whether it is the parts that were written."""
    try:
        found = read_parts(folder)
    except ShorthaulError:
        return False
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert torch.equal(values, expected[name]), name
    return True


def go_on(folder: Path, expected: dict[str, torch.Tensor]) -> bool:
    """Cut the same graph once more into what may be damaged; whether that led to the same parts."""
    try:
        write_whole(folder)
    except ShorthaulError:
        return False
    Manifest.read(folder)
    assert open_hostile(folder, expected), "what was cut anew is refused"
    return True


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path, dict[str, torch.Tensor]], bool]]] = {
    "opened": (write_whole, open_hostile),
    "cut again": (write_whole, go_on),
    "stopped": (write_stopped, go_on),
}


def main(kind: str, first: int, stop: int) -> None:
    """Damage and open folders; what is printed last is the seed that did not end well."""
    write, use = KINDS[kind]
    with tempfile.TemporaryDirectory() as place:
        good = write(Path(place) / "good")
        expected = read_parts(write_whole(Path(place) / "expected"))
        for seed in range(first, stop):
            print(f"{kind} {seed}", flush=True)
            folder = Path(place) / str(seed)
            shutil.copytree(good, folder)
            if seed:
                chance = random.Random(f"{kind} {seed}")
                described = JOURNAL if kind == "stopped" else MANIFEST
                # What a folder says of itself is one file of many, and the one that is believed.
                damage_bytes(folder / described if chance.random() < 0.5 else folder, chance)
            found = use(folder, expected)
            assert found or seed, "the good parts were refused"
            shutil.rmtree(folder)
    print("finished", flush=True)


if __name__ == "__main__":
    for each in sys.argv[3:] or KINDS:
        main(each, int(sys.argv[1]), int(sys.argv[2]))
