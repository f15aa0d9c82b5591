// From sums to output values: residual, activation, narrowing, and the two memory layouts.
#pragma once

#include <algorithm>

#include "shorthaul/conv/methods/activation.h"
#include "shorthaul/conv/methods/geometry.h"

namespace shorthaul {

template <class Out, class Activation>
static SHORTHAUL_INLINE void finish(typename Out::value* output,
                                    const typename Out::value* residual, int64_t at, vec sum,
                                    int64_t count) {
  if (residual != nullptr) sum += load_part<Out>(residual + at, count);
  store_part<Out>(output + at, Activation::apply(sum), count);
}

// Calls body with the compile-time constant min(wanted, largest): one copy of the code per size.
template <int largest, class Body>
static SHORTHAUL_INLINE void with_constant(int64_t wanted, const Body& body) {
  if constexpr (largest > 1) {
    if (wanted < largest) return with_constant<largest - 1>(wanted, body);
  }
  body(std::integral_constant<int, largest>{});
}

// Splits `count` into tiles of at most `largest` that differ by at most one: 25 = 5 * 5, not 4 * 6 + 1.
template <class Body>
static SHORTHAUL_INLINE void balanced_tiles(int64_t count, int64_t largest, const Body& body) {
  const int64_t tiles = (count + largest - 1) / largest;
  if (tiles == 0) return;
  const int64_t smaller = count / tiles, wider = count % tiles;
  int64_t begin = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t size = smaller + (tile < wider);
    body(begin, size);
    begin += size;
  }
}

// The same with no tile across the ends of `inner`: tiles at the edges are slow, so they shall be small.
template <class Body>
static SHORTHAUL_INLINE void tiles_by_edges(int64_t count, Span inner, int64_t largest, const Body& body) {
  const int64_t low = std::min(inner.begin, count), high = std::min(std::max(low, inner.end), count);
  const int64_t limits[] = {0, low, high, count};
  for (int part = 0; part < 3; ++part) {
    balanced_tiles(limits[part + 1] - limits[part], largest, [&](int64_t first, int64_t size) { body(limits[part] + first, size); });
  }
}

// The first `count` lanes to every `step`-th place of a line of the output.
template <class Out, class Activation>
static SHORTHAUL_INLINE void finish_apart(typename Out::value* output, const typename Out::value* residual, int64_t at,
                                          vec sum, int64_t count, int64_t step) {
  typename Out::value narrow[lanes] = {};
  if (residual != nullptr) {
    for (int64_t lane = 0; lane < count; ++lane) narrow[lane] = residual[at + lane * step];
    sum += Out::load(narrow);
  }
  Out::store(narrow, Activation::apply(sum));
  for (int64_t lane = 0; lane < count; ++lane) output[at + lane * step] = narrow[lane];
}

// Contiguous output: finished sums of a pixel are the channels at `sums_of(pixel)`; pixels that are
// neighbors in their plane leave as vectors, transposed in registers. `step`: places from one pixel of a
// line to the next; a phase of a strided gradient has others in between.
template <class Out, class Activation, class SumsOf>
static inline void store_planes(typename Out::value* output, const typename Out::value* residual,
                                const SumsOf& sums_of, const int64_t* offsets,
                                int64_t pixels, int64_t channels, int64_t plane, int64_t step = 1) {
  int64_t pixel = 0;
  while (pixel < pixels) {
    int64_t run = 1;
    while (run < lanes && pixel + run < pixels &&
           offsets[pixel + run] == offsets[pixel] + run * step) {
      ++run;
    }
    for (int64_t channel = 0; channel < channels; channel += lanes) {
      const int64_t here = channels - channel < lanes ? channels - channel : lanes;
      if (run == lanes && here == lanes && residual == nullptr) {  // nothing but registers
        vec block[lanes];
#pragma GCC unroll 16
        for (int lane = 0; lane < lanes; ++lane) {
          block[lane] = load(sums_of(pixel + lane) + channel);
        }
        transpose(block);
        auto* to = output + offsets[pixel] + channel * plane;
        if (step == 1) {
#pragma GCC unroll 16
          for (int lane = 0; lane < lanes; ++lane, to += plane) Out::store(to, Activation::apply(block[lane]));
        } else {
          for (int lane = 0; lane < lanes; ++lane, to += plane) {
            finish_apart<Out, Activation>(to, nullptr, 0, block[lane], lanes, step);
          }
        }
        continue;
      }
      vec block[lanes] = {};
      for (int64_t lane = 0; lane < run; ++lane) {
        block[lane] = load(sums_of(pixel + lane) + channel);
      }
      transpose(block);
      for (int64_t lane = 0; lane < here; ++lane) {
        const int64_t at = offsets[pixel] + (channel + lane) * plane;
        if (step == 1) {
          finish<Out, Activation>(output, residual, at, block[lane], run);
        } else {
          finish_apart<Out, Activation>(output, residual, at, block[lane], run, step);
        }
      }
    }
    pixel += run;
  }
}

}  // namespace shorthaul
