"""Kernels that read what nobody vouches for, under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer."""

from pathlib import Path

import pytest

from tests.hostile.sanitized import require_clean, run_sanitized
from tests.hostile.sanitized_programs import FAULTS, PROGRAMS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
# Those whose kernels share work among threads.
IN_TEAMS = ("sampling", "candidates", "negatives", "indexes", "rows", "relational", "ring")
MODULE = "tests.hostile.sanitized_programs"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sanitized") / "cache"


@pytest.mark.parametrize("machine", ["here", "avx2"])
@pytest.mark.parametrize("name", [each for each in PROGRAMS if each != "ring"])
def test_memory_and_arithmetic_of_a_program_are_clean(name: str, machine: str, cache: Path) -> None:
    require_clean(run_sanitized("address,undefined", MODULE, name, machine, cache=cache))


@pytest.mark.parametrize("name", IN_TEAMS)
def test_threads_of_a_program_are_clean(name: str, cache: Path) -> None:
    require_clean(run_sanitized("thread", MODULE, name, "teams", cache=cache))


@pytest.mark.parametrize(("name", "report"), FAULTS)
def test_a_fault_is_found(name: str, report: str, cache: Path) -> None:
    sanitizers = "thread" if name in ("race", "shared") else "address,undefined"
    done = run_sanitized(sanitizers, MODULE, name, "teams", cache=cache)
    assert done.returncode != 0
    assert report in done.stderr
    with pytest.raises(AssertionError):
        require_clean(done)
