"""Files of every kind that a table is opened from: good ones, and what must come out of damaged ones.

A file vouches for where its numbers lie, not for what they are: numbers that were damaged come out as
they lie there. So the measure is what the format's own reader makes of the same file, where it reads
it at all: what is ours either agrees or is an error of ours.
"""

from __future__ import annotations

import random
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shorthaul as sh
from shorthaul.errors import ShorthaulError
from tests.hostile.damage import damage_bytes

ROWS, WIDTH = 40, 6
LARGEST_BYTES = 8 << 30  # of address space beyond what is there at the start: more is refused


def _values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(ROWS, WIDTH, generator=generator)


def _save(name: str, **options: Any) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        return sh.save_features(place / name, _values(), progress=False, **options).path

    return write


def _save_numpy(place: Path) -> Path:
    np.save(place / "x.npy", _values().numpy())
    return place / "x.npy"


def _save_safetensors(place: Path) -> Path:
    from safetensors.torch import save_file

    save_file({"one": _values(), "other": torch.arange(7)}, place / "x.safetensors")
    return place / "x.safetensors"


def _save_torch(content: Callable[[], Any]) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        torch.save(content(), place / "x.pt")
        return place / "x.pt"

    return write


WRITERS: dict[str, Callable[[Path], Path]] = {
    "npy": _save("x.npy"),
    "numpy": _save_numpy,
    "safetensors": _save("x.safetensors"),
    "int8": _save("x.safetensors", quantize="int8"),
    "bfloat16": _save("x.safetensors", quantize="bfloat16"),
    "raw": _save("x.bin"),
    "torch": _save_torch(_values),
    "torch_nested": _save_torch(lambda: {"a": {"b": _values()[::2]}, "c": [torch.arange(5)]}),
}
TABLES = tuple(WRITERS)


def write_table(kind: str, place: Path) -> Path:
    """A good file in the new folder `place`."""
    place.mkdir(parents=True)
    return WRITERS[kind](place)


def open_hostile(kind: str, path: Path) -> int:
    """Open and read what may be damaged; how many tables were right."""
    found = 0
    options: dict[str, Any] = (
        {"dtype": torch.float32, "shape": (-1, WIDTH)} if kind == "raw" else {}
    )
    for name in (None, "rows", "one", "other", "a.b", "c.0"):
        if name is not None and kind in ("npy", "numpy", "raw"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                u = sh.open(path, name=name, **options)
                rows = _read(u)
        except ShorthaulError:
            continue
        if rows is not None:
            found += 1
            _require_agreed(kind, path, name, u, rows)
        u.close()
    return found


def _read(u: sh.UnifiedTensor) -> torch.Tensor | None:
    """All rows, by id and in part; none of a table that promises more rows than its bytes hold."""
    count = u.shape[0]
    if count > 10**6:
        assert u.shape[1:].numel() == 0  # rows without a number cost nothing
        return None
    rows = u[torch.arange(count)]
    assert torch.equal(_bits(u[count // 2 :].cpu()), _bits(rows[count // 2 :]))
    if rows.is_floating_point() and rows.dim() == 2 and rows.dtype.itemsize > 1:
        u.gather_reduce(torch.tensor([0, count]), torch.arange(count), "sum")
    return rows


def _bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.contiguous().reshape(-1).view(torch.uint8)


def _require_agreed(
    kind: str, path: Path, name: str | None, u: sh.UnifiedTensor, rows: torch.Tensor
) -> None:
    """As the format's own reader has it, where that reads the file and rows are what it holds."""
    peer: Any = None
    try:
        if kind in ("npy", "numpy"):
            peer = torch.from_numpy(np.load(path, allow_pickle=False).copy())
        elif kind == "raw":
            peer = torch.from_numpy(np.fromfile(path, np.float32)).view(-1, WIDTH)
        elif kind.startswith("torch"):
            peer = torch.load(path, weights_only=True)
            for part in (name or "").split(".") if isinstance(peer, dict | list) else ():
                peer = peer[int(part)] if isinstance(peer, list) else peer[part]
        elif kind == "safetensors":
            from safetensors.torch import load_file

            held = load_file(path)
            peer = held[name] if name else next(iter(held.values()))
    except Exception:
        return  # that reader refuses the file, or has it in other containers: nothing to compare with
    if isinstance(peer, torch.Tensor):
        assert (peer.dtype, peer.shape) == (rows.dtype, rows.shape), (path, name)
        assert torch.equal(_bits(peer), _bits(rows)), (path, name)


def main(kind: str, first: int, stop: int) -> None:
    """Damage and open files of one kind; what is printed last is the seed that did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        good = write_table(kind, Path(folder) / "good")
        for seed in range(first, stop):
            print(f"{kind} {seed}", flush=True)
            path = Path(folder) / f"{seed}{good.suffix}"
            shutil.copy(good, path)
            if seed:
                damage_bytes(path, random.Random(f"{kind} {seed}"))
            found = open_hostile(kind, path)
            assert found or seed, "the good file was refused"
            path.unlink()
    print("finished", flush=True)


def limit_memory() -> None:
    """Whoever believes a file that promises more fails here, and not the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LARGEST_BYTES, used + LARGEST_BYTES))


if __name__ == "__main__":
    limit_memory()
    for each in sys.argv[3:] or TABLES:
        main(each, int(sys.argv[1]), int(sys.argv[2]))
