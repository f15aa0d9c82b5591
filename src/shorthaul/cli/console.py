"""Where the command line prints: results on standard output, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.text import Text

from shorthaul.settings import settings

Verb = TypeVar("Verb", bound=Callable[..., Any])

WIDTH_OF_FILES = 100  # what is piped or written has no terminal to ask


def make_console() -> Console:
    """A console for results. Colors and the terminal's width only where there is a terminal.

    Square brackets are printed as they are: paths and names of extras have them.
    """
    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, width=None if is_terminal else WIDTH_OF_FILES)


def print_json(value: object) -> None:
    """Print `value` for machines: one JSON document, and nothing else, on standard output."""
    click.echo(json.dumps(value, indent=1))


def json_option(verb: Verb) -> Verb:
    """Give a verb the option `--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(verb)


@contextmanager
def activity(first: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being done now, and vanishes at the end.

    Yields a function that changes the words. Shown as `settings.progress` wants it.
    """
    console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
    if settings.progress == "off" or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(Text(first)) as status:
        yield lambda words: status.update(Text(words))
