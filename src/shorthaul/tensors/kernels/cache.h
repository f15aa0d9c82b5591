// Which rows a cache keeps: the bookkeeping, without the rows themselves.
//
// A cache has slots. `look_up` says in which slot each id lies, or -1; `admit` finds slots for ids
// that were missing, evicting others, or -1 for those that are not worth one. Python copies the rows.
#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

namespace shorthaul {

constexpr int64_t nowhere = -1, never = std::numeric_limits<int64_t>::max();

// Ids to numbers: open addressing with linear probing, at most half full. Ids are not negative.
class IdMap {
 public:
  explicit IdMap(int64_t expected = 8) { reserve(expected); }

  int64_t find(int64_t id) const {
    for (int64_t at = home(id);; at = (at + 1) & mask) {
      if (keys[at] == id) return values[at];
      if (keys[at] == nowhere) return nowhere;
    }
  }

  void set(int64_t id, int64_t value) {
    if (2 * (count + 1) > mask + 1) reserve(count + 1);
    int64_t at = home(id);
    while (keys[at] != nowhere && keys[at] != id) at = (at + 1) & mask;
    if (keys[at] == nowhere) ++count;
    keys[at] = id;
    values[at] = value;
  }

  void remove(int64_t id) {
    int64_t at = home(id);
    while (keys[at] != id) {
      if (keys[at] == nowhere) return;
      at = (at + 1) & mask;
    }
    --count;
    // What was pushed past this place moves back, so that no search meets a hole too early.
    for (int64_t next = (at + 1) & mask; keys[next] != nowhere; next = (next + 1) & mask) {
      if (((next - home(keys[next])) & mask) < ((next - at) & mask)) continue;
      keys[at] = keys[next];
      values[at] = values[next];
      at = next;
    }
    keys[at] = nowhere;
  }

  void clear() {
    count = 0;
    std::fill(keys.begin(), keys.end(), nowhere);
  }

 private:
  std::vector<int64_t> keys, values;
  int64_t mask = 0, count = 0;

  int64_t home(int64_t id) const {
    return static_cast<int64_t>((static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull) >> 20) & mask;
  }

  void reserve(int64_t expected) {
    int64_t size = 16;
    while (size < 4 * expected) size *= 2;
    if (size <= mask + 1) return;
    std::vector<int64_t> old_keys(size, nowhere), old_values(size);
    old_keys.swap(keys);
    old_values.swap(values);
    mask = size - 1;
    count = 0;
    for (size_t at = 0; at < old_keys.size(); ++at) {
      if (old_keys[at] != nowhere) set(old_keys[at], old_values[at]);
    }
  }
};

class RowCache {
 public:
  explicit RowCache(int64_t capacity) : slot_ids(capacity, nowhere), capacity(capacity) {}
  virtual ~RowCache() = default;

  int64_t look_up(const int64_t* ids, int64_t count, int64_t* slots) {
    int64_t hits = 0;
    for (int64_t at = 0; at < count; ++at) {
      slots[at] = slots_of.find(ids[at]);
      hits += slots[at] != nowhere;
      touch(ids[at], slots[at]);
    }
    return hits;
  }

  void admit(const int64_t* ids, int64_t count, int64_t* slots) {
    for (int64_t at = 0; at < count; ++at) slots[at] = slots_of.find(ids[at]) == nowhere ? enter(ids[at]) : nowhere;
    // What was evicted again by a later id of the same batch must not be copied.
    for (int64_t at = 0; at < count; ++at) {
      if (slots[at] != nowhere && slot_ids[slots[at]] != ids[at]) slots[at] = nowhere;
    }
  }

  virtual void expect(const int64_t*, int64_t) {}
  virtual void forget_expected() {}

 protected:
  IdMap slots_of;
  std::vector<int64_t> slot_ids;
  int64_t capacity, used = 0;

  virtual void touch(int64_t, int64_t) {}
  virtual int64_t enter(int64_t id) = 0;

  int64_t place(int64_t slot, int64_t id) {
    if (slot_ids[slot] != nowhere) slots_of.remove(slot_ids[slot]);
    slot_ids[slot] = id;
    slots_of.set(id, slot);
    return slot;
  }
};

// The rows that were named, each kept from its first use on.
class StaticCache : public RowCache {
 public:
  StaticCache(int64_t capacity, const int64_t* hot, int64_t count) : RowCache(capacity) {
    for (int64_t at = 0; at < count && reserved < capacity; ++at) {
      if (own_slots.find(hot[at]) == nowhere) own_slots.set(hot[at], reserved++);
    }
  }

 protected:
  int64_t enter(int64_t id) override {
    const int64_t slot = own_slots.find(id);
    return slot == nowhere ? nowhere : place(slot, id);
  }

 private:
  IdMap own_slots;
  int64_t reserved = 0;
};

// SIEVE: a queue in order of arrival, and a hand that goes from the oldest to the newest, sparing
// once what was used since it came by.
class SieveCache : public RowCache {
 public:
  explicit SieveCache(int64_t capacity)
      : RowCache(capacity), newer(capacity, nowhere), older(capacity, nowhere), is_used(capacity, 0) {}

 protected:
  void touch(int64_t, int64_t slot) override {
    if (slot != nowhere) is_used[slot] = 1;
  }

  int64_t enter(int64_t id) override {
    if (capacity == 0) return nowhere;
    const int64_t slot = used < capacity ? used++ : evict();
    is_used[slot] = 0;
    newer[slot] = nowhere;
    older[slot] = newest;
    if (newest != nowhere) newer[newest] = slot;
    newest = slot;
    if (oldest == nowhere) oldest = slot;
    return place(slot, id);
  }

 private:
  std::vector<int64_t> newer, older;
  std::vector<uint8_t> is_used;
  int64_t newest = nowhere, oldest = nowhere, hand = nowhere;

  int64_t evict() {
    if (hand == nowhere) hand = oldest;
    while (is_used[hand]) {
      is_used[hand] = 0;
      hand = newer[hand] == nowhere ? oldest : newer[hand];
    }
    const int64_t slot = hand;
    hand = newer[slot];
    (newer[slot] == nowhere ? newest : older[newer[slot]]) = older[slot];
    (older[slot] == nowhere ? oldest : newer[older[slot]]) = newer[slot];
    return slot;
  }
};

// Belady within a window: it is told the ids of coming batches, keeps the rows that are used
// soonest, and gives up the one whose next use lies furthest ahead. An id that is looked up has
// had its next expected use.
class BeladyCache : public RowCache {
 public:
  explicit BeladyCache(int64_t capacity) : RowCache(capacity), next_use(capacity, never) {}

  void expect(const int64_t* ids, int64_t count) override {
    for (int64_t at = 0; at < count; ++at) {
      const int64_t use = new_use(batch);
      const int64_t last = last_of.find(ids[at]);
      if (last == nowhere) {
        first_of.set(ids[at], use);
        const int64_t slot = slots_of.find(ids[at]);
        if (slot != nowhere) plan_slot(slot, batch);
      } else {
        uses[last].following = use;
      }
      last_of.set(ids[at], use);
    }
    ++batch;
  }

  void forget_expected() override {
    uses.clear();
    free_uses.clear();
    first_of.clear();
    last_of.clear();
    for (int64_t slot = 0; slot < used; ++slot) plan_slot(slot, never);
  }

 protected:
  void touch(int64_t id, int64_t slot) override {
    const int64_t first = first_of.find(id);
    if (first == nowhere) return;
    const int64_t following = uses[first].following;
    free_uses.push_back(first);
    if (following == nowhere) {
      first_of.remove(id);
      last_of.remove(id);
    } else {
      first_of.set(id, following);
    }
    if (slot != nowhere) plan_slot(slot, when(id));
  }

  int64_t enter(int64_t id) override {
    if (capacity == 0) return nowhere;
    int64_t slot = used;
    if (used < capacity) {
      ++used;
    } else {
      while (next_use[furthest.top().second] != furthest.top().first) furthest.pop();  // out of date
      if (furthest.top().first <= when(id)) return nowhere;
      slot = furthest.top().second;
      furthest.pop();
    }
    place(slot, id);
    plan_slot(slot, when(id));
    return slot;
  }

 private:
  struct Use {
    int64_t batch, following;
  };
  std::vector<Use> uses;  // for each id a chain of the batches that will ask for it
  std::vector<int64_t> free_uses;
  IdMap first_of, last_of;
  std::vector<int64_t> next_use;  // by slot
  std::priority_queue<std::pair<int64_t, int64_t>> furthest;  // (next use, slot), some out of date
  int64_t batch = 0;

  int64_t when(int64_t id) const {
    const int64_t first = first_of.find(id);
    return first == nowhere ? never : uses[first].batch;
  }

  int64_t new_use(int64_t of_batch) {
    if (free_uses.empty()) {
      uses.push_back({of_batch, nowhere});
      return static_cast<int64_t>(uses.size()) - 1;
    }
    const int64_t use = free_uses.back();
    free_uses.pop_back();
    uses[use] = {of_batch, nowhere};
    return use;
  }

  void plan_slot(int64_t slot, int64_t use) {
    next_use[slot] = use;
    furthest.push({use, slot});
    if (static_cast<int64_t>(furthest.size()) <= 4 * capacity + 1024) return;
    std::priority_queue<std::pair<int64_t, int64_t>> current;
    for (int64_t each = 0; each < used; ++each) current.push({next_use[each], each});
    furthest.swap(current);
  }
};

}  // namespace shorthaul
