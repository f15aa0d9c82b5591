"""`shorthaul run`: an unedited script, with what was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import click

from shorthaul.units import parse_bytes


class PythonCommand(click.Command):
    """Takes its words as Python does: what follows a script or `-m module` belongs to that."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """End our own options where Python's words begin."""
        takes_value = {
            name
            for each in self.params
            if isinstance(each, click.Option) and not each.is_flag
            for name in each.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "-m", "--"):
            at += 2 if args[at] in takes_value else 1
        if args[at : at + 1] != ["--"]:
            args = [*args[:at], "--", *args[at:]]
        return super().parse_args(context, args)


def read_memory(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """A size in words, such as 8GiB."""
    del context, parameter
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def require_report(path: Path) -> None:
    """Refuse, before anything long begins, a report that could not be written at its end."""
    from shorthaul.integrations.script_report import is_page
    from shorthaul.pages.charts import require_charts

    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no directory {path.parent}.", param_hint="--report")
    if is_page(os.fspath(path)):
        require_charts()


@click.command(cls=PythonCommand)
@click.option(
    "--memory",
    "memory_bytes",
    metavar="SIZE",
    callback=read_memory,
    help="Keep, offload or recompute activations, whichever is fastest, so that the process "
    "(under torchrun, each rank) fits, such as 8GiB.",
)
@click.option(
    "--offload",
    "directory",
    type=click.Path(exists=True, file_okay=False, writable=True, resolve_path=True),
    help="Offload activations to this directory; alone, all of them.",
)
@click.option("--no-recompute", is_flag=True, help="With --memory, compute nothing again.")
@click.option("--replace-convs", is_flag=True, help="Compute convolutions by what is faster.")
@click.option("--accelerate", is_flag=True, help="Compute PyG's and DGL's layers by shorthaul.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, resolve_path=True),
    help="Write a report to this file: a page if it ends in .html, else JSON.",
)
@click.argument("words", metavar="SCRIPT|-m MODULE [ARGS]...", nargs=-1, required=True)
def run(
    memory_bytes: int | None,
    directory: str | None,
    no_recompute: bool,
    replace_convs: bool,
    accelerate: bool,
    report: str | None,
    words: tuple[str, ...],
) -> None:
    """Run an unedited script with the given options.

    The script's exit code, signals, input, arguments and tracebacks are its own. At the end a table on
    standard error says what was changed, what was left and why.
    """
    from shorthaul.integrations.run import RunWishes
    from shorthaul.integrations.run import run as run_script

    if words[0] == "-m" and len(words) == 1:
        raise click.UsageError("-m needs the name of a module.")
    if report is not None:
        require_report(Path(report))
    wishes = RunWishes(
        memory_bytes=memory_bytes,
        directory=directory,
        offloads=memory_bytes is not None or directory is not None,
        recomputes=not no_recompute,
        replaces_convs=replace_convs,
        accelerates=accelerate,
        report=report,
    )
    run_script(wishes, words)
