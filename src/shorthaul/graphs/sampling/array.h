// Memory that grows and is kept: fresh pages cost more than everything that is written to them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace shorthaul {

template <class Element>
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { std::free(elements_); }

  // Room for `count` elements; the first `kept` stay as they are, the others are arbitrary.
  Element* reserve(int64_t count, int64_t kept = 0) {
    if (count > capacity_) {
      if (count > INT64_MAX / static_cast<int64_t>(2 * sizeof(Element))) throw std::bad_alloc();
      const int64_t capacity = count + count / 2;
      auto* grown = static_cast<Element*>(std::malloc(sizeof(Element) * capacity));
      if (grown == nullptr) throw std::bad_alloc();
      if (kept > 0) std::memcpy(grown, elements_, sizeof(Element) * kept);
      std::free(elements_);
      elements_ = grown;
      capacity_ = capacity;
    }
    return elements_;
  }

  Element* data() { return elements_; }
  const Element* data() const { return elements_; }

 private:
  Element* elements_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace shorthaul
