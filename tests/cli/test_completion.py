"""`shorthaul completion`: scripts that shells take, and completions that they ask for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shorthaul.cli.completion import SHELLS


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_with_how_to_install_it(shorthaul, shell: str) -> None:
    shown = shorthaul("completion", shell)
    assert shown.exit_code == 0
    assert "_SHORTHAUL_COMPLETE" in shown.stdout
    assert shown.stdout.endswith(f"# To install it, once:  {SHELLS[shell]}\n")


def test_zsh_finds_its_first_line_first(shorthaul) -> None:
    assert shorthaul("completion", "zsh").stdout.startswith("#compdef shorthaul\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_its_script(shorthaul, tmp_path: Path, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(shorthaul("completion", shell).stdout)
    done = subprocess.run((program, "-n", str(script)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("shorthaul do", ["plain,doctor"]),
        ("shorthaul cache ", ["plain,clear", "plain,list", "plain,show"]),
        ("shorthaul bench ro", ["plain,rows"]),
    ],
)
def test_verbs_and_names_are_completed(tmp_path: Path, words: str, completed: list[str]) -> None:
    (tmp_path / "benchmarks" / "questions").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "shorthaul"\n')
    (tmp_path / "benchmarks" / "questions" / "bench_rows.py").write_text('"""How many rows?"""\n')
    asked = {
        "_SHORTHAUL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        (sys.executable, "-m", "shorthaul"),
        cwd=tmp_path,
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == completed
