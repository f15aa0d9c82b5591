"""Which values of a plan are needed until when, and by whom."""

from __future__ import annotations

from shorthaul.relational.lowering.kernels import Plan, base_of, operands_of, results_of


def find_outputs(plan: Plan) -> frozenset[str]:
    """The values that leave the layer, by the names of their memory."""
    return frozenset(base_of(plan.program, value) for value in plan.program.output_values())


def find_last_uses(plan: Plan) -> dict[int, tuple[str, ...]]:
    """Values that nobody needs after a kernel: their memory serves the next ones."""
    outputs, stored = find_outputs(plan), set(plan.stored)
    last: dict[str, int] = {}
    for number, work in enumerate(plan.forward + plan.backward):
        is_forward = number < len(plan.forward)
        for name in (*results_of(work), *operands_of(work, plan.program, stored)):
            if name not in outputs and not (is_forward and name in plan.saved):
                last[name] = number
    found: dict[int, tuple[str, ...]] = {}
    for name, number in last.items():
        if plan.program[name].operation != "input":
            found[number] = (*found.get(number, ()), name)
    return found


def find_exported(plan: Plan) -> set[str]:
    """The stored values that another kernel, the caller or the backward pass reads."""
    found = set(find_outputs(plan)) | set(plan.saved)
    for work in plan.forward + plan.backward:
        found |= operands_of(work, plan.program, set(plan.stored))
    return found
