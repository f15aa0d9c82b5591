// Random numbers that depend on what they are for and not on who draws them.
//
// Every target node of every hop of every sample has a stream of its own (SplitMix64 started at a
// mixed key), so any number of threads, in any order, draws the same numbers.
#pragma once

#include <cstdint>

namespace shorthaul {

constexpr uint64_t golden_ratio = 0x9E3779B97F4A7C15ull;

// A bijection of 64 bits that scatters neighboring inputs.
inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

class RandomStream {
 public:
  RandomStream(uint64_t key, uint64_t owner) : state_(mix(key ^ mix(owner + golden_ratio))) {}

  uint64_t next() { return mix(state_ += golden_ratio); }

  // Uniform on the multiples of 2^-53 in [0, 1).
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // Uniform on [0, bound), exactly: the few products that would favor small numbers are drawn anew.
  uint64_t below(uint64_t bound) {
    unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t excess = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < excess) {
        product = static_cast<unsigned __int128>(next()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace shorthaul
