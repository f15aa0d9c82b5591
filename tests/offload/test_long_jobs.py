"""What jobs of a week meet: signals, a disk that fills up, a neighbor on the same disk, being resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = """
import hashlib, json, resource, signal, sys
import torch
import shorthaul as sh

scratch, mode = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
offload = sh.offload_activations(scratch, minimum_bytes=1024)
step = 0
while step < 6 or mode == "endless":
    if mode == "full" and step == 3:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    with offload:
        model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 2:
        print("at work", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
report = offload.report()
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print(json.dumps({
    "weights": hashlib.sha256(weights).hexdigest(),
    "written": report.counts.written_bytes,
    "ever": report.drive_written_bytes,
    "refusal": report.refusal,
}))
"""


def start(folder: Path, mode: str = "plain") -> subprocess.Popen[str]:
    for name in ("scratch", "state"):
        (folder / name).mkdir(exist_ok=True)
    return subprocess.Popen(
        (sys.executable, "-c", JOB, str(folder / "scratch"), mode),
        env=os.environ | {"SHORTHAUL_ENGINE": "thread", "SHORTHAUL_STATE": str(folder / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    said, errors = job.communicate(timeout=100)
    assert job.returncode == 0, errors
    return json.loads(said.splitlines()[-1]), errors


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_a_job_that_is_stopped_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    job = start(tmp_path, "endless")
    assert job.stdout is not None
    assert job.stdout.readline() == "at work\n"
    job.send_signal(getattr(signal, name))
    job.communicate(timeout=60)
    assert job.returncode == -getattr(signal, name)
    assert list((tmp_path / "scratch").iterdir()) == []
    # Counts of wear are whole, if there are any yet.
    for path in (tmp_path / "state").rglob("*.json"):
        json.loads(path.read_text())


def test_two_jobs_share_a_scratch_directory_and_the_next_goes_on_counting(tmp_path: Path) -> None:
    jobs = [start(tmp_path), start(tmp_path)]
    (one, _), (other, _) = [finish(each) for each in jobs]
    assert one["weights"] == other["weights"]
    assert one["written"] > 0
    resumed, _ = finish(start(tmp_path))
    assert resumed["weights"] == one["weights"]
    assert resumed["ever"] == one["written"] + other["written"] + resumed["written"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_scratch_that_fills_up_stops_the_writing_and_not_the_job(tmp_path: Path) -> None:
    expected, _ = finish(start(tmp_path))
    full, errors = finish(start(tmp_path, "full"))
    assert full["weights"] == expected["weights"]
    assert full["written"] > 0  # before it was full
    assert full["refusal"]
    assert errors.count("activations stay in memory from now on") == 1, errors  # not at every step
