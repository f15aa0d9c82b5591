// Activations on sums that are still in registers.
//
// Single precision uses a polynomial for exp (relative error below 3e-7) and for erf (absolute
// error below 2e-7), because a call into the C library per lane costs more than the convolution of
// a small window; double precision calls the library.
#pragma once

#include "shorthaul/conv/methods/vector.h"

namespace shorthaul {

template <class Function>
static SHORTHAUL_INLINE vec each_lane(vec x, const Function& function) {
  for (int lane = 0; lane < lanes; ++lane) x[lane] = function(x[lane]);
  return x;
}

// A NaN is neither above nor below a limit, so it passes through.
static SHORTHAUL_INLINE vec at_least(vec x, real limit) { return x < limit ? broadcast(limit) : x; }
static SHORTHAUL_INLINE vec at_most(vec x, real limit) { return x > limit ? broadcast(limit) : x; }

// exp(x) = 2^n * e^r with |r| <= ln(2)/2; ln(2) is subtracted in two parts to keep r exact.
static SHORTHAUL_INLINE vec exponential(vec x) {
  if constexpr (sizeof(real) == 8) {
    return each_lane(x, [](real lane) { return std::exp(lane); });
  } else {
    const vec limited = at_most(at_least(x, -87.3f), 88.3f);
    const vec shifted = limited * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to whole
    const vec n = shifted - 12582912.0f;
    const vec r = (limited - n * 0.693359375f) + n * 2.12194440e-4f;
    vec sum = broadcast(1.9875691500e-4f);
    sum = sum * r + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    sum = sum * r * r + r + 1.0f;
    const wholes exponent = (((wholes)shifted) << 23) + (127 << 23);
    return sum * (vec)exponent;
  }
}

// Abramowitz and Stegun 7.1.26.
static SHORTHAUL_INLINE vec error_function(vec x) {
  if constexpr (sizeof(real) == 8) {
    return each_lane(x, [](real lane) { return std::erf(lane); });
  } else {
    const vec size = x < 0 ? -x : x;
    const vec t = 1.0f / (1.0f + 0.3275911f * size);
    vec sum = broadcast(1.061405429f);
    sum = sum * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    const vec result = 1.0f - sum * t * exponential(-size * size);
    return x < 0 ? -result : result;
  }
}

struct NoActivation {
  static SHORTHAUL_INLINE vec apply(vec x) { return x; }
};
struct Relu {
  static SHORTHAUL_INLINE vec apply(vec x) { return at_least(x, 0); }
};
struct Relu6 {
  static SHORTHAUL_INLINE vec apply(vec x) { return at_most(at_least(x, 0), 6); }
};
struct Hardswish {
  static SHORTHAUL_INLINE vec apply(vec x) {
    return x * at_most(at_least(x + 3, 0), 6) * (real{1} / 6);
  }
};
struct Sigmoid {
  static SHORTHAUL_INLINE vec apply(vec x) { return 1 / (1 + exponential(-x)); }
};
struct Silu {
  static SHORTHAUL_INLINE vec apply(vec x) { return x / (1 + exponential(-x)); }
};
struct Gelu {
  static SHORTHAUL_INLINE vec apply(vec x) {
    return x * real{0.5} * (1 + error_function(x * real{0.70710678118654752}));
  }
};
struct Tanh {
  static SHORTHAUL_INLINE vec apply(vec x) {
    return each_lane(x, [](real lane) { return std::tanh(lane); });
  }
};

// Activations of a few instructions, which sums get on their way out of the registers of a tile.
template <class Activation>
constexpr bool is_short = std::is_same_v<Activation, NoActivation> || std::is_same_v<Activation, Relu> ||
                          std::is_same_v<Activation, Relu6> || std::is_same_v<Activation, Hardswish>;

// How sums become output values: activated, then narrowed.
template <class Value, class Activation>
struct Activated {
  using value = typename Value::value;
  static SHORTHAUL_INLINE void store(value* to, vec from) { Value::store(to, Activation::apply(from)); }
};

}  // namespace shorthaul
