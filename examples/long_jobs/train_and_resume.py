"""A job that may be stopped at any time: SIGTERM saves, the next start goes on, counts of wear stay.

    python examples/long_jobs/train_and_resume.py --folder /tmp/job
    kill -TERM %1                                        # at any time
    python examples/long_jobs/train_and_resume.py --folder /tmp/job

Every few steps a line of JSON goes to `steps.jsonl`; the drive's limit of wear is kept over all runs.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from pathlib import Path

import torch
from torch import nn

import shorthaul as sh
from shorthaul.units import format_bytes


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)))


def train(folder: Path, steps: int, stop_after: int | None = None) -> sh.offload.OffloadReport:
    """Train until `steps`, from where the folder's checkpoint is; `stop_after` sends itself SIGTERM."""
    stopped = []
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    model, checkpoint = make_model(), folder / "checkpoint.pt"
    optimizer, first = torch.optim.AdamW(model.parameters()), 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        print(f"goes on at step {first}")
    wear = {"daily": "2TB"}  # more is kept in memory instead of being written
    offload = sh.offload_activations(minimum_bytes="64KiB", endurance=wear)
    for step in range(first, steps):
        torch.manual_seed(step)
        with offload:
            loss = model(torch.randn(512, 256)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            line = json.dumps({"step": step, "loss": loss.item(), **offload.metrics()})
            with (folder / "steps.jsonl").open("a") as file:
                file.write(line + "\n")
        if stop_after is not None and step == stop_after:
            signal.raise_signal(signal.SIGTERM)
        if stopped:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, checkpoint)
            print(f"stopped after step {step}, saved")
            break
    signal.signal(signal.SIGTERM, before)
    report = offload.report()
    offload.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="of checkpoint and reports")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        print(train(options.folder, options.steps).summary())
        return
    with tempfile.TemporaryDirectory() as folder:  # shown at once: stopped, then gone on with
        first = train(Path(folder), options.steps, stop_after=options.steps // 2)
        second = train(Path(folder), options.steps)
        lines = (Path(folder) / "steps.jsonl").read_text().splitlines()
    print(second.summary())
    print(
        f"gained: the job was stopped and went on; {len(lines)} reports; written to the drive "
        f"{format_bytes(first.drive_written_bytes)}, then {format_bytes(second.drive_written_bytes)}"
    )


if __name__ == "__main__":
    main()
