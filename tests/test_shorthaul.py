"""The catalog: every public name is there, and heavy ones come when they are first used."""

import subprocess
import sys

import pytest

import shorthaul


@pytest.mark.parametrize("name", shorthaul.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(shorthaul, name) is not None
    assert name in dir(shorthaul)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shorthaul' has no attribute 'jitter'"):
        _ = shorthaul.jitter


def test_torch_is_imported_only_when_a_name_needs_it() -> None:
    script = (
        "import sys, shorthaul as sh\n"
        "sh.meter, sh.settings, sh.errors\n"
        "assert 'torch' not in sys.modules, 'imported too early'\n"
        "sh.jit.CppSource\n"
        "assert 'torch' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
