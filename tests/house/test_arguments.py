"""What is public and takes arguments lists each by name, with its default, and no others."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import shorthaul
from shorthaul.errors import MissingExtraError

ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (?=\S)")
REFERENCE = re.compile(r"arguments\s+are\s+those\s+of\s+`(?:sh\.)?([\w.]+)`")
MADE_BY = re.compile(r"\bMade by\b")


def public_things() -> Iterator[tuple[str, Any]]:
    """Everything that a package lists, once, and the public methods of its classes."""
    packages = [each.name for each in pkgutil.iter_modules(shorthaul.__path__) if each.ispkg]
    found: dict[int, tuple[str, Any]] = {}
    for name in ("shorthaul", *(f"shorthaul.{each}" for each in packages)):
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            try:
                thing = getattr(module, public)
            except MissingExtraError:  # of a host that is not installed here
                continue
            is_error = inspect.isclass(thing) and issubclass(thing, Exception)
            if str(getattr(thing, "__module__", "")).startswith("shorthaul") and not is_error:
                found.setdefault(id(thing), (public, thing))
    for public, thing in found.values():
        yield public, thing
        if inspect.isclass(thing):
            for name, method in vars(thing).items():
                function = getattr(method, "__func__", method)
                if not name.startswith("_") and inspect.isfunction(function):
                    yield f"{public}.{name}", function


def is_data(thing: Any) -> bool:
    return inspect.isclass(thing) and (dataclasses.is_dataclass(thing) or issubclass(thing, tuple))


def parameters_of(thing: Any) -> dict[str, bool]:
    """What a caller may pass, and whether that has a default other than None."""
    if not callable(thing) or (inspect.isclass(thing) and MADE_BY.search(thing.__doc__ or "")):
        return {}
    if is_data(thing):
        fields = inspect.signature(thing).parameters
        return {name: False for name in fields if not name.startswith("_")}
    constructor = thing
    if inspect.isclass(thing):
        owner = next(base for base in thing.__mro__ if "__init__" in vars(base))
        if not owner.__module__.startswith("shorthaul"):
            return {}
        constructor = vars(owner)["__init__"]
    parameters = inspect.signature(constructor).parameters.values()
    nothing = (None, inspect.Parameter.empty, ())
    return {
        each.name: not any(each.default is value for value in nothing)
        for each in parameters
        if each.name not in ("self", "cls") and not each.name.startswith("_")
    }


def listed_arguments(thing: Any) -> dict[str, str]:
    """What a docstring says under `Args:` about each name."""
    _, _, block = (inspect.getdoc(thing) or "").partition("\nArgs:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in block.splitlines():
        if line and not line.startswith("    "):
            break
        if entry := ENTRY.match(line):
            names = entry[1].split(", ")
        found |= {name: found.get(name, "") + line for name in names}
    return found


def remarked_fields(thing: Any) -> set[str]:
    """The fields of a class of data, its own and inherited, with a remark behind or above them."""
    lines = [
        line
        for each in thing.__mro__
        if is_data(each) and each is not tuple
        for line in textwrap.dedent(inspect.getsource(each)).splitlines()
    ]
    fields = (
        (above, line, re.match(r" {4}(\w+): ", line)) for above, line in itertools.pairwise(lines)
    )
    return {
        field[1]
        for above, line, field in fields
        if field and ("  # " in line or above.startswith("    # "))
    }


def find_problems(name: str, thing: Any, listed_by: Callable[[str], set[str]]) -> list[str]:
    """Arguments without a word about them or their default, and words about no argument."""
    parameters, listed = parameters_of(thing), listed_arguments(thing)
    elsewhere = remarked_fields(thing) if is_data(thing) else set()
    for other in REFERENCE.findall(inspect.getdoc(thing) or ""):
        elsewhere |= listed_by(other)
    problems = []
    for each, has_default in parameters.items() if len(parameters) > 1 else ():
        if each not in listed and each not in elsewhere:
            problems.append(f"{name} does not say what {each} is")
        elif has_default and each in listed and "default" not in listed[each]:
            problems.append(f"{name} does not say what the default of {each} is")
    unknown = [each for each in listed if each not in parameters]
    return problems + [f"{name} explains {each}, which it does not take" for each in unknown]


def test_every_public_thing_lists_its_arguments() -> None:
    things = dict(public_things())
    problems = [
        problem
        for name, thing in things.items()
        for problem in find_problems(name, thing, lambda other: {*listed_arguments(things[other])})
    ]
    assert len(things) > 200
    assert not problems, "\n".join(problems)


def listing(first: int, second: int = 3) -> None:
    """Does nothing.

    Args:
        first: One number.
        second: Another,
            which has a default.
    """


def wordless(first: int, second: int) -> None:
    """Does nothing."""


def outdated(first: int, second: int = 3) -> None:
    """Does nothing.

    Args:
        first: One number.
        second: Another.
        third: Of other days.
    """


def referring(first: int, second: int = 3) -> None:
    """Does nothing. Its arguments are those of `listing`."""


class Remarked(NamedTuple):
    """Two numbers."""

    first: int  # one number
    second: int = 3


class Given:
    """Made by `listing`."""

    def __init__(self, first: int, second: int) -> None: ...


@pytest.mark.parametrize(
    ("thing", "problems"),
    [
        (listing, []),
        (referring, []),
        (Given, []),
        (wordless, ["it does not say what first is", "it does not say what second is"]),
        (Remarked, ["it does not say what second is"]),
        (
            outdated,
            [
                "it does not say what the default of second is",
                "it explains third, which it does not take",
            ],
        ),
    ],
)
def test_a_missing_or_outdated_argument_is_found(thing: Any, problems: list[str]) -> None:
    assert find_problems("it", thing, lambda _: {"first", "second"}) == problems
