"""The flow of data through a plan as a picture: values are round, kernels are boxes, time runs downwards.

Plain SVG, written here: the same plan gives the same bytes everywhere. A value stands in the line after
the kernel that makes it, with its rows and bytes; a kernel stands below everything that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from shorthaul.relational.ir.program import Program
from shorthaul.relational.lowering.kernels import (
    Plan,
    RowLoop,
    Work,
    base_of,
    operands_of,
    results_of,
)
from shorthaul.relational.planning.estimate import Estimate, KernelEstimate
from shorthaul.units import format_bytes

COLUMN, LINE, TOP, MARGIN = 190, 92, 64, 20
BOX_WIDTH, BOX_HEIGHT = 174, 50
LETTERS = 27  # that fit into a box
COLORS = {"input": "#e8eef7", "value": "#f4f4f4", "output": "#dff0dd"}
KERNELS = {"forward": "#fde9c9", "backward": "#f3d6e4"}


@dataclass
class _Node:
    """One thing in the picture."""

    key: str
    lines: tuple[str, ...]
    color: str
    is_kernel: bool
    made_from: list[str] = field(default_factory=list)
    level: int = 0
    x: float = 0.0

    @property
    def y(self) -> float:
        return TOP + self.level * LINE


def draw_flow(plan: Plan, costs: Estimate | None = None) -> str:
    """The SVG of a plan, with bytes and operations where the sizes of a graph are known."""
    nodes = _collect(plan, costs)
    _place(nodes)
    rows: dict[int, int] = {}
    for node in nodes.values():
        rows[node.level] = rows.get(node.level, 0) + 1
    width = 2 * MARGIN + COLUMN * max([3, *rows.values()])
    height = TOP + LINE * (max(rows, default=0) + 1) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="13" font-weight="bold">'
        f"{escape(_title(plan, costs))}</text>",
        *_draw_legend(plan),
    ]
    parts += [
        _draw_arrow(nodes[source], node) for node in nodes.values() for source in node.made_from
    ]
    parts += [line for node in nodes.values() for line in _draw_node(node)]
    return "\n".join([*parts, "</svg>\n"])


def _title(plan: Plan, costs: Estimate | None) -> str:
    if costs is None:
        return plan.program.name
    return (
        f"{plan.program.name}: {len(costs.kernels)} kernels, {format_bytes(costs.moved_bytes)} moved, "
        f"{costs.flops / 1e6:.2f} MFLOP, {format_bytes(costs.peak_bytes)} held at most"
    )


# What is in the picture


def _collect(plan: Plan, costs: Estimate | None) -> dict[str, _Node]:
    works = plan.forward + plan.backward
    bytes_of = _value_bytes(costs.kernels if costs else ())
    outputs = {base_of(plan.program, value) for value in plan.program.output_values()}
    nodes: dict[str, _Node] = {}
    for number, work in enumerate(works):
        direction = "forward" if number < len(plan.forward) else "backward"
        kernel = _Node(
            f"kernel {number}",
            _kernel_lines(number, work, costs.kernels[number] if costs else None),
            KERNELS[direction],
            is_kernel=True,
        )
        for name in sorted(operands_of(work, plan.program, set(plan.stored))):
            if name not in nodes:  # nothing made it: it comes from outside
                nodes[name] = _Node(
                    name, _value_lines(plan.program, name, bytes_of), COLORS["input"], False
                )
            kernel.made_from.append(name)
        nodes[kernel.key] = kernel
        for name in results_of(work):
            color = COLORS["output" if name in outputs else "value"]
            lines = _value_lines(plan.program, name, bytes_of)
            if costs is None or name in bytes_of:  # else it never leaves the kernel's registers
                nodes[name] = _Node(name, lines, color, False, [kernel.key])
    return nodes


def _value_bytes(kernels: Iterable[KernelEstimate]) -> dict[str, int]:
    return {name: count for each in kernels for name, count in (*each.reads, *each.writes)}


def _value_lines(program: Program, name: str, bytes_of: Mapping[str, int]) -> tuple[str, ...]:
    step = program[name]
    called = {base_of(program, value): output for output, value in program.outputs}.get(name, name)
    shape = " x ".join(map(str, step.shape)) or "1"
    lines = [name if called == name else f"{called} = {name}"]
    lines.append(f"{shape} over {step.space.value}")
    if name in bytes_of:
        lines.append(format_bytes(bytes_of[name]))
    return tuple(lines)


def _kernel_lines(number: int, work: Work, costs: KernelEstimate | None) -> tuple[str, ...]:
    kind = "loop over " + work.space.value if isinstance(work, RowLoop) else ""
    if not kind:
        names = {"Product": "product", "OuterSum": "outer sum", "TorchStep": "torch"}
        kind = names[type(work).__name__]
    lines = [f"{number + 1}. {kind}", ", ".join(results_of(work))]
    if costs is not None:
        lines.append(f"{format_bytes(costs.moved_bytes)}, {costs.flops / 1e6:.2f} MFLOP")
    return tuple(lines)


# Where it is


def _place(nodes: Mapping[str, _Node]) -> None:
    """Everything below what it is made from; within a line, near the middle of that."""
    for node in nodes.values():  # in an order in which everything comes after what it needs
        node.level = 1 + max((nodes[each].level for each in node.made_from), default=-1)
    users: dict[str, list[_Node]] = {}
    for node in nodes.values():
        for each in node.made_from:
            users.setdefault(each, []).append(node)
    for node in reversed(list(nodes.values())):  # what comes from outside, just above its first use
        if not node.made_from and node.key in users:
            node.level = min(each.level for each in users[node.key]) - 1
    lines: dict[int, list[_Node]] = {}
    for node in nodes.values():
        lines.setdefault(node.level, []).append(node)
    widest = max(map(len, lines.values()), default=1)
    for level in sorted(lines):
        row = sorted(lines[level], key=lambda node: _middle(nodes, node.made_from))
        left = MARGIN + COLUMN * (max(3, widest) - len(row)) / 2
        for column, node in enumerate(row):
            node.x = left + COLUMN * column + (COLUMN - BOX_WIDTH) / 2


def _middle(nodes: Mapping[str, _Node], names: Sequence[str]) -> float:
    return sum(nodes[each].x for each in names) / len(names) if names else float("inf")


# How it is drawn


def _draw_legend(plan: Plan) -> list[str]:
    shown = {"from outside": COLORS["input"], "in memory": COLORS["value"]}
    shown |= {"result": COLORS["output"], "forward kernel": KERNELS["forward"]}
    if plan.backward:
        shown["backward kernel"] = KERNELS["backward"]
    parts = []
    for number, (name, color) in enumerate(shown.items()):
        x = MARGIN + 112 * number
        parts.append(
            f'<rect x="{x}" y="36" width="12" height="12" fill="{color}" stroke="#888888"/>'
        )
        parts.append(f'<text x="{x + 17}" y="46">{name}</text>')
    return parts


def _draw_arrow(source: _Node, target: _Node) -> str:
    x1, y1 = source.x + BOX_WIDTH / 2, source.y + BOX_HEIGHT
    x2, y2 = target.x + BOX_WIDTH / 2, target.y
    middle = (y1 + y2) / 2
    return (
        f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}" '
        'fill="none" stroke="#9a9a9a"/>'
    )


def _draw_node(node: _Node) -> list[str]:
    corner = 2 if node.is_kernel else 22
    parts = [
        f'<rect x="{node.x:.1f}" y="{node.y:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="{corner}" fill="{node.color}" stroke="#888888">'
        f"<title>{escape(', '.join(node.lines))}</title></rect>"
    ]
    top = node.y + (BOX_HEIGHT - 14 * len(node.lines)) / 2 + 11
    for number, text in enumerate(node.lines):
        short = text if len(text) <= LETTERS else text[: LETTERS - 3] + "..."
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(
            f'<text x="{node.x + BOX_WIDTH / 2:.1f}" y="{top + 14 * number:.1f}" '
            f'text-anchor="middle"{weight}>{escape(short)}</text>'
        )
    return parts
