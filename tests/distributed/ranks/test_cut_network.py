"""A network that is cut in the middle of an exchange, between two network namespaces: both ranks end and say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.part_folders import cut_homogeneous

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys, torch, torch.distributed as dist
import shorthaul as sh

rank, store, folder, what = int(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
parts = sh.distributed.open(folder, topology="split", shares_machine=False, timeout_seconds=5.0)
features = parts.features()
loader = sh.distributed.MiniBatchLoader(parts, None, (3, 2), 7, features=features)

def steps():
    while True:
        if what == "rows":
            yield features[torch.arange(60)]
        else:
            yield from loader

for number, _ in enumerate(steps()):
    if number == 20:
        print("under way", flush=True)
"""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces and a cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    names = tuple(f"shorthaul{os.getpid()}{end}" for end in "ab")
    try:
        try:
            for each in names:
                run("ip", "netns", "add", each)
        except subprocess.CalledProcessError:
            pytest.skip("network namespaces are not allowed here")
        one, other = names
        ends = ("type", "veth", "peer", "name", "cable", "netns", other)
        run("ip", "link", "add", "cable", "netns", one, *ends)
        for number, each in enumerate(names, start=1):
            inside = ("ip", "-n", each)
            run(*inside, "addr", "add", f"10.231.7.{number}/24", "dev", "cable")
            run(*inside, "link", "set", "cable", "up")
            run(*inside, "link", "set", "lo", "up")
        yield one, other
    finally:
        for each in names:
            subprocess.run(("ip", "netns", "del", each), capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "what"), [("file", "rows"), ("tcp", "rows"), ("tcp", "batches of a split topology")]
)
def test_both_ranks_name_the_other_side(
    tmp_path: Path, spaces: tuple[str, str], store: str, what: str
) -> None:
    """With `tcp`, as on a cluster, the store is cut off from rank 1 too."""
    cut_homogeneous(tmp_path / "parts", 2)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    places = {"file": f"file://{tmp_path}/store", "tcp": "tcp://10.231.7.1:29511"}
    words = (places[store], str(tmp_path / "parts"), what)
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "cable",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    ranks = [
        subprocess.Popen(
            ("ip", "netns", "exec", space, sys.executable, str(script), str(rank), *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank, space in enumerate(spaces)
    ]
    for each in ranks:
        assert each.stdout is not None
        assert each.stdout.readline() == "under way\n"
    run("ip", "-n", spaces[1], "link", "set", "cable", "down")
    for rank, each in enumerate(ranks):
        _, errors = each.communicate(timeout=60)
        assert each.returncode == 1
        assert f"ExchangeError: rank {rank} (part {rank}) could not exchange" in errors
        assert "nothing came within 5 s" in errors
        assert f"rank {1 - rank} (part {1 - rank}, process {ranks[1 - rank].pid} on" in errors
        if store == "file":
            assert "network between them was cut" in errors
        else:
            said = "torch's store did not answer" if rank else "is cut off"
            assert said in errors
