"""What runs while an object is destroyed is written in C: Python drops a signal that arrives there."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shorthaul"
# Where Python code runs all the same, and why no signal that a user sends is lost there.
ALLOWED = {
    "offload/saved/identity.py": "such references die while the store settles, with interrupts deferred",
    "offload/store/store.py": "a store is closed by its context; this is for one that was forgotten",
    "offload/device/copies.py": "waits for copies on a device, of a copier that was forgotten",
    "tensors/cuda/registration.py": "unmaps memory from devices, under a lock",
    "advice/watching/observation.py": "notes when memory goes, in one step that is only watched",
    "graphs/loading/batch_pipeline.py": "ends the threads of an epoch that was left in its middle",
    "storage/memory_engine.py": "for tests: nothing but tests opens this engine",
}


# Methods of lists, sets, dictionaries and queues, which are written in C.
IN_C = ("append", "add", "discard", "pop", "put")


def find_destructors(text: str) -> Iterator[int]:
    """The lines of `text` that have Python run when an object is gone."""
    for node in ast.walk(ast.parse(text)):
        is_method = isinstance(node, ast.FunctionDef) and node.name == "__del__"
        is_finalizer = isinstance(node, ast.Call) and ast.unparse(node.func) == "weakref.finalize"
        if is_method or is_finalizer or has_callback(node):
            yield node.lineno


def has_callback(node: ast.AST) -> bool:
    """Whether this is a weak reference that calls Python at the end."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("weakref.ref", "ref"):
        return False
    callbacks = node.args[1:] + [each.value for each in node.keywords]
    return any(not isinstance(each, ast.Attribute) or each.attr not in IN_C for each in callbacks)


def test_no_destructor_is_written_in_python() -> None:
    found = {
        str(path.relative_to(SOURCE)): list(find_destructors(path.read_text()))
        for path in SOURCE.rglob("*.py")
    }
    assert {name for name, lines in found.items() if lines} == set(ALLOWED)


def test_destructors_are_found() -> None:
    text = "class A:\n    def __del__(self): pass\n\nweakref.finalize(a, print)\n"
    assert sorted(find_destructors(text)) == [2, 4]
    text = "weakref.ref(a)\nweakref.ref(a, gone.append)\nweakref.ref(a, forget)\nref(a, partial(f, 1))\n"
    assert sorted(find_destructors(text)) == [3, 4]
