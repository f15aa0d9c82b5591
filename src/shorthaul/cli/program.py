"""The program itself: its verbs, and how every error ends.

| ends with                       | exit code |
| ------------------------------- | --------- |
| what was asked for              | 0         |
| an error, or a check that fails | 1         |
| words that make no command      | 2         |
| Ctrl-C                          | 130       |
"""

from __future__ import annotations

import platform
from typing import Any

import click

from shorthaul import __version__
from shorthaul.cli.bench import bench
from shorthaul.cli.cache import cache
from shorthaul.cli.claims import claims
from shorthaul.cli.completion import completion
from shorthaul.cli.demo import demo
from shorthaul.cli.doctor import doctor
from shorthaul.cli.explain import explain
from shorthaul.cli.parts.partition import partition
from shorthaul.cli.probes.packages import find_version
from shorthaul.cli.scripts.advise import advise, fit
from shorthaul.cli.scripts.report import report
from shorthaul.cli.scripts.run import run
from shorthaul.cli.tune import tune
from shorthaul.errors import ShorthaulError
from shorthaul.settings import settings

STOPPED_BY_USER = 130  # what shells give a program that Ctrl-C ended: 128 + SIGINT


class Program(click.Group):
    """A group of verbs that turns every error into one message and an exit code."""

    def invoke(self, context: click.Context) -> Any:
        """Run the chosen verb."""
        shows_traceback = bool(context.params["traceback"])
        try:
            shows_traceback = shows_traceback or settings.traceback == "on"
            return super().invoke(context)
        except (KeyboardInterrupt, click.Abort):
            click.echo("\nStopped.", err=True)
            context.exit(STOPPED_BY_USER)
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise  # click knows what to do with these
        except Exception as error:
            if shows_traceback:
                raise
            raise click.ClickException(_describe(error)) from error


def _describe(error: Exception) -> str:
    if isinstance(error, ShorthaulError):
        return str(error)
    return (
        f"{type(error).__name__}: {error}\n"
        "  shorthaul did not expect this. `shorthaul --traceback ...` shows where it happened."
    )


def _show_version(context: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    del parameter
    if is_wanted and not context.resilient_parsing:
        # From torch's metadata: importing it takes two seconds.
        click.echo(
            f"shorthaul {__version__}, torch {find_version('torch') or 'not installed'}, "
            f"Python {platform.python_version()}"
        )
        context.exit()


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions and exit.",
)
@click.option(
    "--traceback",
    is_flag=True,
    help="Show where in the code an error came from (also SHORTHAUL_TRACEBACK=on).",
)
def program(traceback: bool) -> None:
    """Train PyTorch models with less memory and less data movement."""
    del traceback  # read by Program.invoke


for verb in (
    run, report, advise, fit, partition, doctor, demo, bench, claims, explain, tune, cache, completion,
):  # fmt: skip
    program.add_command(verb)


def main() -> None:
    """Where the installed command `shorthaul` and `python -m shorthaul` start."""
    program(prog_name="shorthaul")
