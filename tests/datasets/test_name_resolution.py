"""What dotted names mean: scopes, imports, inheritance, and honest ignorance."""

import pytest

from shorthaul.datasets.module_syntax import SUPER, UNKNOWN, Reference, parse_module
from shorthaul.datasets.name_resolution import Library

SOURCES = {
    "base": """
class Root:
    def close(self): pass
class Loop(Loop2): pass
class Loop2(Loop): pass
def helper(): pass
limit = 3
""",
    "pack": "from .inner import Thing\nfrom base import *\n",
    "pack.inner": """
import base as ground
import pack
from base import helper as assist, limit
from nowhere import unknown
class Thing(ground.Root):
    def close(self): super().close()
    def work(self):
        def local(): pass
    def hidden(self, helper): pass
    @staticmethod
    def make(): pass
class Deeper(Thing):
    def work(self): pass
    extra = 1
def shadow():
    assist = 1
""",
    "circular": "from circular import itself\n",
}


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(
        [
            parse_module(name, text.encode(), is_package=name == "pack")
            for name, text in SOURCES.items()
        ]
    )


@pytest.mark.parametrize(
    ("owner", "dotted", "meaning"),
    [
        ("pack.inner:Thing.work", "assist", "base:helper"),
        ("pack.inner:Thing.work", "ground", "base"),
        ("pack.inner:Thing.work", "ground.helper", "base:helper"),
        ("pack.inner:Thing.work", "ground.Root.close", "base:Root.close"),
        ("pack.inner:Thing.work", "local", "pack.inner:Thing.work.local"),
        ("pack.inner:Thing.work", "Thing", "pack.inner:Thing"),
        ("pack.inner:Thing.work", "pack.Thing", "pack.inner:Thing"),
        ("pack.inner:Thing.work", "pack.inner.Thing", "pack.inner:Thing"),
        ("pack.inner:Thing.work", "pack.helper", "base:helper"),  # through a star
        ("pack.inner:Thing.work", "self.close", "pack.inner:Thing.close"),
        ("pack.inner:Deeper.work", "self.close", "pack.inner:Thing.close"),
        ("pack.inner:Deeper.work", "cls.make", "pack.inner:Thing.make"),
        ("pack.inner:Thing.close", f"{SUPER}.close", "base:Root.close"),
        ("pack.inner:Deeper.work", f"{SUPER}.close", "pack.inner:Thing.close"),
        ("pack.inner:Deeper", "work", "pack.inner:Deeper.work"),
        # Not known, or not to be guessed:
        ("pack.inner:Thing.work", "len", None),
        ("pack.inner:Thing.work", "unknown", None),
        ("pack.inner:Thing.work", "limit", None),
        ("pack.inner:Thing.work", "work", None),  # a method is no global name
        ("pack.inner:Thing.work", "self.state", None),
        ("pack.inner:Thing.work", "self.state.close", None),
        ("pack.inner:Thing.work", f"{UNKNOWN}.close", None),
        ("pack.inner:Thing.work", "assist.close", None),
        ("pack.inner:Thing.hidden", "helper", None),
        ("pack.inner:shadow", "assist", None),
        ("base:helper", "self.close", None),
        ("base:Loop", f"{SUPER}.absent", None),
        ("circular", "itself", None),
    ],
)
def test_resolve(library: Library, owner: str, dotted: str, meaning: str | None) -> None:
    assert library.resolve(Reference(owner, "uses", tuple(dotted.split(".")))) == meaning


def test_a_decorator_is_looked_up_outside_what_it_decorates(library: Library) -> None:
    reference = Reference("pack.inner:shadow", "decorated by", ("assist",))
    assert library.resolve(reference) == "base:helper"


def test_base_classes(library: Library) -> None:
    assert library.base_classes["pack.inner:Deeper"] == ["pack.inner:Thing"]
    assert library.base_classes["pack.inner:Thing"] == ["base:Root"]


@pytest.mark.parametrize(
    ("absolute", "module"),
    [("pack.inner", "pack.inner"), ("pack.absent", "pack"), ("other.part", "other")],
)
def test_find_module(library: Library, absolute: str, module: str) -> None:
    assert library.find_module(absolute) == module
