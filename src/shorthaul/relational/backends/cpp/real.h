// Numbers of generated relational kernels: how they are stored, and what they are computed in.
//
// `Stored` is the tensor's element, `real` what sums are taken in: float for the 16-bit formats, so
// that adding many small numbers to a large one does not lose them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace shorthaul {

struct Float32 {
  using Stored = float;
  using real = float;
  static inline real load(Stored x) { return x; }
  static inline Stored store(real x) { return x; }
};

struct Float64 {
  using Stored = double;
  using real = double;
  static inline real load(Stored x) { return x; }
  static inline Stored store(real x) { return x; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using real = float;
  static inline real load(Stored x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  // To the nearest, ties to even; a NaN stays one.
  static inline Stored store(real x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Stored>((bits >> 16) | 0x40u);
    return static_cast<Stored>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using real = float;
  static inline real load(Stored x) {
    _Float16 half;
    std::memcpy(&half, &x, 2);
    return static_cast<float>(half);
  }
  static inline Stored store(real x) {
    const _Float16 half = static_cast<_Float16>(x);
    Stored bits;
    std::memcpy(&bits, &half, 2);
    return bits;
  }
};

inline double exponential(double x) { return std::exp(x); }

// e to the x within two units of the last place, without a call: a loop over heads becomes vectors.
// x = n ln 2 + r; the power of r is a polynomial, the power of 2 is put together from bits in two
// halves, so that results near zero lose digits one by one and large ones become infinite.
inline float exponential(float x) {
  const float low = x < -104.0f ? -104.0f : x;
  const float within = low > 89.0f ? 89.0f : low;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = within * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (within - n * 0.693359375f) + n * 2.12194440e-4f;
  float power = 1.9875691500e-4f;
  power = power * r + 1.3981999507e-3f;
  power = power * r + 8.3334519073e-3f;
  power = power * r + 4.1665795894e-2f;
  power = power * r + 1.6666665459e-1f;
  power = power * r + 5.0000001201e-1f;
  power = power * r * r + r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, 4);
  const int32_t whole = static_cast<int32_t>(bits - 0x4b400000u);
  const uint32_t half = static_cast<uint32_t>(whole >> 1);
  const uint32_t first = (half + 127u) << 23;
  const uint32_t second = (static_cast<uint32_t>(whole) - half + 127u) << 23;
  float one, other;
  std::memcpy(&one, &first, 4);
  std::memcpy(&other, &second, 4);
  return power * one * other;
}

// NaN passes through all of these, as it does in PyTorch.
template <class real>
inline real relu(real x) {
  return x < 0 ? real(0) : x;
}

// The share of a normal distribution that lies below x.
inline double normal_share(double x) { return 0.5 * std::erfc(-0.7071067811865476 * x); }

// Without a call, as `exponential`: erfc(z) is t exp(p(t) - z^2) with t = 1 / (1 + z / 2), and p fitted
// to double precision's erfc at Chebyshev's points. Within four units of the last place above -1; below,
// the share vanishes, and the rounding of z^2 costs z^2 units of it.
inline float normal_share(float x) {
  const float z = std::fabs(x) * 0.70710678f;
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.16738101f;
  p = p * t - 0.801325261f;
  p = p * t + 1.43554546f;
  p = p * t - 1.0600994f;
  p = p * t + 0.213782742f;
  p = p * t - 0.150773007f;
  p = p * t + 0.0846820956f;
  p = p * t + 0.376550192f;
  p = p * t + 0.999756808f;
  p = p * t - 1.26550058f;
  const float tail = 0.5f * t * exponential(p - z * z);
  // By a factor, not by a choice of sums: compilers make a branch of that, and no vectors.
  const float below = x < 0 ? 1.0f : 0.0f;
  return below * tail + (1.0f - below) * (1.0f - tail);
}

template <class real>
inline real gelu(real x) {
  return x * normal_share(x);
}

template <class real>
inline real gelu_slope(real x) {
  const real density = exponential(real(-0.5) * x * x) * real(0.3989422804014327);
  return normal_share(x) + x * density;
}

template <class real>
inline real silu(real x) {
  return x / (real(1) + exponential(-x));
}

template <class real>
inline real silu_slope(real x) {
  const real gate = real(1) / (real(1) + exponential(-x));
  return gate * (real(1) + x * (real(1) - gate));
}

inline uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Dropout's mask for one element: see random_stream.py, which says the same in PyTorch.
template <class real>
inline real keep(uint32_t state, int64_t element, uint64_t limit, real scale) {
  const uint32_t mixed = mix((static_cast<uint32_t>(element) * 0x9e3779b9u) ^ state);
  return mixed >= limit ? scale : real(0);
}

}  // namespace shorthaul
