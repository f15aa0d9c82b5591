"""Printing: JSON alone on standard output, progress only where it is wanted."""

import json

import click
import pytest
from rich.text import Text

from shorthaul.cli.console import WIDTH_OF_FILES, activity, json_option, make_console, print_json
from shorthaul.settings import settings


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, 2.5, None]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, 2.5, None]}


def test_what_is_not_a_terminal_gets_no_colors_and_a_fixed_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = make_console()
    console.print(Text("plain", "bold red"), "[/as it is]")
    assert console.width == WIDTH_OF_FILES
    assert capsys.readouterr().out == "plain [/as it is]\n"


def test_the_json_option_is_passed_on() -> None:
    @json_option
    def verb(as_json: bool) -> None:
        """Unused."""

    (option,) = click.command()(verb).params
    assert (option.name, option.opts) == ("as_json", ["--json"])


@pytest.mark.parametrize(("wish", "is_shown"), [("auto", False), ("off", False), ("on", True)])
def test_activity_is_shown_as_the_setting_says(
    capsys: pytest.CaptureFixture[str], wish: str, is_shown: bool
) -> None:
    with settings.override(progress=wish), activity("starting") as say:
        say("measuring [/it]")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("measuring" in shown.err or "starting" in shown.err) == is_shown
