"""What the pages say is what the ledger and the code say, and the ledger was only ever added to."""

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import ledger
from benchmarks.rendering.render import find_stale_pages
from tests.benchmarks.runs import make_run

ROOT = Path(__file__).parents[2]


def find_rewritten(versions: Sequence[bytes]) -> int | None:
    """The first version that does not begin with the one before it; `None` when all do."""
    for number, (before, after) in enumerate(itertools.pairwise(versions), start=1):
        if not after.startswith(before):
            return number
    return None


def read_versions(path: Path, root: Path) -> list[bytes]:
    """Each committed version of a file, oldest first, then the present one."""
    name = str(path.relative_to(root))
    commits = _git(root, "log", "--first-parent", "--reverse", "--format=%H", "--", name)
    versions = [_git(root, "show", f"{commit}:{name}") for commit in commits.decode().split()]
    return [*versions, path.read_bytes()]


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_every_page_says_what_its_sources_say() -> None:
    stale = [str(page.relative_to(ROOT)) for page in find_stale_pages()]
    assert stale == [], "run `make results`"


def test_every_run_in_the_ledger_has_its_form() -> None:
    for question in ledger.list_questions():
        assert ledger.read_runs(question)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="history is known in a clone only")
def test_the_ledger_was_only_ever_added_to() -> None:
    for path in sorted(ledger.DIRECTORY.glob("*.jsonl")):
        assert find_rewritten(read_versions(path, ROOT)) is None, f"{path.name} was rewritten"


def test_every_question_has_its_benchmark() -> None:
    files = (ROOT / "benchmarks" / "questions").glob("**/bench_*.py")
    assert set(ledger.list_questions()) <= {path.stem.removeprefix("bench_") for path in files}


def test_a_stale_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- table: rows -->\n| 100x faster |\n<!-- end table -->\n")
    ledger.append(make_run(), tmp_path / "ledger")
    assert list(find_stale_pages(tmp_path, tmp_path / "ledger")) == [page]


def test_a_rewritten_ledger_is_found(tmp_path: Path) -> None:
    def commit(text: str) -> None:
        path.write_text(text)
        _git(tmp_path, "add", path.name)
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        _git(tmp_path, *author, "commit", "-qm", "a change")

    path = tmp_path / "rows.jsonl"
    _git(tmp_path, "init", "-q")
    commit("one\n")
    commit("one\ntwo\n")
    assert find_rewritten(read_versions(path, tmp_path)) is None
    path.write_text("one\ntwo, but better\n")
    assert find_rewritten(read_versions(path, tmp_path)) == 2
    commit("one\n")
    assert find_rewritten(read_versions(path, tmp_path)) == 2
