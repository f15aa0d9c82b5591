"""The program: fast to start, one message per error, exit codes as documented."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shorthaul as sh
from shorthaul.cli.program import program
from shorthaul.settings import settings

VERBS = (
    "advise",
    "bench",
    "cache",
    "claims",
    "completion",
    "demo",
    "doctor",
    "explain",
    "fit",
    "partition",
    "report",
    "run",
    "tune",
)


def run(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        (sys.executable, "-m", "shorthaul", *words),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version_names_torch_and_python(shorthaul) -> None:
    shown = shorthaul("--version")
    assert shown.exit_code == 0
    assert re.fullmatch(
        rf"shorthaul {re.escape(sh.__version__)}, torch \d+\.\d+\S*, Python 3\.\d+\.\d+\S*\n",
        shown.output,
    )


def test_help_lists_every_verb_with_a_whole_sentence(shorthaul) -> None:
    shown = shorthaul("--help")
    assert shown.exit_code == 0
    assert sorted(program.commands) == sorted(VERBS)
    listed = dict(re.findall(r"^  (\w+)  +(\S.*)$", shown.output.split("Commands:")[1], re.M))
    assert sorted(listed) == sorted(VERBS)
    assert all(text.endswith(".") and not text.endswith("...") for text in listed.values())


def test_nothing_that_only_prints_words_imports_torch() -> None:
    script = """
import contextlib, io, json, sys
from shorthaul.cli.program import program
loaded = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        program(words, prog_name="shorthaul")
    loaded[" ".join(words)] = [bool(shown.getvalue()), "torch" in sys.modules]
print(json.dumps(loaded))
"""
    commands = [["--version"], ["--help"], ["completion", "bash"], ["cache", "clear", "--help"]]
    commands += [[verb, "--help"] for verb in VERBS]
    done = subprocess.run(
        (sys.executable, "-c", script, json.dumps(commands)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {" ".join(words): [True, False] for words in commands}


def test_the_module_is_the_command() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"shorthaul {sh.__version__}, ")


@pytest.mark.parametrize("words", [["docter"], ["doctor", "--swift"], ["completion", "dos"]])
def test_words_that_make_no_command_exit_with_2(shorthaul, words: list[str]) -> None:
    shown = shorthaul(*words)
    assert shown.exit_code == 2
    assert "Usage: shorthaul" in shown.output


def test_an_error_is_one_message_and_exit_code_1(shorthaul) -> None:
    shown = shorthaul("cache", "list", SHORTHAUL_CACHE_LIMIT="much")
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert shown.stderr == (
        "Error: SHORTHAUL_CACHE_LIMIT is 'much', but expected bytes such as '2GiB'.\n"
    )


def test_an_unexpected_error_says_how_to_see_more(shorthaul, tmp_path: Path) -> None:
    with settings.override(cache_directory=tmp_path / ("x" * 300)):
        shown = shorthaul("cache", "list")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Error: OSError: [Errno 36] File name too long")
    assert "`shorthaul --traceback ...` shows where it happened." in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("words", "environment"),
    [(("--traceback",), {}), ((), {"SHORTHAUL_TRACEBACK": "on"})],
    ids=["option", "environment"],
)
def test_a_traceback_is_shown_when_asked_for(words, environment) -> None:
    done = run(*words, "explain", "shorthaul.units:parse_bytes", **environment)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("shorthaul.errors.ExplainError: cannot explain")


def test_a_bad_wish_for_tracebacks_is_an_error_like_any_other(shorthaul) -> None:
    shown = shorthaul("bench", "--list", SHORTHAUL_TRACEBACK="perhaps")
    assert shown.exit_code == 1
    assert shown.stderr == "Error: SHORTHAUL_TRACEBACK is 'perhaps', but expected one of on, off.\n"


def test_control_c_exits_as_shells_expect(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = run("explain", "interrupted:layer", cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr == "\nStopped.\n"
