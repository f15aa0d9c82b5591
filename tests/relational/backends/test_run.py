"""What every backend's run shares: names, memory that is free again, values that leave a kernel."""

import pytest

from shorthaul.relational.backends.run import kernel_name
from shorthaul.relational.lowering.kernels import lower, operands_of
from shorthaul.relational.lowering.lifetimes import find_exported, find_last_uses, find_outputs
from shorthaul.relational.passes.differentiate import differentiate
from tests.relational.programs import attend, convolve, record


def _plan(definition):
    program = record(definition)
    whole = differentiate(program, ["x"])
    return lower(whole, program.output_values())


def test_kernels_are_named_by_their_last_result():
    plan = _plan(convolve)
    assert kernel_name(plan, len(plan.forward) - 1).startswith("convolve_forward_")
    last = len(plan.forward) + len(plan.backward) - 1
    assert kernel_name(plan, last).startswith(f"convolve_backward_{last}_")


@pytest.mark.parametrize("definition", [convolve, attend], ids=lambda each: each.name)
def test_memory_is_free_after_the_last_kernel_that_reads_it_and_never_before(definition):
    plan = _plan(definition)
    works = plan.forward + plan.backward
    freed = {name: at for at, names in find_last_uses(plan).items() for name in names}
    assert freed
    for number, work in enumerate(works):
        for name in operands_of(work, plan.program, set(plan.stored)):
            assert number <= freed.get(name, len(works)), name
    assert not set(freed) & find_outputs(plan)
    saved_and_freed = {name: freed[name] for name in plan.saved if name in freed}
    assert all(at >= len(plan.forward) for at in saved_and_freed.values())


def test_what_another_kernel_reads_is_exported_and_the_rest_stays_in_registers():
    plan = _plan(attend)
    exported = find_exported(plan)
    assert set(plan.saved) <= exported
    assert find_outputs(plan) <= exported
