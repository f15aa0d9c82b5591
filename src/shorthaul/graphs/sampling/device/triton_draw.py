# Constants are upper case, as in Triton's own kernels; Triton's decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Which neighbors of each target are taken: the numbers of `random.h` and `draw.h`, drawn on a device.

A target's random numbers depend on the hop's key and on its node alone, so a lane draws those of a
target one after the other, as a thread of the CPU does, and lanes draw beside each other::

    lane         target 0    target 1    target 2   ...
    step 0       number 0    number 0    number 0
    step 1       number 1    number 1    number 1       Floyd: the member of this step, and its rank

Neighbors are read from the graph's own memory as soon as it is known which: `positions` are their
places in the index, `neighbors` the nodes there.
"""

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def _mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _start_streams(keys, HOP, nodes, target, mask):
    """The streams of `target`s: where the random numbers of their nodes begin in this hop."""
    key = tl.load(keys + HOP).to(tl.uint64)
    node = tl.load(nodes + target, mask=mask, other=0).to(tl.uint64)
    return _mix(key ^ _mix(node + _GOLDEN))


@triton.jit
def _below(state, bound, mask):
    """A number on [0, bound) for each lane of `mask`, exactly uniform, and the streams behind it.

    The few products that would favor small numbers are drawn anew.
    """
    limit = tl.where(mask, bound, 1).to(tl.uint64)
    state = state + _GOLDEN
    number = _mix(state)
    is_short = mask & (number * limit < limit)
    while tl.max(is_short.to(tl.int32), 0) > 0:
        excess = (~limit + 1) % limit  # 2^64 modulo the bound
        is_short = is_short & (number * limit < excess)
        state = tl.where(is_short, state + _GOLDEN, state)
        number = tl.where(is_short, _mix(state), number)
    return state, tl.umulhi(number, limit).to(tl.int64)


@triton.jit(do_not_specialize=["COUNT", "HOP"])
def draw_kernel(
    table, begins, degrees, offsets, nodes, keys, positions, neighbors,
    COUNT, FAN_OUT, HOP,
    BLOCK: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """Up to `FAN_OUT` neighbors of each target, none of them twice, in ascending order.

    Floyd's algorithm: `chosen` are the members of a target's set in the order in which they came, `rank`
    is how many of them are smaller, which is where a member goes. Rows that are no longer than the
    fan-out are taken whole, and cost no number.
    """
    target = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = target < COUNT
    begin = tl.load(begins + target, mask=mask, other=0)
    degree = tl.load(degrees + target, mask=mask, other=0)
    is_drawn = degree > FAN_OUT
    state = _start_streams(keys, HOP, nodes, target, mask)
    slot = tl.arange(0, MEMBERS)[None, :]
    chosen = slot.to(tl.int64) + tl.zeros((BLOCK, MEMBERS), dtype=tl.int64)
    rank = slot + tl.zeros((BLOCK, MEMBERS), dtype=tl.int32)
    for step in range(FAN_OUT):
        last = degree - FAN_OUT + step
        state, found = _below(state, last + 1, is_drawn)
        is_member = slot < step
        is_again = tl.max((is_member & (chosen == found[:, None])).to(tl.int32), 1) > 0
        member = tl.where(is_again, last, found)
        smaller = tl.sum((is_member & (chosen < member[:, None])).to(tl.int32), 1)
        is_larger = is_drawn[:, None] & is_member & (chosen > member[:, None])
        is_new = is_drawn[:, None] & (slot == step)
        rank = tl.where(is_new, smaller[:, None], tl.where(is_larger, rank + 1, rank))
        chosen = tl.where(is_new, member[:, None], chosen)
    is_taken = mask[:, None] & (slot < tl.minimum(degree, FAN_OUT)[:, None])
    place = tl.load(offsets + target, mask=mask, other=0)[:, None] + rank
    position = begin[:, None] + chosen
    neighbor = tl.load(table + position, mask=is_taken, other=0)
    tl.store(positions + place, position.to(positions.dtype.element_ty), mask=is_taken)
    tl.store(neighbors + place, neighbor, mask=is_taken)


@triton.jit(do_not_specialize=["COUNT", "HOP"])
def draw_again_kernel(
    table, begins, degrees, offsets, nodes, keys, positions, neighbors,
    COUNT, FAN_OUT, HOP,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`FAN_OUT` neighbors of each target that has any, each drawn from all of them."""
    target = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = target < COUNT
    begin = tl.load(begins + target, mask=mask, other=0)
    degree = tl.load(degrees + target, mask=mask, other=0)
    first = tl.load(offsets + target, mask=mask, other=0)
    state = _start_streams(keys, HOP, nodes, target, mask)
    has_any = mask & (degree > 0)
    for step in range(FAN_OUT):
        state, found = _below(state, degree, has_any)
        position = begin + found
        neighbor = tl.load(table + position, mask=has_any, other=0)
        tl.store(positions + first + step, position.to(positions.dtype.element_ty), mask=has_any)
        tl.store(neighbors + first + step, neighbor, mask=has_any)
