// Names to numbers, in the order of their first appearance.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace shorthaul {

class NameTable {
 public:
  NameTable() : slots_(1 << 12, Slot{0, -1}) { offsets.push_back(0); }

  // The number of `name`; a name that was not met before gets the next one.
  int64_t number(std::string_view name) { return number(name, hash_bytes(name)); }

  // The numbers here of all names of `other`, in its order.
  void add_all(const NameTable& other, std::vector<int64_t>& numbers) {
    constexpr size_t ahead = 16;  // names whose slots are on their way to the cache
    const size_t count = other.hashes_.size();
    numbers.resize(count);
    for (size_t each = 0; each < count; ++each) {
      if (each + ahead < count) {
        __builtin_prefetch(&slots_[other.hashes_[each + ahead] & (slots_.size() - 1)]);
      }
      numbers[each] = number(other.name(static_cast<int64_t>(each)), other.hashes_[each]);
    }
  }

  // Without names, and with the memory for as many as there were.
  void clear() {
    text.clear();
    offsets.resize(1);
    hashes_.clear();
    std::fill(slots_.begin(), slots_.end(), Slot{0, -1});
  }

  std::string_view name(int64_t number) const {
    const int64_t start = offsets[number];
    return {text.data() + start, static_cast<size_t>(offsets[number + 1] - start)};
  }

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }

  std::vector<char> text;
  std::vector<int64_t> offsets;

 private:
  struct Slot {
    uint64_t hash;
    int64_t number;
  };

  int64_t number(std::string_view name, uint64_t hash) {
    size_t at = hash & (slots_.size() - 1);
    for (;; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.number < 0) break;
      if (slot.hash == hash && this->name(slot.number) == name) return slot.number;
    }
    const int64_t number = size();
    text.insert(text.end(), name.begin(), name.end());
    offsets.push_back(static_cast<int64_t>(text.size()));
    hashes_.push_back(hash);
    slots_[at] = Slot{hash, number};
    if (2 * static_cast<size_t>(size()) > slots_.size()) grow();
    return number;
  }

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
  std::vector<uint64_t> hashes_;  // by number, so that another table need not hash again
};

}  // namespace shorthaul
