"""The catalogue: torch comes with the first name that needs it, and every name comes as itself."""

import subprocess
import sys

import pytest

import shorthaul as sh


def run(script: str) -> str:
    done = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout


def test_torch_comes_with_the_first_name_that_needs_it() -> None:
    assert run(
        "import sys, shorthaul as sh\n"
        "before = 'torch' in sys.modules\n"
        "sh.jit.load_kernel\n"
        "print(before, 'torch' in sys.modules)\n"
    ) == ("False True\n")


def test_functions_named_like_their_module_stay_functions() -> None:

    assert callable(sh.meter)
    assert callable(sh.explain)


def test_every_name_can_be_had_in_every_way() -> None:
    scope: dict[str, object] = {}
    exec("from shorthaul import *", scope)
    for name in sh.__all__:
        assert scope[name] is getattr(sh, name)
    assert dir(sh) == sorted(sh.__all__)


def test_a_name_outside_the_catalogue_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shorthaul' has no attribute 'unheard_of'"):
        sh.unheard_of  # type: ignore[attr-defined]  # noqa: B018
