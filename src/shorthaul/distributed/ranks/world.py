"""The ranks that take part, and what each knows of the others: its machine, its process, its parts.

>>> find_world()
World(rank=0, ranks=1)
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from shorthaul.errors import RankSetupError


@dataclass(frozen=True)
class World:
    """This process among all; one that was started alone is rank 0 of 1."""

    rank: int
    ranks: int


def find_world() -> World:
    """The default process group of `torch.distributed`, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    wanted = os.environ.get("WORLD_SIZE", "1")
    if wanted not in ("", "1"):
        raise RankSetupError(
            f"this is one of {wanted} processes, but torch.distributed was not initialized.\n"
            '  Call torch.distributed.init_process_group("gloo") before sh.distributed.open.'
        )
    return World(0, 1)


@dataclass(frozen=True)
class Peer:
    """What a rank tells the others of itself, so that an error can name it."""

    rank: int
    parts: str  # in words: "part 1", "parts 2 to 3"
    host: str
    process: int
    process_space: str  # processes with the same one see each other's numbers
    machine: str  # equal for ranks that read the same files through the same page cache

    def describe(self) -> str:
        """For an error."""
        if not self.parts:
            return f"rank {self.rank}"  # before ranks have told each other who they are
        return f"rank {self.rank} ({self.parts}, process {self.process} on {self.host})"

    def is_gone(self, seen_from: Peer) -> bool:
        """Whether its process has ended, as far as that can be seen from another rank."""
        if not self.process_space or self.process_space != seen_from.process_space:
            return False
        try:
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        return state in "ZX"


def describe_self(rank: int, parts: str, shared_file: Path | None) -> Peer:
    """This process; `shared_file` is one that ranks must have in common to share memory."""
    space, boot, file = "", "", ""
    with contextlib.suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    machine = f"rank {rank}"
    if shared_file is not None and boot:
        with contextlib.suppress(OSError):
            found = shared_file.stat()
            file = f"{found.st_dev}:{found.st_ino}"
            machine = f"{boot} {file}"
    host = socket.gethostname()
    return Peer(rank, parts, host, os.getpid(), f"{boot} {space}" if boot else host, machine)


def describe_parts(first: int, stop: int) -> str:
    """Which parts a rank owns, in words."""
    return f"part {first}" if stop == first + 1 else f"parts {first} to {stop - 1}"
