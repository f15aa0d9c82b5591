"""`Product` and `OuterSum` as C++: tiles of rows of one type, taken by whichever thread is free."""

from __future__ import annotations

from math import prod

from shorthaul.relational.backends.cpp.parameters import Kind, Parameter, write_parameters
from shorthaul.relational.ir.step import Step

ROWS_PER_TILE = 192  # 32 blocks of 6 rows: enough that a turned weight is paid for
ROWS_PER_OUTER_TILE = 1024
WEIGHTS_AT_ONCE = 4096  # elements: 16 KiB of float32, half of a first-level cache

PRODUCT_PARAMETERS = (
    Parameter("limits", Kind.INDEX),
    Parameter("owners", Kind.INDEX),
    Parameter("tiles", Kind.NUMBER),
    Parameter("order", Kind.INDEX, is_optional=True),
    Parameter("gather", Kind.INDEX, is_optional=True),
    Parameter("x", Kind.STORED),
    Parameter("w", Kind.STORED),
    Parameter("out", Kind.MADE),
)
OUTER_PARAMETERS = (
    Parameter("limits", Kind.INDEX),
    Parameter("owners", Kind.INDEX),
    Parameter("first", Kind.INDEX),
    Parameter("tiles", Kind.NUMBER),
    Parameter("types", Kind.NUMBER),
    Parameter("order", Kind.INDEX, is_optional=True),
    Parameter("gather_x", Kind.INDEX, is_optional=True),
    Parameter("gather_y", Kind.INDEX, is_optional=True),
    Parameter("x", Kind.STORED),
    Parameter("y", Kind.STORED),
    Parameter("partial", Kind.SUM),
    Parameter("out", Kind.MADE),
)


def emit_product(name: str, step: Step, x: Step, weight: Step) -> str:
    """out[row] = x[gather[row]] W[type of row]"""
    heads = weight.shape[0] if len(weight.shape) == 3 else 1
    inner = prod(x.shape[:-1]) // max(1, heads)
    depth, width = x.shape[-1], step.shape[-1]
    turned = "true" if step["transposed"] else "false"
    at_once = _heads_at_once(heads, depth * width)
    return f"""\
// {step.name}: rows of {step.space.value} by {weight.name}, {depth} -> {width}, {heads} heads
void {name}({write_parameters(PRODUCT_PARAMETERS)}) {{
  constexpr int64_t heads = {heads}, inner = {inner}, depth = {depth}, width = {width};
  constexpr int64_t at_once = {at_once};  // heads whose weights fit the first-level cache together
  std::atomic<int64_t> next_tile{{0}};
  shorthaul::on_each_thread(tiles < threads ? tiles : threads, [&](int64_t, int64_t) {{
    std::vector<shorthaul::Panel<Number>> panels(heads);
    std::vector<real> wide;
    int64_t prepared = -1;
    for (int64_t tile; (tile = next_tile.fetch_add(1)) < tiles;) {{
      const int64_t type = owners[tile];
      for (int64_t head = 0; type != prepared && head < heads; ++head)
        panels[head].prepare(w + (type * heads + head) * depth * width, depth, width, {turned});
      prepared = type;
      for (int64_t head = 0; head < heads; head += at_once)
        shorthaul::multiply_tile<Number>(
            limits[tile], limits[tile + 1], std::min(at_once, heads - head), inner, depth, width,
            panels.data() + head, wide,
            [&](int64_t i) {{
              const int64_t row = order ? order[i] : i;
              return x + ((gather ? gather[row] : row) * heads + head) * inner * depth;
            }},
            [&](int64_t i) {{
              return out + ((order ? order[i] : i) * heads + head) * inner * width;
            }});
    }}
  }});
}}
"""


def emit_outer_sum(name: str, step: Step, x: Step, y: Step) -> str:
    """out[type] = sum over its rows of x^T y; a type with several tiles adds up theirs, in order"""
    heads = step.shape[0] if step["heads"] else 1
    inner = prod(x.shape[:-1]) // max(1, heads)
    depth, width = x.shape[-1], y.shape[-1]
    at_once = _heads_at_once(heads, depth * width)
    return f"""\
// {step.name}: outer products of {x.name} and {y.name}, {depth} x {width}, {heads} heads
void {name}({write_parameters(OUTER_PARAMETERS)}) {{
  constexpr int64_t heads = {heads}, inner = {inner}, depth = {depth}, width = {width};
  constexpr int64_t size = heads * depth * width;
  constexpr int64_t at_once = {at_once};  // heads whose sums fit the first-level cache together
  const auto is_whole = [&](int64_t type) {{
    return sizeof(Stored) == sizeof(real) && first[type + 1] - first[type] == 1;
  }};
  std::atomic<int64_t> next_tile{{0}}, next_type{{0}};
  shorthaul::on_each_thread(tiles < threads ? tiles : threads, [&](int64_t, int64_t) {{
    std::vector<real> copied;
    for (int64_t tile; (tile = next_tile.fetch_add(1)) < tiles;) {{
      const int64_t type = owners[tile];
      real* const to = is_whole(type) ? reinterpret_cast<real*>(out) + type * size : partial + tile * size;
      for (int64_t head = 0; head < heads; head += at_once)
        shorthaul::outer_tile<Number>(
            limits[tile], limits[tile + 1], std::min(at_once, heads - head), inner, depth, width, copied,
            [&](int64_t i) {{
              const int64_t row = order ? order[i] : i;
              return x + ((gather_x ? gather_x[row] : row) * heads + head) * inner * depth;
            }},
            [&](int64_t i) {{
              const int64_t row = order ? order[i] : i;
              return y + ((gather_y ? gather_y[row] : row) * heads + head) * inner * width;
            }},
            to + head * depth * width);
    }}
  }});
  shorthaul::on_each_thread(types < threads ? types : threads, [&](int64_t, int64_t) {{
    std::vector<real> total(size);
    for (int64_t type; (type = next_type.fetch_add(1)) < types;) {{
      if (is_whole(type)) continue;
      std::memset(total.data(), 0, sizeof(real) * size);
      for (int64_t tile = first[type]; tile < first[type + 1]; ++tile)
        for (int64_t n = 0; n < size; ++n) total[n] += partial[tile * size + n];
      for (int64_t n = 0; n < size; ++n)
        out[type * size + n] = Number::store(total[n]);
    }}
  }});
}}
"""


def _heads_at_once(heads: int, weight_size: int) -> int:
    """Heads that a tile takes together: a row's parts lie side by side, but weights want their cache."""
    return max(1, min(heads, WEIGHTS_AT_ONCE // max(1, weight_size)))
