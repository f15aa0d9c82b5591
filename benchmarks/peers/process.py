"""Arms that run in another process: a peer in its own environment, or our own to see its memory.

A peer's packages never enter our environment (`make peers` installs them in `.peers`), and yet its
arms are measured in the same run, interleaved with ours::

    with ArmProcess(Path("benchmarks/peer_arms_pyg.py")) as pyg:
        answer.compare("RGCN", [Arm("shorthaul", ours), pyg.arm("rgcn", graph="graph.pt")], ...)

Inputs travel as files that the arguments name; results come back the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from benchmarks.measuring.measure import Sample
from shorthaul.meter import read_peak_resident_bytes, reset_peak_resident

ROOT = Path(__file__).parents[2]
PEERS_FOLDER = Path(__file__).parent  # scripts that run in the peers' environment
ARMS_FOLDER = PEERS_FOLDER.with_name("arms")  # scripts that run in a process of their own
PEERS_PYTHON = ROOT / ".peers" / "bin" / "python"


class PeerError(RuntimeError):
    """An arm in another process failed, ended or did not answer."""


class PeerTimeoutError(PeerError):
    """An arm did not answer in time; its process is stopped."""


class PeersMissingError(PeerError):
    """The peers' environment is not there."""

    def __init__(self, python: Path) -> None:
        super().__init__(f"{python} is not there; `make peers` installs what we compare with.")


@dataclass(frozen=True)
class ProcessArm:
    """An arm of an `ArmProcess`; `compare` takes it as it takes an `Arm`."""

    name: str
    process: ArmProcess
    number: int
    prepare: Callable[[], object] | None = None
    events: int = 1

    @property
    def can_repeat(self) -> bool:
        """False when each call must be prepared."""
        return self.prepare is None

    def sample(self, calls: int) -> Sample:
        """Run `calls` times over there; the time of one event, by the clock over there."""
        if self.prepare is not None:
            self.prepare()
        took = self.process.ask("sample", number=self.number, calls=calls)
        share = 1 / (calls * self.events)
        return Sample(took["wall_seconds"] * share, took["cpu_seconds"] * share)

    def result(self) -> object:
        """Run once; what came out."""
        return self.try_out()[0]

    def try_out(self) -> tuple[Any, Sample]:
        """Run once; what came out, and the time of it, by the clock over there."""
        if self.prepare is not None:
            self.prepare()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "result.pt"
            took = self.process.ask("result", number=self.number, path=str(path))
            sample = Sample(took["wall_seconds"] / self.events, took["cpu_seconds"] / self.events)
            return torch.load(path, weights_only=True), sample

    def measure_peak(self, calls: int = 1) -> dict[str, float]:
        """Figures on memory: what the process had at most while it ran, and how much more that
        was than before.
        """
        process = str(self.process.identity)
        if not reset_peak_resident(process):
            raise PeerError("the kernel does not let the memory high-water mark be set back here")
        before_bytes = read_peak_resident_bytes(process)
        self.process.ask("sample", number=self.number, calls=calls)
        peak_bytes = read_peak_resident_bytes(process)
        if before_bytes is None or peak_bytes is None:
            raise PeerError("the kernel does not tell the memory high-water mark here")
        return {"peak_bytes": peak_bytes, "growth_bytes": peak_bytes - before_bytes}


class ArmProcess:
    """A process that serves the arms of `script`, which defines `ARMS` (see `arm_server.py`)."""

    def __init__(
        self, script: Path, python: Path = PEERS_PYTHON, reply_seconds: float = 1200.0
    ) -> None:
        if not python.exists():
            raise PeersMissingError(python)
        self.script, self.reply_seconds = script, reply_seconds
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        server = Path(__file__).with_name("arm_server.py")
        self._process = subprocess.Popen(
            [python, server, script.resolve()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
        )
        self._unread = b""

    @classmethod
    def here(cls, script: Path) -> ArmProcess:
        """A process of our own environment: a fresh one, whose memory holds nothing else."""
        return cls(script, Path(sys.executable))

    @property
    def identity(self) -> int:
        """The process's number."""
        return self._process.pid

    def arm(
        self,
        key: str,
        *,
        name: str = "",
        prepare: Callable[[], object] | None = None,
        events: int = 1,
        **arguments: Any,
    ) -> ProcessArm:
        """Make the arm that the script calls `key`, with these arguments."""
        made = self.ask("make", arm=key, arguments=arguments)
        return ProcessArm(name or key, self, made["number"], prepare, events)

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its reply."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(do) from None
        reply: dict[str, Any] = json.loads(self._read_line(do))
        if "error" in reply:
            raise PeerError(f"{self.script.name}: `{do}` failed\n{reply['error']}")
        return reply

    def close(self) -> None:
        """End the process; one that does not end by itself is stopped."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> ArmProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_line(self, do: str) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], self.reply_seconds)[0]:
                self._process.kill()
                raise PeerTimeoutError(
                    f"{self.script.name}: `{do}` had no reply after {self.reply_seconds:g} s"
                )
            piece = os.read(descriptor, 2**16)
            if not piece:
                raise self._ended(do)
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _ended(self, do: str) -> PeerError:
        status = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-15:]
        return PeerError(
            "\n  ".join([f"{self.script.name}: ended with status {status} at `{do}`", *last])
        )
