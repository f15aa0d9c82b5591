"""The Triton backend without a GPU: numbers by Triton's interpreter, machine code by its compiler."""

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.relational.backends.triton.backend import BUCKETS, LIMITS, emit_plan, fine_rows
from shorthaul.relational.compiler import compile_program
from shorthaul.relational.frontend.trace import trace
from tests.relational.backends.triton_compiling import compile_work, compiled_works
from tests.relational.backends.triton_results import (
    MANY,
    PROGRAMS,
    READY_LAYERS,
    interpreted,
    require_small_errors,
)
from tests.relational.programs import LAYERS, drop, record, sample_graph, sizes_of
from tests.triton_programs import CUBIN_MAGIC, run_interpreted

WIDE = {"width": 64, "out": 16, "heads": 4}


def test_interpreted_programs_equal_the_reference():
    require_small_errors(interpreted(PROGRAMS), 8)


def test_interpreted_layers_equal_the_reference():
    require_small_errors(interpreted(READY_LAYERS), 13)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_program_on_every_graph_in_every_dtype():
    require_small_errors(interpreted(MANY), 50)


def _check_drawn_layers(count, first):
    results = run_interpreted("tests.relational.backends.interpreted_drawn", count, first)
    assert len(results) >= 0.9 * count
    assert [each["problem"] for each in results if each["problem"]] == []


def test_drawn_layers_agree_with_plain_pytorch():
    _check_drawn_layers(8, 183)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_drawn_layers_agree_with_plain_pytorch():
    _check_drawn_layers(500, 10_000)


def test_the_comparison_sees_a_wrong_number():
    with pytest.raises(AssertionError, match="x is off by"):
        require_small_errors(({"case": "any, float32", "errors": {"x": 0.5}},), 1)


def _plan(name, dtype=torch.float32, sizes=WIDE):
    definition = {**LAYERS, "drop": drop}[name]
    program = trace(definition.function, sizes, {each: sizes[each] for each in definition.options})
    inputs = tuple(step.name for step in program.inputs)
    compiled = compile_program(program, sizes_of(sample_graph()), dtype, torch.int32, inputs)
    return emit_plan(compiled.plan, dtype, torch.int32)


@pytest.mark.parametrize(("name", "capability"), [("convolve", 80), ("attend", 90)])
def test_kernels_compile_to_machine_code(name, capability):
    plan = _plan(name)
    forward = [each for each in compiled_works(plan) if each < len(plan.plan.forward)]
    for number in [*forward, next(iter(set(compiled_works(plan)) - set(forward)))]:
        assert compile_work(plan, number, capability)[:4] == CUBIN_MAGIC


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "dtype", "capability"),
    [
        *(
            (name, torch.float32, capability)
            for name in [*LAYERS, "drop"]
            for capability in (80, 90)
        ),
        ("everything", torch.float64, 80),
        ("attend", torch.bfloat16, 80),
        ("transform", torch.float16, 90),
    ],
)
def test_every_kernel_of_every_program_compiles(name, dtype, capability):
    # Every operation is in `everything`, whose matrices would be large at the other programs' widths.
    sizes = {"width": 20, "out": 3, "heads": 2} if name == "everything" else WIDE
    plan = _plan(name, dtype, sizes)
    for number in compiled_works(plan):
        has_buckets = number in plan.loops and plan.loops[number].has_finer
        for bucket in BUCKETS if has_buckets else BUCKETS[:1]:
            assert compile_work(plan, number, capability, bucket)[:4] == CUBIN_MAGIC


def test_a_program_of_a_bucket_takes_fewer_rows_where_they_are_wide():
    (narrow,) = _plan("drop", sizes={"width": 2}).loops.keys() - {1}
    assert LIMITS == (16, 128)
    for width, expected in ((2, 128), (256, 16), (8192, 1)):
        loop = _plan("drop", sizes={"width": width}).loops[narrow]
        assert fine_rows(BUCKETS[-1], loop) == expected


def test_explaining_a_triton_compilation_shows_its_source():
    program = record(LAYERS["convolve"])
    made = compile_program(
        program, sizes_of(sample_graph()), torch.float32, torch.int32, backend="triton"
    )
    (heading, text) = made.sections()[-1]
    assert heading == "generated source"
    assert "@triton.jit" in text
