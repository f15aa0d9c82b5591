"""The catalog: every public name is there, and heavy ones come when they are first used."""

import ast
import subprocess
import sys

import pytest

import shorthaul


@pytest.mark.parametrize("name", shorthaul.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(shorthaul, name) is not None
    assert name in dir(shorthaul)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shorthaul' has no attribute 'jitter'"):
        _ = shorthaul.jitter


def test_torch_is_imported_only_when_a_name_needs_it() -> None:
    script = (
        "import sys, shorthaul as sh\n"
        "sh.meter, sh.settings, sh.errors\n"
        "assert 'torch' not in sys.modules, 'imported too early'\n"
        "sh.jit.CppSource\n"
        "assert 'torch' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_compiles_graphs_is_not_imported_unless_somebody_compiles_one() -> None:
    # It takes longer to import than torch's other parts together, and than many a model's first output.
    script = (
        "import sys, torch, shorthaul as sh\n"
        "sh.unified, sh.RelationalGraph, sh.relational.RGCNConv, sh.offload_activations\n"
        "layer = torch.nn.Conv2d(3, 8, 3)\n"
        "sh.replace_convs(layer)\n"
        "with sh.offload_activations():\n"
        "    layer(torch.randn(1, 3, 8, 8)).sum().backward()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


_WATCHED = """\
import sys
{before}
known, events = set(sys.modules), []

def watch(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "_thread.start_new_thread"):
        events.append(event)
    elif event == "open" and isinstance(arguments[0], str):
        is_read = arguments[1] in (None, "r", "rb") and not (arguments[2] or 0) & 3
        if not is_read or not arguments[0].endswith((".py", ".pyc", ".so")):
            events.append(f"open {arguments[0]} {arguments[1]}")
    elif event in ("os.mkdir", "socket.connect"):
        events.append(f"{event} {arguments[0]}")

sys.addaudithook(watch)
{imports}
new = set(sys.modules) - known
tops = {each.split(".")[0] for each in new} - sys.stdlib_module_names
print(sorted(tops))
print(len([each for each in new if each.startswith("shorthaul")]))
print(events)
"""


def _import_watched(imports: str, before: str = "") -> tuple[list[str], int, list[str]]:
    """What an import brings: packages that are not Python's own, modules of ours, and its doings."""
    script = _WATCHED.replace("{before}", before).replace("{imports}", imports)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    packages, count, events = done.stdout.splitlines()
    return ast.literal_eval(packages), int(count), ast.literal_eval(events)


def test_importing_brings_rich_alone_and_does_nothing() -> None:
    packages, count, events = _import_watched("import shorthaul")
    assert packages == ["rich", "shorthaul"]
    assert count <= 20
    assert events == []


def test_importing_everything_starts_and_compiles_nothing() -> None:
    names = ", ".join(f"shorthaul.{name}" for name in ("conv", "jit", "relational", "graphs"))
    packages, count, events = _import_watched(f"import {names}", "import torch, torch._dynamo")
    # What torch brings along, and loads in its own time.
    assert set(packages) <= {"rich", "shorthaul", "torch", "numpy", "sympy", "mpmath", "triton"}
    assert 0 < count < 400
    assert [each for each in events if "shorthaul" in each or "start" in each] == []
    assert not [each for each in events if each.startswith(("subprocess", "os."))]


def test_a_doing_is_seen() -> None:
    _, _, events = _import_watched(
        "import subprocess; subprocess.run(['true']); open('/dev/null', 'w')"
    )
    assert events == ["subprocess.Popen", "open /dev/null w"]
