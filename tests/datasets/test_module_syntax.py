"""One file -> scopes and references: what is noted, and what must not be."""

import textwrap

import pytest

from shorthaul.datasets.module_syntax import SUPER, UNKNOWN, ModuleSyntax, parse_module


def parse(source: str, name: str = "sample", *, is_package: bool = False) -> ModuleSyntax:
    return parse_module(name, textwrap.dedent(source).encode(), is_package=is_package)


def references(syntax: ModuleSyntax, owner: str) -> set[tuple[str, tuple[str, ...]]]:
    return {(each.verb, each.dotted) for each in syntax.references if each.owner == owner}


def test_definitions_get_qualified_names() -> None:
    syntax = parse(
        """
        class Shape:
            class Corner:
                def move(self): pass
            @property
            def size(self): pass
            @size.setter
            def size(self, value): pass
        def outer():
            def inner(): pass
        """
    )
    assert {name: scope.kind for name, scope in syntax.scopes.items()} == {
        "sample": "module",
        "sample:Shape": "class",
        "sample:Shape.Corner": "class",
        "sample:Shape.Corner.move": "function",
        "sample:Shape.size": "function",
        "sample:Shape.size#2": "function",
        "sample:outer": "function",
        "sample:outer.inner": "function",
    }
    assert references(syntax, "sample:Shape.size#2") == {
        ("decorated by", ("size", "setter")),
        ("takes", ("self",)),
        ("takes", ("value",)),
    }


def test_every_verb() -> None:
    syntax = parse(
        """
        def work(first, *rest, key=DEFAULT):
            global counter
            counter = first.size
            self.total = make(first, width=3).area
            os.path.exists(key)
            super().work()
            try:
                lock.acquire()
            except (OSError, zipfile.BadZipFile) as problem:
                raise ValueError(problem) from None
        """
    )
    assert references(syntax, "sample:work") == {
        ("takes", ("first",)),
        ("takes", ("rest",)),
        ("takes", ("key",)),
        ("uses", ("DEFAULT",)),
        ("writes", ("counter",)),
        ("uses", ("first", "size")),
        ("uses", ("first",)),
        ("writes", ("self", "total")),
        ("uses", ("self",)),
        ("uses", (UNKNOWN, "area")),
        ("calls", ("make",)),
        ("passes", ("width",)),
        ("runs", ("os", "path", "exists")),
        ("uses", ("os", "path")),
        ("uses", ("os",)),
        ("uses", ("key",)),
        ("runs", (SUPER, "work")),
        ("calls", ("super",)),
        ("runs", ("lock", "acquire")),
        ("uses", ("lock",)),
        ("catches", ("OSError",)),
        ("catches", ("zipfile", "BadZipFile")),
        ("raises", ("ValueError",)),
        ("uses", ("problem",)),
    }
    scope = syntax.scopes["sample:work"]
    assert scope.bound - scope.shared == {"first", "rest", "key", "problem"}


def test_a_class_inherits_and_has_attributes() -> None:
    syntax = parse("class Small(base.Thing, metaclass=Meta):\n    limit = 3\n")
    assert references(syntax, "sample:Small") == {
        ("inherits", ("base", "Thing")),
        ("passes", ("metaclass",)),
        ("uses", ("Meta",)),
        ("writes", (UNKNOWN, "limit")),
    }


def test_a_result_that_is_awaited_and_dropped_is_run() -> None:
    syntax = parse("async def work():\n    await send()\n    a = await receive()\n")
    assert ("runs", ("send",)) in references(syntax, "sample:work")
    assert ("calls", ("receive",)) in references(syntax, "sample:work")


@pytest.mark.parametrize(
    ("is_package", "statement", "module", "target"),
    [
        (False, "from . import events", "pack", "pack.events"),
        (True, "from . import events", "pack.sample", "pack.sample.events"),
        (False, "from .events import Handle as events", "pack.events", "pack.events.Handle"),
        (False, "from os import events", "os", "os.events"),
        (False, "import os.path as events", "os.path", "os.path"),
    ],
)
def test_imports(is_package: bool, statement: str, module: str, target: str) -> None:
    syntax = parse(statement, "pack.sample", is_package=is_package)
    assert syntax.imported_modules == [module]
    assert syntax.imported_names == {"events": target}


def test_a_plain_import_binds_the_top_and_a_star_is_remembered() -> None:
    syntax = parse("import os.path\nfrom socket import *\n")
    assert syntax.imported_names == {"os": "os"}
    assert syntax.star_imports == ["socket"]


@pytest.mark.parametrize(
    ("body", "returned"),
    [
        ("return hidden(secret.value)", {"object"}),
        ("return", set()),
        ("yield hidden(secret)", {"items in turn"}),
        ("yield from hidden(secret)", {"items in turn"}),
        ("return (yield hidden(secret))", {"object", "items in turn"}),
        ("return [hidden(each) for each in secret]", {"collection"}),
    ],
)
def test_what_is_returned_is_the_label_and_nothing_else(body: str, returned: set[str]) -> None:
    syntax = parse(f"def work(given) -> Annotation:\n    {body}\n")
    assert syntax.scopes["sample:work"].returned == returned
    assert references(syntax, "sample:work") == {("takes", ("given",))}
    assert dict(syntax.scopes["sample:work"].traits) | {"parameters": 1} == dict(
        parse("def work(given): pass").scopes["sample:work"].traits
    )


def test_traits_count_own_statements_only() -> None:
    syntax = parse(
        """
        async def work(first, second=2, *, third=3, fourth, **others):
            if first:
                for each in second: assert each
            while third: pass
            with fourth: first = 1
            def inner():
                if a: b = 1
        """
    )
    traits = {name: count for name, count in syntax.scopes["sample:work"].traits.items() if count}
    assert traits == {
        "is asynchronous": 1,
        "parameters": 4,
        "parameters with a default": 2,
        "takes any keyword": 1,
        "branches": 1,
        "loops": 2,
        "assertions": 1,
        "contexts": 1,
        "assignments": 1,
    }
    assert syntax.scopes["sample:work.inner"].traits["is nested"] == 1


def test_warnings_of_old_source_are_not_passed_on() -> None:
    parse(r'pattern = "\d"')


def test_source_that_is_not_python() -> None:
    with pytest.raises(SyntaxError):
        parse("def :")
