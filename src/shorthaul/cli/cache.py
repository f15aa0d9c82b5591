"""`shorthaul cache`: compiled kernels, generated modules, tuning choices and built data sets on disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType
from rich.table import Table

from shorthaul.cli.console import json_option, make_console, print_json
from shorthaul.settings import settings
from shorthaul.units import format_bytes, format_seconds

if TYPE_CHECKING:  # they need torch
    from shorthaul.jit import CacheEntry, Choice

KINDS = ("kernels", "modules", "tuning", "datasets")


@dataclass(frozen=True)
class Contents:
    """Everything that lies in the cache directory."""

    directory: Path
    limit_bytes: int
    kernels: tuple[CacheEntry, ...]  # the most recently used first
    modules: tuple[Path, ...]  # generated Python, of which Triton makes kernels
    tuning: dict[str, Choice]  # by key
    datasets: tuple[Path, ...]

    def size_bytes(self, kind: str) -> int:
        """Bytes of one kind; a tuning choice is a line of text and counts as nothing."""
        if kind == "kernels":
            return sum(each.size_bytes for each in self.kernels)
        files = {"modules": self.modules, "datasets": self.datasets}.get(kind, ())
        return sum(each.stat().st_size for each in files)


def read_contents() -> Contents:
    """What the cache holds now."""
    from shorthaul.jit import KernelCache
    from shorthaul.jit.autotune import remembered_choices

    kernels = KernelCache()
    return Contents(
        settings.cache_directory,
        kernels.limit_bytes,
        tuple(reversed(kernels.entries())),
        tuple(sorted((settings.cache_directory / "modules").glob("*.py"))),
        remembered_choices(),
        tuple(sorted((settings.cache_directory / "datasets").glob("*.npz"))),
    )


def find_kernels(entries: Sequence[CacheEntry], wanted: str) -> list[CacheEntry]:
    """The kernels of that name, of that name with digest as profiles show it, or of that digest."""
    return [
        each
        for each in entries
        if wanted in (each.name, f"{each.name}_{each.digest[:8]}") or each.digest.startswith(wanted)
    ]


def require_kernels(contents: Contents, wanted: str) -> list[CacheEntry]:
    """The same, or an error that says what there is."""
    found = find_kernels(contents.kernels, wanted)
    if not found:
        names = sorted({each.name for each in contents.kernels})
        known = f"There are {', '.join(names)}." if names else "It is empty."
        raise click.ClickException(
            f"no kernel in {contents.directory} has the name or the digest {wanted!r}.\n"
            f"  {known} `shorthaul cache list` shows their digests."
        )
    return found


@click.group()
def cache() -> None:
    """Show or remove what shorthaul keeps on disk."""


@cache.command("list")
@json_option
def list_contents(as_json: bool) -> None:
    """List kernels, generated modules, tuning choices and data sets, with their sizes."""
    contents = read_contents()
    if as_json:
        print_json(describe_contents(contents))
        return
    console = make_console()
    console.print(str(contents.directory), soft_wrap=True)
    for table in render_contents(contents, time.time()):
        console.print()
        console.print(table)


def describe_contents(contents: Contents) -> dict[str, Any]:
    """The contents as plain values, for JSON."""
    return {
        "directory": str(contents.directory),
        "limit_bytes": contents.limit_bytes,
        "kernels": [describe_kernel(each) for each in contents.kernels],
        "modules": [describe_file(each) for each in contents.modules],
        "tuning": [describe_choice(key, choice) for key, choice in contents.tuning.items()],
        "datasets": [describe_file(each) for each in contents.datasets],
    }


def describe_file(path: Path) -> dict[str, Any]:
    """A generated module or a data set as plain values, for JSON."""
    return {"name": path.stem, "size_bytes": path.stat().st_size}


def describe_choice(key: str, choice: Choice) -> dict[str, Any]:
    """A tuning choice as plain values, for JSON."""
    return {
        "key": key,
        "choice": choice.name,
        "seconds": dict(choice.seconds),
        "failures": dict(choice.failures),
    }


def describe_kernel(entry: CacheEntry) -> dict[str, Any]:
    """A kernel as plain values, for JSON."""
    return {
        "name": entry.name,
        "digest": entry.digest,
        "size_bytes": entry.size_bytes,
        "used_at": entry.used_at,
        "compile_seconds": entry.compile_seconds,
        "directory": str(entry.directory),
    }


def render_contents(contents: Contents, now: float) -> list[RenderableType]:
    """A table for each kind of thing; a line for each kind that there is nothing of."""
    kernels = _table(
        f"kernels ({format_bytes(contents.size_bytes('kernels'))} of "
        f"{format_bytes(contents.limit_bytes)})",
        ("name", "digest", "size", "compiled in", "last used"),
        [
            (
                each.name,
                each.digest[:8],
                format_bytes(each.size_bytes),
                format_seconds(each.compile_seconds),
                f"{format_age(now - each.used_at)} ago",
            )
            for each in contents.kernels
        ],
    )
    tuning = _table(
        "tuning choices",
        ("key", "choice", "median", "measured"),
        [
            (
                key,
                choice.name,
                format_seconds(choice.seconds[choice.name]) if choice.seconds else "",
                f"{len(choice.seconds)}",
            )
            for key, choice in contents.tuning.items()
        ],
    )
    modules, datasets = (
        _table(
            f"{title} ({format_bytes(contents.size_bytes(kind))})",
            ("name", "size"),
            [(each.stem, format_bytes(each.stat().st_size)) for each in files],
        )
        for title, kind, files in (
            ("generated modules", "modules", contents.modules),
            ("data sets", "datasets", contents.datasets),
        )
    )
    return [kernels, modules, tuning, datasets]


def _table(
    title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> RenderableType:
    if not rows:
        return f"{title}: none"
    table = Table(title=title, title_justify="left")
    for heading in headings:
        is_text = heading in ("name", "digest", "key", "choice")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def format_age(seconds: float) -> str:
    """How long ago, in the unit that people would say.

    >>> format_age(40), format_age(7200), format_age(200_000)
    ('40 s', '2 h', '2 days')
    """
    if seconds < 60:
        return f"{max(0, seconds):.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min"
    return f"{seconds // 3600:.0f} h" if seconds < 172_800 else f"{seconds // 86_400:.0f} days"


@cache.command()
@click.argument("wanted", metavar="NAME-OR-DIGEST")
@json_option
def show(wanted: str, as_json: bool) -> None:
    """Show how a kernel was compiled, or how a schedule was chosen.

    NAME-OR-DIGEST is a kernel's name, the beginning of its digest, or the key of a tuning choice.
    """
    contents = read_contents()
    choice = contents.tuning.get(wanted)
    if choice is not None:
        if as_json:
            print_json(describe_choice(wanted, choice))
        else:
            click.echo(format_choice(wanted, choice))
        return
    found = require_kernels(contents, wanted)
    if as_json:
        print_json([describe_kernel(each) for each in found])
    else:
        click.echo("\n\n".join(describe_compilation(each) for each in found))


def format_choice(key: str, choice: Choice) -> str:
    """What was chosen, and how long each candidate took, the fastest first."""
    measured = sorted(choice.seconds.items(), key=lambda pair: pair[1])
    return "\n".join(
        (
            f"{key}: {choice.name}",
            *(f"  {format_seconds(seconds):>10}  {name}" for name, seconds in measured),
            *(f"  {'failed':>10}  {name} ({why})" for name, why in choice.failures.items()),
        )
    )


def describe_compilation(entry: CacheEntry) -> str:
    """Where a kernel lies, the command that made it, and what the compiler said."""
    command = (entry.directory / "compile.sh").read_text().splitlines()[-1]
    log = (entry.directory / "compile.log").read_text().strip()
    facts = {
        "digest": entry.digest,
        "source": entry.directory / "kernel.cpp",
        "object": f"{entry.library} ({format_bytes(entry.size_bytes)})",
        "last used": f"{format_age(time.time() - entry.used_at)} ago",
        "compiled": f"in {entry.compile_seconds:.2f} s by  {command}",
        "compiler": log or "said nothing",
    }
    lines = (f"  {name:<10} {value}" for name, value in facts.items())
    return "\n".join((f"{entry.name}_{entry.digest[:8]}", *lines))


@cache.command()
@click.option("--only", type=click.Choice(KINDS), help="Remove one kind of thing, keep the others.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(only: str | None, yes: bool) -> None:
    """Remove kernels, modules, tuning choices and data sets. All are made again when needed."""
    contents = read_contents()
    kinds = KINDS if only is None else (only,)
    counts = {
        "kernels": f"{len(contents.kernels)} kernels",
        "modules": f"{len(contents.modules)} generated modules",
        "tuning": f"{len(contents.tuning)} tuning choices",
        "datasets": f"{len(contents.datasets)} data sets",
    }
    what = ", ".join(counts[kind] for kind in kinds)
    size = format_bytes(sum(contents.size_bytes(kind) for kind in kinds))
    if not yes and not click.confirm(f"Remove {what} ({size}) from {contents.directory}?"):
        raise click.ClickException("nothing was removed.")
    for kind in kinds:
        remove(kind, contents)
    click.echo(f"Removed {what} ({size}).")


def remove(kind: str, contents: Contents) -> None:
    """Remove everything of one kind."""
    from shorthaul.jit import KernelCache
    from shorthaul.jit.autotune import forget_choices

    if kind == "kernels":
        KernelCache().clear()
    elif kind == "tuning":
        forget_choices()
    elif kind == "modules":  # with what Python has compiled of them
        shutil.rmtree(contents.directory / "modules", ignore_errors=True)
    else:
        for each in contents.datasets:
            each.unlink(missing_ok=True)
