"""An unedited script under `shorthaul run` is what it is under Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shorthaul.integrations.run import (
    STARTUP,
    RunWishes,
    plan_environment,
    take_wishes,
)

RUN = ("-m", "shorthaul", "run")
TRAINING = """
import hashlib, os, sys
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512))
optimizer = torch.optim.AdamW(model.parameters())
loss_of = nn.MSELoss()
for step in range(3):
    model.train()
    loss = loss_of(model(torch.randn(1024, 512)), torch.zeros(1024, 512))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 512))
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print(hashlib.sha256(weights).hexdigest(), loss.item())
print(sorted(vars(model)["_forward_hooks"]), list(model.state_dict()))
"""


def python(*words: str, typed: str = "", cwd: Path | None = None, **environment: str) -> Any:
    return subprocess.run(
        (sys.executable, *words),
        input=typed,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def own_words(stderr: str) -> tuple[str, str]:
    """What the script wrote, and what we did at the end."""
    script, marker, ours = stderr.partition("shorthaul run: ")
    return script, marker + ours


def require_same(words: tuple[str, ...], **given: Any) -> Any:
    """Run both ways; returns the plain one."""
    plain, ours = python(*words, **given), python(*RUN, *words, **given)
    script, told = own_words(ours.stderr)
    assert (ours.returncode, ours.stdout, script) == (plain.returncode, plain.stdout, plain.stderr)
    if plain.returncode >= 0:
        assert told.startswith("shorthaul run: no model was trained")
    return plain


@pytest.mark.parametrize("name", ["script", "module", "input"])
def test_a_script_sees_what_python_shows_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    text = """
import atexit, json, os, sys
import beside
atexit.register(print, "its own end")
names = ("PYTHONPATH", "GLIBC_TUNABLES", "SHORTHAUL_RUN")
print(sys.argv, __name__, __file__ if "__file__" in globals() else None, __spec__ and __spec__.name)
print(sys.path, [os.environ.get(name) for name in names], beside.word, sys.flags)
print(sorted(vars(sys.modules["__main__"]))[:8], len(sys.meta_path) > 1)
print(sys.stdin.read())
def fail():
    raise ValueError("its own")
fail()
"""
    script = tmp_path / "script.py"
    script.write_text(text)
    words = {"script": (str(script), "--memory"), "module": ("-m", "script", "-m"), "input": ("-",)}
    plain = require_same(words[name], typed=text if name == "input" else "typed", cwd=tmp_path)
    assert plain.returncode == 1
    assert "its own" in plain.stderr
    assert plain.stdout.endswith("its own end\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit('words')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("import os; os._exit(3)", 3),
        ("def broken(", 1),
    ],
    ids=["exit", "words", "SIGTERM", "SIGINT", "_exit", "syntax"],
)
def test_the_end_is_the_scripts_own(tmp_path: Path, text: str, code: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    plain, ours = python(str(script)), python(*RUN, str(script))
    assert plain.returncode == ours.returncode == code
    assert own_words(ours.stderr)[0] == plain.stderr


def test_children_are_the_scripts_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, os, subprocess, sys

def work(number):
    return number + 1, "SHORTHAUL_RUN" in os.environ, "shorthaul" in sys.modules

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(work, [1, 2])[0][:2])
    command = (sys.executable, "-c", "import sys; print('shorthaul' in sys.modules)")
    print(subprocess.run(command, capture_output=True, text=True).stdout)
    if os.fork() == 0:
        sys.exit(0)  # a fork that ends as a whole process does
    os.wait()
""")
    plain = require_same((str(script),))
    assert plain.returncode == 0, plain.stderr
    ours = python(*RUN, str(script))
    assert ours.stderr.count("shorthaul run: ") == 1


def test_what_cannot_begin_ends_with_a_message_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('went on')")
    path = os.pathsep.join([str(STARTUP), os.environ.get("PYTHONPATH", "")])
    done = python(str(script), SHORTHAUL_RUN="no JSON", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("shorthaul run: JSONDecodeError: ")
    assert "Fatal" not in done.stderr


def test_a_script_that_only_asks_its_model_is_told_what_was_changed(tmp_path: Path) -> None:
    script, report = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text("""
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)).eval()
with torch.inference_mode():
    net(torch.ones(1, 3, 16, 16))
""")
    done = python(*RUN, "--replace-convs", "--report", str(report), str(script))
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(report.read_text())["models"]
    assert model["changed"].keys() | model["left"].keys() == {"0", "1"}
    assert "was not called" not in model["left"].values()
    assert done.stderr.startswith("shorthaul run: Sequential: ")
    assert all(len(line) <= 80 for line in done.stderr.splitlines())


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.was_here = __file__\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, sitecustomize\nprint(sys.was_here, sitecustomize.__file__)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    plain = require_same((str(script),), PYTHONPATH=path)
    assert plain.returncode == 0, plain.stderr
    assert "sitecustomize.py" in plain.stdout


def test_training_is_bit_equal_and_the_report_is_json(tmp_path: Path) -> None:
    script, report = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(TRAINING)
    plain = python(str(script))
    wishes = ("--memory", "64GiB", "--offload", str(tmp_path), "--report", str(report))
    ours = python(*RUN, *wishes, str(script), SHORTHAUL_ENGINE="thread")
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert plain.stdout == ours.stdout
    told = json.loads(report.read_text())
    assert told["command"] == [str(script)]
    assert told["backward_passes"] == 3
    assert [(each["name"], each["parameters"]) for each in told["models"]] == [
        ("Sequential", 2 * 513 * 512)
    ]
    assert told["asked"]["memory_bytes"] == 2**36
    assert told["memory"]["gradient_bytes"] == 2 * 513 * 512 * 4
    assert told["memory"]["optimizer_bytes"] > 2 * told["memory"]["gradient_bytes"]
    # In its first step, in which no plan is known, everything leaves.
    assert told["offload"]["counts"]["offloaded"] >= 3
    assert told["offload"]["counts"]["peak_live_bytes"] <= told["memory"]["budget_bytes"]
    plan = told["plan"]  # of the second step on: all of it fits
    assert plan["kept_bytes"] == plan["all_kept_bytes"] > 0
    assert (plan["offloaded_bytes"], plan["recomputed_blocks"]) == (0, 0)
    assert plan["measured_seconds"] > 0
    assert "  plan: keep " in ours.stderr
    assert "  expected: " in ours.stderr
    assert told["written_bytes"] >= told["offload"]["counts"]["written_bytes"] > 0
    assert told["disk_trial_bytes"] > 0
    assert told["peak_resident_bytes"] > 0
    assert ours.stderr.startswith("shorthaul run: Sequential: activations offloaded\n")
    assert all(len(line) <= 80 for line in ours.stderr.splitlines())


BLOCKS = """
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), EXTRA) for _ in range(4)]
model = nn.Sequential(*layers)
for step in range(3):
    model(torch.randn(256, 64)).square().mean().backward()
print(sum(each.grad.double().sum().item() for each in model.parameters()))
"""


@pytest.mark.parametrize("extra", ["nn.Dropout(0.1)", "nn.BatchNorm1d(64)"])
def test_blocks_that_are_not_computed_again_are_named_with_the_reason(tmp_path, extra) -> None:
    script, report = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(BLOCKS.replace("EXTRA", extra))
    words = ("--memory", "64GiB", "--offload", str(tmp_path), "--report", str(report), str(script))
    plain, ours = python(str(script)), python(*RUN, *words)
    assert (plain.stdout, ours.returncode) == (ours.stdout, 0), ours.stderr
    (model,) = json.loads(report.read_text())["models"]
    reason = "not computed again: BatchNorm1d counts its batches"
    expected = dict.fromkeys("0123", reason) if "Norm" in extra else {}
    assert model["left"] == expected
    assert ("left 0 and 3 more: not computed again" in ours.stderr) == bool(expected)


RECOMPUTING = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

model = Blocks()
for _ in range(3):
    model(torch.randn(1024, 512)).square().mean().backward()
print([each.grad.double().sum().item() for each in model.parameters()])
"""


def test_what_is_computed_again_in_a_backward_pass_is_no_model_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECOMPUTING)
    plain = python(str(tmp_path / "train.py"))
    ours = python(*RUN, "--offload", str(tmp_path), str(tmp_path / "train.py"))
    assert (ours.returncode, ours.stdout) == (0, plain.stdout), ours.stderr
    assert own_words(ours.stderr)[1].startswith("shorthaul run: Blocks: activations offloaded")


def test_what_had_not_to_leave_is_not_said_to_be_offloaded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINING.replace("512", "16").replace("1024", "4"))
    done = python(*RUN, "--memory", "64GiB", "--offload", str(tmp_path), str(script))
    assert done.returncode == 0, done.stderr
    assert "shorthaul run: Sequential: no activation had to leave memory\n" in done.stderr
    assert "written to disk       0 B" in done.stderr


def test_each_process_of_a_distributed_run_has_its_own_report(tmp_path: Path) -> None:
    script, report = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text("import os\nprint(os.environ['RANK'], os.environ['MASTER_ADDR'])\n")
    words = (*RUN, "--report", str(report), str(script))
    shown = [python(*words, RANK=rank, MASTER_ADDR="here") for rank in "01"]
    assert [each.stdout for each in shown] == ["0 here\n", "1 here\n"]
    assert [bool(each.stderr) for each in shown] == [True, False]
    assert json.loads(report.read_text())["backward_passes"] == 0
    assert json.loads((tmp_path / "out.rank1.json").read_text())["backward_passes"] == 0


@pytest.mark.slow
def test_torchrun_trains_the_same(tmp_path: Path) -> None:
    script, report = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text("""
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(3):
    model(torch.randn(1024, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print([each.detach().double().sum().item() for each in model.parameters()])
dist.destroy_process_group()
""")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    wishes = ("--offload", str(tmp_path), "--report", str(report))
    plain = python(*torchrun, str(script))
    ours = python(*torchrun, "--no-python", sys.executable, *RUN, *wishes, str(script))
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert plain.stdout == ours.stdout
    assert ours.stderr.count("shorthaul run: DistributedDataParallel: activations offloaded") == 1
    for path in (report, tmp_path / "out.rank1.json"):
        assert json.loads(path.read_text())["offload"]["counts"]["offloaded"] > 0


def test_a_report_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\nos.rmdir({str(folder)!r})\nsys.exit(5)\n")
    done = python(*RUN, "--report", str(folder / "out.json"), str(script))
    assert done.returncode == 5
    assert "shorthaul run: no report was written: " in done.stderr


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"PYTHONPATH": "/a:/b", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "HOME": "/"},
        {"PYTHONPATH": ""},
    ],
)
def test_the_environment_is_given_back(before: dict[str, str]) -> None:
    wishes = RunWishes(memory_bytes=5, offloads=True, report="/x y.json")
    planned = plan_environment(wishes, before)
    assert planned["PYTHONPATH"].split(os.pathsep)[0] == str(STARTUP)
    assert planned.get("GLIBC_TUNABLES") == before.get("GLIBC_TUNABLES")
    assert take_wishes(planned) == wishes
    assert planned == before
    assert take_wishes(planned) is None
    assert planned == before
