"""`shorthaul bench`: run the benchmarks of a checkout, each a question with measured answers."""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from shorthaul.cli.console import json_option, print_json
from shorthaul.errors import CudaUnavailableError
from shorthaul.units import format_seconds


@dataclass(frozen=True)
class Benchmark:
    """One file `benchmarks/questions/bench_<name>.py`."""

    name: str
    path: Path
    question: str  # the first line of its docstring


def find_checkout(start: Path) -> Path | None:
    """The nearest directory, from `start` upwards, that is shorthaul's source with benchmarks."""
    for directory in (start, *start.parents):
        project = directory / "pyproject.toml"
        if (directory / "benchmarks").is_dir() and project.is_file():
            is_ours = 'name = "shorthaul"' in project.read_text(errors="replace")
            if is_ours:
                return directory
    return None


def list_benchmarks(checkout: Path, *, is_gpu: bool = False) -> tuple[Benchmark, ...]:
    """Every benchmark of a checkout that is asked of the CPU, or of a GPU, by name."""
    folder = checkout / "benchmarks" / "questions"
    return tuple(
        Benchmark(path.stem.removeprefix("bench_"), path, _read_question(path))
        for path in sorted((folder / "gpu" if is_gpu else folder).glob("bench_*.py"))
    )


def choose_benchmarks(known: Sequence[Benchmark], names: Sequence[str]) -> list[Benchmark]:
    """Those named, in the order of the command line; all when none is named."""
    by_name = {each.name: each for each in known}
    chosen = []
    for name in names:
        short = Path(name).stem.removeprefix("bench_")
        if short not in by_name:
            close = difflib.get_close_matches(short, by_name, n=3, cutoff=0.5)
            hint = f"Did you mean {' or '.join(close)}?" if close else "There is no such file."
            raise click.ClickException(f"no benchmark is called {name!r}. {hint}")
        chosen.append(by_name[short])
    return chosen or list(known)


def _complete_name(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    del parameter
    checkout, is_gpu = find_checkout(Path.cwd()), bool(context.params.get("is_gpu"))
    return [
        CompletionItem(each.name, help=each.question)
        for each in (list_benchmarks(checkout, is_gpu=is_gpu) if checkout else ())
        if each.name.startswith(begun)
    ]


@click.command()
@click.argument("names", nargs=-1, shell_complete=_complete_name)
@click.option("--list", "is_listing", is_flag=True, help="List the benchmarks, run none.")
@click.option("--gpu", "is_gpu", is_flag=True, help="Those that are asked of a GPU.")
@click.option("--quick", "is_quick", is_flag=True, help="A rehearsal that is not in the ledger.")
@json_option
@click.pass_context
def bench(
    context: click.Context,
    names: tuple[str, ...],
    is_listing: bool,
    is_gpu: bool,
    is_quick: bool,
    as_json: bool,
) -> None:
    """Run the benchmarks of a checkout: all, or those named.

    Each runs in a process of its own and adds its figures to benchmarks/ledger. --gpu runs those
    that time a GPU by events on it; peers that are not installed are rows that say so. --json goes
    with --list.
    """
    if as_json and not is_listing:
        raise click.UsageError("--json goes with --list; figures are in benchmarks/ledger.")
    checkout = find_checkout(Path.cwd())
    if checkout is None:
        raise click.ClickException(
            f"{Path.cwd()} is not inside a checkout of shorthaul: benchmarks are not installed with "
            "the package.\n  Clone the repository and run `shorthaul bench` there."
        )
    known = list_benchmarks(checkout, is_gpu=is_gpu)
    if not known:
        raise click.ClickException(f"{checkout / 'benchmarks' / 'questions'} has no bench_*.py.")
    chosen = choose_benchmarks(known, names)
    if as_json:
        print_json([{"name": each.name, "question": each.question} for each in chosen])
    elif is_listing:
        width = max(len(each.name) for each in chosen)
        for each in chosen:
            click.echo(f"{each.name:<{width}}  {each.question}")
    else:
        if is_gpu:
            _require_gpu()
        failed = run_benchmarks(checkout, chosen, ["--quick"] if is_quick else [])
        if failed:
            click.echo(f"Failed: {', '.join(failed)}.", err=True)
        context.exit(1 if failed else 0)


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            "PyTorch finds no CUDA device that could be measured.\n"
            "  `shorthaul bench --gpu --list` lists what would be; `make test` rehearses it on pretended "
            "devices."
        )


def run_benchmarks(
    checkout: Path, chosen: Sequence[Benchmark], options: Sequence[str] = ()
) -> list[str]:
    """Run each in a process of its own; returns the names of those that failed."""
    failed = []
    for number, each in enumerate(chosen, 1):
        click.echo(f"[{number}/{len(chosen)}] {each.name}: {each.question}", err=True)
        started = time.perf_counter()
        # As a module of the checkout, so that `from benchmarks.measuring.measure import ...` works.
        place = each.path.relative_to(checkout).with_suffix("").parts
        command = (sys.executable, "-m", ".".join(place), *options)
        done = subprocess.run(command, cwd=checkout, check=False)
        state = "done" if done.returncode == 0 else f"failed with exit code {done.returncode}"
        taken = format_seconds(time.perf_counter() - started)
        click.echo(f"[{number}/{len(chosen)}] {each.name} {state} after {taken}", err=True)
        if done.returncode != 0:
            failed.append(each.name)
    return failed


def _read_question(path: Path) -> str:
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text()))
    except SyntaxError:  # it will say so itself when it runs
        docstring = None
    return (docstring or "").partition("\n")[0]
