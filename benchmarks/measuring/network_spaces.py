"""Two network namespaces with a cable of a given rate between them: ranks on them are on two machines, as far as the network goes.

The rate is held by the kernel's token bucket (`tc .. tbf`) at both ends. Latency is that of the cable: a kernel
without netem adds none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

CABLE = "cable"


class NetworkSpacesError(OSError):
    """No network namespaces could be made here."""


class NetworkSpaces:
    """`names` of two namespaces, and `addresses` in them, while the `with` block runs."""

    def __init__(self, megabits: int | None) -> None:
        self.megabits = megabits
        self.names = tuple(f"shorthaul{os.getpid()}{end}" for end in "ab")
        self.addresses = ("10.231.8.1", "10.231.8.2")

    def __enter__(self) -> NetworkSpaces:
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
            raise NetworkSpacesError("network namespaces with a rate need root, ip and tc.")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self._remove()
            said = error.stderr.decode(errors="replace").strip()
            raise NetworkSpacesError(f"`{' '.join(error.cmd)}` failed: {said}") from error
        return self

    def _make(self) -> None:
        for each in self.names:
            _run("ip", "netns", "add", each)
        one, other = self.names
        peer = ("type", "veth", "peer", "name", CABLE, "netns", other)
        _run("ip", "link", "add", CABLE, "netns", one, *peer)
        for name, address in zip(self.names, self.addresses, strict=True):
            inside = ("ip", "-n", name)
            _run(*inside, "addr", "add", f"{address}/24", "dev", CABLE)
            _run(*inside, "link", "set", CABLE, "up")
            _run(*inside, "link", "set", "lo", "up")
            if self.megabits is not None:
                bucket = ("tbf", "rate", f"{self.megabits}mbit", "burst", "4mb", "latency", "50ms")
                _run("tc", "-n", name, "qdisc", "add", "dev", CABLE, "root", *bucket)

    def inside(self, rank: int) -> tuple[str, ...]:
        """What a command begins with that runs there."""
        return ("ip", "netns", "exec", self.names[rank])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for each in self.names:
            subprocess.run(("ip", "netns", "del", each), capture_output=True, check=False)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
