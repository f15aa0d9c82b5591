"""`shorthaul advise` and `shorthaul fit`: what a script's step takes, and what would make it fit."""

from __future__ import annotations

import click

from shorthaul.cli.explain import import_object
from shorthaul.cli.scripts.run import PythonCommand, read_memory

_DIRECTORY = click.Path(exists=True, file_okay=False, writable=True, resolve_path=True)
_FILE = click.Path(dir_okay=False, resolve_path=True)


@click.command(cls=PythonCommand)
@click.option("--offload", "directory", type=_DIRECTORY, help="A directory for activations.")
@click.option("--no-trials", is_flag=True, help="Skip changes that have to be measured.")
@click.option("--save", "path", type=_FILE, help="Also write the advice as JSON to this file.")
@click.argument("words", metavar="SCRIPT|-m MODULE [ARGS]...", nargs=-1, required=True)
def advise(
    directory: str | None, no_trials: bool, path: str | None, words: tuple[str, ...]
) -> None:
    """Show what a script's step costs, and what to change.

    The script runs, unedited, until its model is called in training for the second time. Steps are
    measured on the inputs of that call; then the script ends.
    """
    _ask("advise", words, directory=directory, report=path, has_trials=not no_trials)


@click.command(cls=PythonCommand)
@click.option(
    "--memory",
    "memory_bytes",
    metavar="SIZE",
    callback=read_memory,
    required=True,
    help="The memory limit of the process, such as 8GiB.",
)
@click.option("--offload", "directory", type=_DIRECTORY, help="A directory for activations.")
@click.option("--dry", is_flag=True, help="Run nothing: SCRIPT is MODULE:FUNCTION.")
@click.option("--save", "path", type=_FILE, help="Also write the answer as JSON to this file.")
@click.argument(
    "words", metavar="SCRIPT|-m MODULE [ARGS]...|MODULE:FUNCTION", nargs=-1, required=True
)
def fit(
    memory_bytes: int,
    directory: str | None,
    dry: bool,
    path: str | None,
    words: tuple[str, ...],
) -> None:
    """Find the fastest way to train within a memory limit.

    With --dry nothing is run: MODULE:FUNCTION is called, with every tensor on the meta device, and returns a
    model and a batch, or a model, a batch and an optimizer.

    Exit code 1 when nothing fits.
    """
    if dry:
        if len(words) != 1 or directory is not None or path is not None:
            raise click.UsageError("--dry takes one MODULE:FUNCTION, and --memory alone.")
        _fit_dry(words[0], memory_bytes)
    else:
        _ask("fit", words, directory=directory, report=path, memory_bytes=memory_bytes)


def _ask(question: str, words: tuple[str, ...], **given: object) -> None:
    from shorthaul.integrations.run import RunWishes, run

    if words[0] == "-m" and len(words) == 1:
        raise click.UsageError("-m needs the name of a module.")
    run(RunWishes(question=question, **given), words)  # type: ignore[arg-type]


def _fit_dry(path: str, memory_bytes: int) -> None:
    import torch

    from shorthaul.advice import Needs
    from shorthaul.advice import fit as fit_model

    build = import_object(path)
    if not callable(build):
        raise click.ClickException(f"{path} is no function.")
    with torch.device("meta"):
        built = build()
    if not isinstance(built, tuple) or len(built) not in (2, 3):
        raise click.ClickException(
            f"{path} must return a model and a batch, or a model, a batch and an optimizer."
        )
    found = fit_model(
        built[0],
        built[1],
        memory=memory_bytes,
        optimizer=built[2] if len(built) == 3 else None,
        dry=True,
    )
    click.echo(found.describe())
    if isinstance(found, Needs) and not found.fits:
        raise click.exceptions.Exit(1)
