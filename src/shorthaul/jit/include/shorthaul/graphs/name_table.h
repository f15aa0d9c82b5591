// Names to numbers, in the order of their first appearance.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace shorthaul {

class NameTable {
 public:
  NameTable() : slots_(1 << 12, Slot{0, -1}) { offsets.push_back(0); }

  // The number of `name`; a name that was not met before gets the next one.
  int64_t number(std::string_view name) {
    const uint64_t hash = hash_bytes(name);
    size_t at = hash & (slots_.size() - 1);
    for (;; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.number < 0) break;
      if (slot.hash == hash && equals(slot.number, name)) return slot.number;
    }
    const int64_t number = size();
    text.insert(text.end(), name.begin(), name.end());
    offsets.push_back(static_cast<int64_t>(text.size()));
    slots_[at] = Slot{hash, number};
    if (2 * static_cast<size_t>(size()) > slots_.size()) grow();
    return number;
  }

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }

  std::vector<char> text;
  std::vector<int64_t> offsets;

 private:
  struct Slot {
    uint64_t hash;
    int64_t number;
  };

  // Eight bytes at a time, each multiplied into 128 bits whose halves are folded together.
  static uint64_t hash_bytes(std::string_view name) {
    uint64_t hash = 0x9E3779B97F4A7C15ull ^ name.size();
    const char* at = name.data();
    size_t left = name.size();
    while (left > 0) {
      uint64_t word = 0;
      const size_t taken = left < 8 ? left : 8;
      std::memcpy(&word, at, taken);
      const unsigned __int128 product =
          static_cast<unsigned __int128>(hash ^ word ^ 0xE7037ED1A0B428DBull) * 0xA0761D6478BD642Full;
      hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
      at += taken;
      left -= taken;
    }
    return hash ^ (hash >> 29);
  }

  bool equals(int64_t number, std::string_view name) const {
    const int64_t start = offsets[number];
    return offsets[number + 1] - start == static_cast<int64_t>(name.size()) &&
           std::memcmp(text.data() + start, name.data(), name.size()) == 0;
  }

  void grow() {
    std::vector<Slot> larger(2 * slots_.size(), Slot{0, -1});
    for (const Slot& slot : slots_) {
      if (slot.number < 0) continue;
      size_t at = slot.hash & (larger.size() - 1);
      while (larger[at].number >= 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = slot;
    }
    slots_.swap(larger);
  }

  std::vector<Slot> slots_;
};

}  // namespace shorthaul
