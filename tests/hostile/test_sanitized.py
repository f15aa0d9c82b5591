"""Kernels that read what nobody vouches for, under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer."""

from pathlib import Path

import pytest

from tests.hostile.sanitized import require_clean, run_sanitized
from tests.hostile.sanitized_programs import FAULTS, PROGRAMS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
MODULE = "tests.hostile.sanitized_programs"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sanitized") / "cache"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_clean(name: str, cache: Path) -> None:
    sanitizers = "thread" if name == "ring" else "address,undefined"
    require_clean(run_sanitized(sanitizers, MODULE, name, cache=cache))


@pytest.mark.parametrize(("name", "report"), FAULTS)
def test_a_fault_is_found(name: str, report: str, cache: Path) -> None:
    sanitizers = "thread" if name == "race" else "address,undefined"
    done = run_sanitized(sanitizers, MODULE, name, cache=cache)
    assert done.returncode != 0
    assert report in done.stderr
    with pytest.raises(AssertionError):
        require_clean(done)
