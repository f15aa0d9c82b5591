"""A compiled kernel: called without the GIL, found again, explained, and replaced where it must be."""

import copy
import dataclasses
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import (
    CompileError,
    KernelArgumentError,
    KernelLoadError,
    KernelStatusError,
    NoCompilerError,
)
from shorthaul.fallbacks import Fallback, taken_fallbacks
from shorthaul.jit import (
    CppSource,
    Function,
    Kernel,
    KernelCache,
    NumberArgument,
    TensorArgument,
    can_use_kernels,
    find_toolchain,
    load_kernel,
)
from shorthaul.settings import settings
from tests.jit.sources import SCALE, TEAM, answer, write_compiler


def test_a_kernel_computes() -> None:
    x, out = torch.arange(5.0), torch.zeros(5)
    assert load_kernel(SCALE).scale(x, 2.5, out) is None
    assert out.equal(x * 2.5)


def test_a_kernel_computes_at_addresses_and_is_counted() -> None:
    x, out = torch.arange(5.0), torch.zeros(5)
    with sh.meter() as measured:
        load_kernel(SCALE).scale.at(x.data_ptr(), 2.5, out.data_ptr(), 5)
    assert out.equal(x * 2.5)
    assert measured.launches == {"scale": 1}


def test_it_is_the_same_kernel_the_second_time() -> None:
    assert load_kernel(SCALE) is load_kernel(dataclasses.replace(SCALE))


def test_threads_that_load_at_once_get_the_same_kernel() -> None:
    source = answer(7, "asked_at_once")
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: load_kernel(source), range(4)))
    assert all(each is kernels[0] for each in kernels)


def test_an_unknown_function_is_an_attribute_error_that_lists_the_known() -> None:
    kernel = load_kernel(SCALE)
    with pytest.raises(AttributeError, match=rf"{kernel.name} exports \['scale'\], not shift"):
        kernel.shift  # noqa: B018
    assert not hasattr(Kernel.__new__(Kernel), "scale")  # half-made, as copy makes them


def test_a_kernel_and_its_functions_have_names_for_people() -> None:
    kernel = load_kernel(SCALE)
    assert kernel.name == f"scale_{kernel.entry.digest[:8]}"
    assert repr(kernel) == f"Kernel({kernel.name}: scale)"
    assert kernel.scale.name == "scale.scale"


def test_launches_are_counted() -> None:
    with sh.meter() as m:
        for _ in range(3):
            load_kernel(SCALE).scale(torch.ones(2), 1.0, torch.ones(2))
        with pytest.raises(KernelArgumentError):
            load_kernel(SCALE).scale(torch.ones(2), 1.0, torch.ones(3))
    assert m.launches == {"scale": 3}


# ---- the same object under two contracts


def bits(dtype: torch.dtype) -> CppSource:
    arguments = (TensorArgument("x", dtype, (1,)),)
    return CppSource(
        "first_bits",
        "int64_t first_bits(const uint16_t* x) { return x[0]; }",
        (Function("first_bits", arguments, returns="int64"),),
    )


def test_the_same_object_is_called_under_each_contract_it_is_asked_for() -> None:
    half, brain = load_kernel(bits(torch.float16)), load_kernel(bits(torch.bfloat16))
    assert half.entry.digest == brain.entry.digest
    assert half.first_bits(torch.ones(1, dtype=torch.float16)) == 0x3C00
    assert brain.first_bits(torch.ones(1, dtype=torch.bfloat16)) == 0x3F80
    with pytest.raises(KernelArgumentError, match=r"of torch\.bfloat16"):
        brain.first_bits(torch.ones(1, dtype=torch.float16))


# ---- results

RETURNS = CppSource(
    "returns",
    "void nothing() {}\n"
    "int32_t status(int64_t code) { return static_cast<int32_t>(code); }\n"
    "int64_t number() { return -(int64_t{1} << 62); }\n"
    "void* address(int64_t value) { return reinterpret_cast<void*>(value); }",
    (
        Function("nothing", ()),
        Function("status", (NumberArgument("code", "int64"),), returns="status"),
        Function("number", (), returns="int64"),
        Function("address", (NumberArgument("value", "int64"),), returns="address"),
    ),
)


def test_every_kind_of_result_comes_back() -> None:
    kernel = load_kernel(RETURNS)
    assert kernel.nothing() is None
    assert kernel.status(0) == 0
    assert kernel.number() == -(2**62)
    assert kernel.address(2**47) == 2**47
    assert kernel.address(0) is None


@pytest.mark.parametrize("code", [1, -5])
def test_a_status_that_is_not_zero_is_an_error(code: int) -> None:
    with pytest.raises(KernelStatusError) as caught:
        load_kernel(RETURNS).status(code)
    assert str(caught.value) == f"returns.status returned status {code}; expected 0."
    assert caught.value.status == code


def test_an_optional_tensor_may_be_none() -> None:
    source = CppSource(
        "is_given",
        "int64_t is_given(const float* x) { return x != nullptr; }",
        (
            Function(
                "is_given",
                (TensorArgument("x", torch.float32, (2,), is_optional=True),),
                returns="int64",
            ),
        ),
    )
    assert load_kernel(source).is_given(None) == 0
    assert load_kernel(source).is_given(torch.ones(2)) == 1


# ---- the GIL

MEET = CppSource(
    "meet",
    "#include <time.h>\n"
    "// Says that it is here and waits until the other is; gives up after a minute.\n"
    "int32_t meet(int64_t* here, int64_t mine, int64_t others) {\n"
    "  __atomic_store_n(&here[mine], 1, __ATOMIC_SEQ_CST);\n"
    "  for (int64_t step = 0; step < 60000; ++step) {\n"
    "    if (__atomic_load_n(&here[others], __ATOMIC_SEQ_CST)) return 0;\n"
    "    const timespec pause{0, 1000000};\n"
    "    nanosleep(&pause, nullptr);\n"
    "  }\n"
    "  return 1;\n"
    "}",
    (
        Function(
            "meet",
            (
                TensorArgument("here", torch.int64, (2,), is_written=True),
                NumberArgument("mine", "int64"),
                NumberArgument("others", "int64"),
            ),
            returns="status",
        ),
    ),
)


def test_two_threads_are_inside_kernels_at_the_same_time() -> None:
    here = torch.zeros(2, dtype=torch.int64)
    meet = load_kernel(MEET).meet
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(meet, here, 0, 1), pool.submit(meet, here, 1, 0)
        assert one.result() == other.result() == 0


def test_python_goes_on_while_a_kernel_waits_for_it() -> None:
    here = torch.zeros(2, dtype=torch.int64)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(load_kernel(MEET).meet, here, 0, 1)
        while not here[0]:  # Python sees that the kernel runs ...
            threading.Event().wait(0.001)
        here[1] = 1  # ... and lets it end
        assert waiting.result() == 0


# ---- copies


def test_a_kernel_and_its_functions_are_copied_and_pickled_by_their_source() -> None:
    kernel = load_kernel(SCALE)
    assert copy.deepcopy(kernel) is kernel
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    assert copy.deepcopy(kernel.scale) is kernel.scale
    assert pickle.loads(pickle.dumps(kernel.scale)) is kernel.scale


def test_a_model_that_holds_a_kernel_can_be_copied() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = load_kernel(SCALE).scale
            self.weight = torch.nn.Parameter(torch.ones(2))

    model = Scaled()
    assert copy.deepcopy(model).scale is model.scale


# ---- the cache underneath


@pytest.fixture
def own_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache that a test may spoil."""
    with settings.override(cache_directory=tmp_path / "cache"):
        yield tmp_path / "cache"


def test_a_kernel_in_use_outlives_its_cache(own_cache: Path) -> None:
    kernel = load_kernel(answer(11, "outlives"))
    shutil.rmtree(own_cache)
    assert kernel.answer() == 11
    assert load_kernel(answer(11, "outlives")).answer() == 11
    assert "(removed from the cache since)" in sh.explain(kernel)
    assert load_kernel(answer(12, "outlives")).answer() == 12
    assert own_cache.is_dir()


def test_an_entry_removed_between_finding_and_loading_is_built_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_or_build, removed = KernelCache.find_or_build, []

    def then_remove_once(*arguments: object) -> object:
        entry = find_or_build(*arguments)  # type: ignore[arg-type]
        if not removed:
            removed.append(entry)
            shutil.rmtree(entry.directory)
        return entry

    monkeypatch.setattr(KernelCache, "find_or_build", then_remove_once)
    assert load_kernel(answer(13, "removed")).answer() == 13
    assert len(removed) == 1


def test_an_object_that_the_system_does_not_load_is_an_error_by_name(own_cache: Path) -> None:
    entry = KernelCache().find_or_build(answer(14, "not_loadable"), find_toolchain())
    entry.library.write_bytes(b"not an object")
    with pytest.raises(KernelLoadError) as caught:
        Kernel(answer(14, "not_loadable"), entry)
    assert str(caught.value).startswith(f"{entry.library} cannot be loaded: ")
    assert "SHORTHAUL_CACHE" in str(caught.value)
    assert isinstance(caught.value, OSError)


def test_a_name_that_nothing_defines_does_not_compile(own_cache: Path) -> None:
    source = dataclasses.replace(
        answer(1), text="int64_t missing();\nint64_t answer() { return missing(); }"
    )
    with pytest.raises(CompileError) as caught:
        load_kernel(source)
    assert "missing" in (caught.value.source.parent / "compile.log").read_text()


# ---- explaining


def test_a_kernel_explains_itself() -> None:
    kernel = load_kernel(TEAM)
    command = (kernel.entry.directory / "compile.sh").read_text()
    assert sh.explain(kernel) == (
        f"{kernel.name}: void team(int64_t* sizes, int64_t n, int64_t threads)\n"
        f"in {kernel.entry.directory}, compiled in {kernel.entry.compile_seconds:.2f} s by\n"
        f"{command}\n"
        f"{TEAM.complete_text()}"
    )
    assert find_toolchain().command[0] in command


# ---- kernels or PyTorch


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)


@pytest.mark.parametrize("choice", ["auto", "generated"])
def test_kernels_are_used_where_there_is_a_compiler(choice: str) -> None:
    with settings.override(kernels=choice):
        assert can_use_kernels("test part with a compiler")
    assert not any(each.what == "test part with a compiler" for each in taken_fallbacks())


def test_torch_can_be_asked_for_and_is_then_told() -> None:
    with settings.override(kernels="torch"):
        assert not can_use_kernels("test part asked for torch")
        assert not can_use_kernels("test part asked for torch")
    assert [each for each in taken_fallbacks() if each.what == "test part asked for torch"] == [
        Fallback("test part asked for torch", "plain PyTorch", "SHORTHAUL_KERNELS is torch")
    ]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_auto_takes_torch_and_tells() -> None:
    assert not can_use_kernels("test part without a compiler")
    assert [each for each in taken_fallbacks() if each.what == "test part without a compiler"] == [
        Fallback(
            "test part without a compiler",
            "plain PyTorch",
            "no C++ compiler was found (looked for: g++, clang++, ziglang)",
        )
    ]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_kernels_asked_for_by_name_are_an_error() -> None:
    with settings.override(kernels="generated"), pytest.raises(NoCompilerError):
        can_use_kernels("test part that insists")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_a_kernel_is_an_error() -> None:
    with pytest.raises(NoCompilerError, match=r"looked for: g\+\+, clang\+\+, ziglang"):
        load_kernel(SCALE)


def test_cxx_is_what_compiles(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = " ".join(find_toolchain().command)
    wrapper = write_compiler(
        tmp_path / "c++", f"echo $NAME >> {tmp_path}/log", f"exec {real} $command"
    )
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("NAME", "compiled")
    assert load_kernel(answer(15, "by_cxx")).answer() == 15
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert load_kernel(answer(15, "by_cxx")).entry.directory.parent == own_cache / "kernels"
    assert os.environ["CXX"] in sh.explain(load_kernel(answer(15, "by_cxx")))
