"""`shorthaul explain`: how a kernel, layer or plan came to be, stage by stage."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shorthaul.cli.cache import read_contents, require_kernels
from shorthaul.explain import explain as explain_subject

if TYPE_CHECKING:  # it needs torch
    from shorthaul.jit import CacheEntry


@click.command()
@click.argument("subject", metavar="MODULE:OBJECT|KERNEL")
def explain(subject: str) -> None:
    """Print every stage of something that shorthaul made.

    MODULE:OBJECT is imported, with the current directory on the path: `my_layers:layer`. KERNEL is
    the name of a compiled kernel, or the beginning of its digest.
    """
    if ":" in subject:
        click.echo(explain_subject(import_object(subject)))
    else:
        found = require_kernels(read_contents(), subject)
        click.echo("\n\n".join(explain_entry(each) for each in found))


def explain_entry(entry: CacheEntry) -> str:
    """The stages of a compiled kernel that is not loaded: command and source, as they were."""
    command = (entry.directory / "compile.sh").read_text()
    source = (entry.directory / "kernel.cpp").read_text().rstrip()
    return (
        f"{entry.name}_{entry.digest[:8]}\n"
        f"in {entry.directory}, compiled in {entry.compile_seconds:.2f} s by\n{command}\n{source}"
    )


def import_object(path: str) -> object:
    """The object that `module:object.attribute` names, or an error that says which part is wrong."""
    module_name, _, names = path.partition(":")
    if not module_name or not names:
        raise click.UsageError(f"expected MODULE:OBJECT such as my_layers:layer, got {path!r}.")
    found: object = _import_module(module_name)
    for name in names.split("."):
        if not hasattr(found, name):
            close = difflib.get_close_matches(name, dir(found), n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise click.ClickException(f"{path}: there is no {name!r}.{hint}")
        found = getattr(found, name)
    return found


def _import_module(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise click.ClickException(
                f"there is no module {name!r}, neither installed nor in {here}."
            ) from error
        raise click.ClickException(_describe_failed_import(name, error)) from error
    except Exception as error:
        raise click.ClickException(_describe_failed_import(name, error)) from error


def _describe_failed_import(name: str, error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"importing {name} failed: {type(error).__name__}: {error}\n"
        f"  in {place.filename}, line {place.lineno}: {place.line}"
    )
