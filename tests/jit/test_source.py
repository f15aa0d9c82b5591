"""Generated C++ as a value: prototypes, headers, and a digest of everything that matters."""

import dataclasses
from pathlib import Path

import pytest
import torch

from shorthaul.errors import CompileError
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
    Toolchain,
    load_kernel,
)
from shorthaul.jit import source as source_module
from shorthaul.jit.toolchain import Processor
from tests.jit.sources import SCALE, SCALE_FUNCTION, TEAM

TOOLCHAIN = Toolchain(("/usr/bin/g++",), "g++ 12.2.0", Processor("x86_64 Some CPU", ("avx2",)))


def digest(source: CppSource = SCALE, toolchain: Toolchain = TOOLCHAIN) -> str:
    return source.digest(toolchain.fingerprint)


def test_a_prototype_shows_every_kind_of_argument() -> None:
    function = Function(
        "gather",
        (
            TensorArgument("table", torch.bfloat16, ("rows", 64)),
            TensorArgument("ids", torch.int64, ("n",)),
            TensorArgument("mask", torch.bool, ("n",), is_optional=True),
            TensorArgument("out", torch.float64, None, is_written=True, is_contiguous=False),
            NumberArgument("scale", "float64"),
            NumberArgument("start", "int64"),
            NumberArgument("ring", "address"),
            DimensionArgument("rows"),
            ThreadsArgument(),
        ),
        returns="status",
    )
    assert function.prototype() == (
        "int32_t gather(const uint16_t* table, const int64_t* ids, const uint8_t* mask, "
        "double* out, double scale, int64_t start, void* ring, int64_t rows, int64_t threads)"
    )


def test_the_compiled_text_begins_with_the_prototypes() -> None:
    assert SCALE.complete_text() == (
        "#include <cstdint>\n"
        "\n"
        'extern "C" __attribute__((visibility("default"))) '
        "void scale(const float* x, double factor, float* out, int64_t n);\n"
        "\n"
        "void scale(const float* x, double factor, float* out, int64_t n) {\n"
        "  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * factor);\n"
        "}\n"
    )


@pytest.mark.parametrize(
    "text",
    [SCALE.text.replace("double factor", "float factor"), "static void scale() {}", ""],
    ids=["another type", "another function", "nothing"],
)
def test_a_definition_that_disagrees_with_its_prototype_is_an_error(text: str) -> None:
    with pytest.raises(CompileError) as caught:
        load_kernel(dataclasses.replace(SCALE, text=text))
    error = caught.value
    assert error.source.is_file()
    assert error.command.is_file()
    assert str(error) == (
        f"linking failed on scale_{error.source.parent.name[:8]}.\n"
        f"  source   {error.source}\n"
        f"  command  {error.command}\n"
        "  first error: `void scale(const float* x, double factor, float* out, int64_t n)` "
        "is declared, but nothing with these types is defined"
    )


def test_a_definition_that_returns_something_else_does_not_compile() -> None:
    wrong = dataclasses.replace(SCALE, text=SCALE.text.replace("void scale", "int scale"))
    with pytest.raises(CompileError, match="scale") as caught:
        load_kernel(wrong)
    assert caught.value.first_error.startswith("kernel.cpp:")


def test_the_digest_is_the_same_for_the_same_content() -> None:
    assert digest(dataclasses.replace(SCALE)) == digest(SCALE)
    assert len(digest()) == 64


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(SCALE, name="scale_rows"),
        dataclasses.replace(SCALE, text=SCALE.text.replace("x[i] * factor", "factor * x[i]")),
        dataclasses.replace(SCALE, flags=("-DROWS=1",)),
        dataclasses.replace(
            SCALE, functions=(dataclasses.replace(SCALE_FUNCTION, returns="status"),)
        ),
    ],
    ids=["name", "text", "flags", "function"],
)
def test_the_digest_changes_with_the_source(changed: CppSource) -> None:
    assert digest(changed) != digest(SCALE)


def test_flags_are_not_confused_with_their_neighbors() -> None:
    split = dataclasses.replace(SCALE, flags=("-DA", "-DB"))
    joined = dataclasses.replace(SCALE, flags=("-DA-DB",))
    assert digest(split) != digest(joined)


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(TOOLCHAIN, command=("/opt/bin/g++",)),
        dataclasses.replace(TOOLCHAIN, command=("/usr/bin/g++", "-m32")),
        dataclasses.replace(TOOLCHAIN, version="g++ 13.1.0"),
        dataclasses.replace(TOOLCHAIN, processor=Processor("x86_64 Another CPU", ("avx2",))),
        dataclasses.replace(TOOLCHAIN, processor=Processor("x86_64 Some CPU", ("avx2", "avx512f"))),
    ],
    ids=["path", "arguments", "version", "processor", "features"],
)
def test_the_digest_changes_with_the_toolchain(changed: Toolchain) -> None:
    assert digest(toolchain=changed) != digest()


@pytest.fixture
def own_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands in for the package's own headers."""
    headers = tmp_path / "include" / "shorthaul"
    headers.mkdir(parents=True)
    monkeypatch.setattr(
        source_module, "_read_header", lambda name: (tmp_path / "include" / name).read_text()
    )
    return headers


def test_headers_are_found_through_other_headers(own_headers: Path) -> None:
    (own_headers / "outer.h").write_text('#include "shorthaul/inner.h"\n#include <cmath>\n')
    (own_headers / "inner.h").write_text('  #include "shorthaul/outer.h"\nint inner;\n')
    source = CppSource("nested", '#include "shorthaul/outer.h"\n', ())
    assert source.headers() == {
        "shorthaul/inner.h": '  #include "shorthaul/outer.h"\nint inner;\n',
        "shorthaul/outer.h": '#include "shorthaul/inner.h"\n#include <cmath>\n',
    }


def test_the_digest_changes_with_a_header_that_is_included_indirectly(own_headers: Path) -> None:
    (own_headers / "outer.h").write_text('#include "shorthaul/inner.h"\n')
    (own_headers / "inner.h").write_text("constexpr int lanes = 8;\n")
    source = CppSource("nested", '#include "shorthaul/outer.h"\n', ())
    before = digest(source)
    (own_headers / "inner.h").write_text("constexpr int lanes = 16;\n")
    assert digest(source) != before


def test_a_header_that_is_not_included_does_not_matter(own_headers: Path) -> None:
    (own_headers / "other.h").write_text("int other;\n")
    source = CppSource("plain", "// nothing\n", ())
    before = digest(source)
    (own_headers / "other.h").write_text("long other;\n")
    assert digest(source) == before


def test_the_package_carries_its_headers() -> None:
    assert "GOMP_parallel" in TEAM.headers()["shorthaul/jit/include/parallel.h"]


def tensor(name: str, *shape: int | str | None, is_optional: bool = False) -> TensorArgument:
    return TensorArgument(name, torch.float32, shape, is_optional=is_optional)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (tensor("x", "n"), DimensionArgument("m")),
            "no required tensor has a dimension named `m`",
        ),
        ((tensor("x", "n", is_optional=True),), "no required tensor has a dimension named `n`"),
        ((tensor("x", 3), tensor("x", 4)), "`x` names two different things"),
        ((tensor("n", "n"),), "`n` names two different things"),
        ((NumberArgument("lambda", "int64"),), "`lambda` cannot be a name in both"),
        ((NumberArgument("two words", "int64"),), "`two words` cannot be a name in both"),
        ((NumberArgument("_values", "int64"),), "`_values` cannot be a name in both"),
        ((tensor("x", "not"),), "`not` cannot be a name in both"),
        ((NumberArgument("k", "float32"),), "cannot take or return 'float32'"),
        ((TensorArgument("z", torch.complex64),), "cannot take or return torch.complex64"),
    ],
)
def test_a_function_that_could_not_be_called_is_refused(
    arguments: tuple[TensorArgument, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Function("f", arguments)


def test_a_return_type_must_be_known() -> None:
    with pytest.raises(ValueError, match="cannot take or return 'float64'"):
        Function("f", (), returns="float64")


def test_the_same_dimension_may_bind_many_tensors_and_be_passed() -> None:
    function = Function(
        "f", (tensor("x", "n", "n"), tensor("y", None, "n", 3), DimensionArgument("n"))
    )
    assert function.prototype() == "void f(const float* x, const float* y, int64_t n)"


@pytest.mark.parametrize("name", ["", "two words", "9lives", "x\nint main", "_x"])
def test_a_source_needs_a_name_that_can_stand_in_a_profile(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a name"):
        CppSource(name, "", ())


def test_two_functions_of_a_source_need_two_names() -> None:
    with pytest.raises(ValueError, match="`f` names two different things"):
        CppSource("twins", "", (Function("f", ()), Function("f", (), returns="int64")))
