// Vectors of one machine register, written once for every instruction set.
//
// The generated text defines SHORTHAUL_REAL (what is summed: float or double) and SHORTHAUL_LANES
// (how many fit one register) before including this, and SHORTHAUL_PAIRS where bfloat16 values are
// multiplied two by two. GCC's vector extensions make AVX2, AVX-512 and NEON out of the same lines;
// only conversions and products of 16 bits need to know the machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define SHORTHAUL_INLINE inline __attribute__((always_inline))

namespace shorthaul {

using real = SHORTHAUL_REAL;
constexpr int lanes = SHORTHAUL_LANES;
using whole = std::conditional_t<sizeof(real) == 8, int64_t, int32_t>;
using bits = std::make_unsigned_t<whole>;

typedef real vec __attribute__((vector_size(lanes * sizeof(real))));
typedef whole wholes __attribute__((vector_size(lanes * sizeof(real))));
typedef bits bit_lanes __attribute__((vector_size(lanes * sizeof(real))));
typedef uint16_t half_lanes __attribute__((vector_size(lanes * sizeof(uint16_t))));
// Numbers of 32 bits, as many as there are lanes: what 16 bits become first where sums are of 64.
typedef float float_lanes __attribute__((vector_size(lanes * sizeof(float))));
typedef uint32_t word_lanes __attribute__((vector_size(lanes * sizeof(uint32_t))));

static SHORTHAUL_INLINE vec load(const real* from) {
  vec value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

static SHORTHAUL_INLINE void store(real* to, vec value) { std::memcpy(to, &value, sizeof value); }

static SHORTHAUL_INLINE vec broadcast(real value) { return value - vec{}; }

// `count` values from `from` on, again and again. Integers, whose copying changes no bit.
template <int count>
static SHORTHAUL_INLINE vec repeat(const real* from) {
  if constexpr (count == 1) {
    return broadcast(*from);
  } else {
    static_assert(count * sizeof(real) == sizeof(int64_t), "one number of 64 bits");
    typedef int64_t pairs __attribute__((vector_size(lanes * sizeof(real))));
    int64_t both;
    std::memcpy(&both, from, sizeof both);
    return (vec)(both - pairs{});
  }
}

// `count` runs of lanes one behind the other as lanes in turn: a0 a1 b0 b1 -> a0 b0 a1 b1; and back.
template <int count, int... lane>
static SHORTHAUL_INLINE vec interleave(vec runs, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(runs, runs, (lane % count * (lanes / count) + lane / count)...);
}

template <int count>
static SHORTHAUL_INLINE vec interleave(vec runs) {
  return interleave<count>(runs, std::make_integer_sequence<int, lanes>{});
}

template <int count>
static SHORTHAUL_INLINE vec separate(vec in_turn) {
  return interleave<lanes / count>(in_turn);
}

// What a window is made of, and how many of its values one instruction multiplies. Weights lie in as many
// to a lane.
#if defined(SHORTHAUL_PAIRS)
using factor = uint16_t;
constexpr int together = 2;
#else
using factor = real;
constexpr int together = 1;
#endif

// Instructions that multiply `values` values of a window.
static SHORTHAUL_INLINE constexpr int64_t steps_of(int64_t values) { return (values + together - 1) / together; }

// The factors of one step in every lane; of the last step, where there are fewer, zeros beside them.
static SHORTHAUL_INLINE vec broadcast_factors(const factor* from) {
#if defined(SHORTHAUL_PAIRS)
  uint32_t both;
  std::memcpy(&both, from, sizeof both);
  return (vec)(both - bit_lanes{});
#else
  return broadcast(*from);
#endif
}

static SHORTHAUL_INLINE vec broadcast_last(const factor* from) {
#if defined(SHORTHAUL_PAIRS)
  return (vec)(uint32_t{*from} - bit_lanes{});
#else
  return broadcast(*from);
#endif
}

// sum += left * right, rounded once. Written as the instruction: left to choose, g++ 12 takes the
// forms that overwrite a factor and then copies sums between registers, for 15 % of the speed.
static SHORTHAUL_INLINE void accumulate(vec& sum, vec left, vec right) {
#if defined(SHORTHAUL_PAIRS)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
#elif defined(__x86_64__) && defined(__FMA__)
  if constexpr (sizeof(real) == 4) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
  } else {
    asm("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
  }
#elif defined(__aarch64__)
  if constexpr (sizeof(real) == 4) {
    asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(left), "w"(right));
  } else {
    asm("fmla %0.2d, %1.2d, %2.2d" : "+w"(sum) : "w"(left), "w"(right));
  }
#else
  sum += left * right;
#endif
}

// How values lie in memory, and how they become sums and back.
struct AsReal {
  using value = real;
  static constexpr bool is_real = true;
  static SHORTHAUL_INLINE real widen(value from) { return from; }
  static SHORTHAUL_INLINE value narrow(real from) { return from; }
  static SHORTHAUL_INLINE vec load(const value* from) { return shorthaul::load(from); }
  static SHORTHAUL_INLINE void store(value* to, vec from) { shorthaul::store(to, from); }
};

struct AsBfloat16 {
  using value = uint16_t;
  static constexpr bool is_real = false;
  static SHORTHAUL_INLINE real widen(value from) {
    const uint32_t wide = uint32_t{from} << 16;
    float result;
    std::memcpy(&result, &wide, sizeof result);
    return result;
  }
  static SHORTHAUL_INLINE vec load(const value* from) {
    half_lanes narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    return __builtin_convertvector((float_lanes)(__builtin_convertvector(narrow, word_lanes) << 16), vec);
  }
  // To nearest, ties to even; a NaN stays a NaN.
  static SHORTHAUL_INLINE half_lanes narrow_lanes(vec from) {
#if defined(SHORTHAUL_PAIRS)
    // Where products flush denormal numbers, rounding may: one instruction instead of eight.
    half_lanes narrow;
    asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(from));
    return narrow;
#else
    const float_lanes single = __builtin_convertvector(from, float_lanes);
    const word_lanes wide = (word_lanes)single;
    const word_lanes rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    const word_lanes quiet = (wide >> 16) | 0x40;
    return __builtin_convertvector(single == single ? rounded : quiet, half_lanes);
#endif
  }
  static SHORTHAUL_INLINE void store(value* to, vec from) {
    const half_lanes narrow = narrow_lanes(from);
    std::memcpy(to, &narrow, sizeof narrow);
  }
  static SHORTHAUL_INLINE value narrow(real from) { return narrow_lanes(broadcast(from))[0]; }
};

#if !defined(__F16C__)
#if defined(__aarch64__)
using half_float = __fp16;  // g++ 12 has no _Float16 there
#else
using half_float = _Float16;
#endif
#endif

struct AsFloat16 {
  using value = uint16_t;
  static constexpr bool is_real = false;
  static SHORTHAUL_INLINE real widen(value from) {
#if defined(__F16C__)
    return _cvtsh_ss(from);
#else
    half_float narrow;
    std::memcpy(&narrow, &from, sizeof narrow);
    return narrow;
#endif
  }
  static SHORTHAUL_INLINE value narrow(real from) {
#if defined(__F16C__)
    return _cvtss_sh(from, 0);
#else
    const half_float narrow = from;
    value result;
    std::memcpy(&result, &narrow, sizeof result);
    return result;
#endif
  }
  static SHORTHAUL_INLINE vec load(const value* from) {
#if defined(__F16C__)
    // Copied, not cast: this is no template, so the casts of other widths would be compiled too.
    if constexpr (lanes == 8 && sizeof(real) == 4) {
      __m128i narrow;
      std::memcpy(&narrow, from, sizeof narrow);
      const __m256 wide = _mm256_cvtph_ps(narrow);
      vec result{};
      std::memcpy(&result, &wide, sizeof wide < sizeof result ? sizeof wide : sizeof result);
      return result;
    }
#if defined(__AVX512F__)
    if constexpr (lanes == 16 && sizeof(real) == 4) {
      __m256i narrow;
      std::memcpy(&narrow, from, sizeof narrow);
      const __m512 wide = _mm512_cvtph_ps(narrow);
      vec result{};
      std::memcpy(&result, &wide, sizeof wide < sizeof result ? sizeof wide : sizeof result);
      return result;
    }
#endif
#endif
    vec result;
    for (int lane = 0; lane < lanes; ++lane) result[lane] = widen(from[lane]);
    return result;
  }
  static SHORTHAUL_INLINE void store(value* to, vec from) {
#if defined(__F16C__)
    if constexpr (lanes == 8 && sizeof(real) == 4) {
      __m256 wide{};
      std::memcpy(&wide, &from, sizeof wide < sizeof from ? sizeof wide : sizeof from);
      const __m128i narrow = _mm256_cvtps_ph(wide, 0);
      std::memcpy(to, &narrow, sizeof narrow);
      return;
    }
#if defined(__AVX512F__)
    if constexpr (lanes == 16 && sizeof(real) == 4) {
      __m512 wide{};
      std::memcpy(&wide, &from, sizeof wide < sizeof from ? sizeof wide : sizeof from);
      const __m256i narrow = _mm512_cvtps_ph(wide, 0);
      std::memcpy(to, &narrow, sizeof narrow);
      return;
    }
#endif
#endif
    for (int lane = 0; lane < lanes; ++lane) to[lane] = narrow(from[lane]);
  }
};

// Copies fewer values than a vector has, in pieces of halved sizes: of a loop over single values g++ 12
// makes a string instruction that takes longer than the whole vector's work.
template <int piece = lanes / 2, class value>
static SHORTHAUL_INLINE void copy_few(value* to, const value* from, int64_t count) {
  if constexpr (piece > 0) {
    if (count & piece) {
      std::memcpy(to, from, piece * sizeof(value));
      to += piece;
      from += piece;
    }
    copy_few<piece / 2>(to, from, count);
  }
}

// The first `count` lanes only: the last vector of a row, of a group, of a tensor.
template <class Kind>
static SHORTHAUL_INLINE vec load_part(const typename Kind::value* from, int64_t count) {
  if (count >= lanes) return Kind::load(from);
  typename Kind::value whole_vector[lanes] = {};
  if (count > 0) copy_few(whole_vector, from, count);
  return Kind::load(whole_vector);
}

template <class Kind>
static SHORTHAUL_INLINE void store_part(typename Kind::value* to, vec from, int64_t count) {
  if (count >= lanes) return Kind::store(to, from);
  typename Kind::value whole_vector[lanes];
  Kind::store(whole_vector, from);
  if (count > 0) copy_few(to, whole_vector, count);
}

// One butterfly of a transposition: exchanges the blocks of `step` lanes that lie off the diagonal.
template <int step, int... lane>
static SHORTHAUL_INLINE void exchange(vec& upper, vec& lower,
                                      std::integer_sequence<int, lane...>) {
  const vec first = __builtin_shufflevector(
      upper, lower, ((lane & step) == 0 ? lane : lanes + lane - step)...);
  const vec second = __builtin_shufflevector(
      upper, lower, ((lane & step) == 0 ? lane + step : lanes + lane)...);
  upper = first;
  lower = second;
}

template <int step>
static SHORTHAUL_INLINE void exchange_rows(vec (&rows)[lanes]) {
  if constexpr (step < lanes) {
#pragma GCC unroll 16
    for (int row = 0; row < lanes; ++row) {
      if ((row & step) == 0) {
        exchange<step>(rows[row], rows[row + step], std::make_integer_sequence<int, lanes>{});
      }
    }
    exchange_rows<step * 2>(rows);
  }
}

static SHORTHAUL_INLINE void transpose(vec (&rows)[lanes]) { exchange_rows<1>(rows); }

}  // namespace shorthaul
