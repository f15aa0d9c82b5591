// Memory of large tensors on the CPU, in place of malloc's: what was freed is used again, and what lies in
// memory never exceeds what was live at once.
//
// One range of addresses is reserved, and handed out in granules. Each granule is live (a tensor's), idle
// (freed, with its pages) or absent (without pages). A block is taken from
//     the smallest idle range that is large enough, else
//     the largest idle range that enough absent granules follow, together with these, else
//     the smallest absent range.
// Before pages come in anew, idle ones go back to the system, as many as would exceed the peak of what was
// live: that of this window of allocations or of the one before, so that a peak that does not come again is
// forgotten.

#include <c10/core/CPUAllocator.h>

#ifndef __GLIBCXX__
#error "PyTorch is built with libstdc++: another standard library lays out its types in another way"
#endif

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>

namespace {

constexpr int64_t granule_bytes = 64 << 10;
constexpr int64_t window_allocations = 1 << 15;

int64_t whole_granules(int64_t bytes) {
    return (bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
}

// Ranges of addresses of which no two touch, found by where they begin and by how large they are.
class Ranges {
public:
    int64_t bytes() const { return total; }

    // The smallest that has so many bytes, or -1.
    int64_t smallest_of(int64_t wanted) const {
        auto found = by_size.lower_bound({wanted, 0});
        return found == by_size.end() ? -1 : found->second;
    }

    // The largest, which is there where bytes() is not 0.
    int64_t largest() const { return by_size.rbegin()->second; }

    int64_t size_at(int64_t begin) const {
        auto found = by_begin.find(begin);
        return found == by_begin.end() ? 0 : found->second;
    }

    const std::set<std::pair<int64_t, int64_t>>& sizes() const { return by_size; }

    void add(int64_t begin, int64_t size) {
        total += size;
        auto after = by_begin.lower_bound(begin);
        if (after != by_begin.end() && after->first == begin + size) {
            size += after->second;
            after = erase(after);
        }
        if (after != by_begin.begin()) {
            auto before = std::prev(after);
            if (before->first + before->second == begin) {
                begin = before->first;
                size += before->second;
                erase(before);
            }
        }
        insert(begin, size);
    }

    // The front of the range that begins there.
    void take(int64_t begin, int64_t taken) {
        auto found = by_begin.find(begin);
        const int64_t size = found->second;
        erase(found);
        if (taken < size) insert(begin + taken, size - taken);
        total -= taken;
    }

private:
    std::map<int64_t, int64_t> by_begin;
    std::set<std::pair<int64_t, int64_t>> by_size;
    int64_t total = 0;

    std::map<int64_t, int64_t>::iterator erase(std::map<int64_t, int64_t>::iterator it) {
        by_size.erase({it->second, it->first});
        return by_begin.erase(it);
    }

    void insert(int64_t begin, int64_t size) {
        by_begin.emplace(begin, size);
        by_size.emplace(size, begin);
    }
};

struct Facts {  // in the order of `PoolFacts` in tensor_pool.py
    int64_t live_bytes = 0;
    int64_t idle_bytes = 0;
    int64_t peak_live_bytes = 0;
    int64_t fresh_bytes = 0;     // that came in without pages, ever
    int64_t returned_bytes = 0;  // whose pages went back, ever
    int64_t allocations = 0;
};

class TensorPool final : public c10::Allocator {
public:
    TensorPool(char* base, int64_t capacity_bytes, int64_t smallest, int64_t largest)
        : base(base), capacity_bytes(capacity_bytes), smallest(smallest), largest(largest),
          plain(c10::GetDefaultCPUAllocator()) {
        absent.add(0, capacity_bytes);
    }

    c10::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;

    void copy_data(void* target, const void* source, size_t bytes) const override {
        default_copy_data(target, source, bytes);
    }

    void free(void* memory);
    void return_idle();
    Facts look();
    std::mutex& guard() { return lock; }

private:
    char* const base;
    const int64_t capacity_bytes, smallest, largest;
    c10::Allocator* const plain;  // of what is smaller, or larger than the machine
    std::mutex lock;
    Ranges idle, absent;
    std::unordered_map<int64_t, int64_t> live;  // where a block begins -> its granules' bytes
    Facts facts;
    int64_t peak_now = 0, peak_before = 0, window_ends = window_allocations;

    bool is_ours(const void* memory) const {
        return memory >= base && memory < base + capacity_bytes;
    }

    int64_t take(int64_t size);
    int64_t take_after_idle(int64_t size);
    void return_beyond(int64_t most_idle_bytes);
    void begin_window();
};

TensorPool* pool = nullptr;  // never destroyed: tensors may live until the process ends

void release(void* memory) { pool->free(memory); }

c10::DataPtr TensorPool::allocate(size_t bytes) {
    const c10::Device here(c10::DeviceType::CPU);
    if (bytes >= static_cast<size_t>(smallest) && bytes <= static_cast<size_t>(largest)) {
        int64_t begin;
        {
            std::lock_guard<std::mutex> holding(lock);
            begin = take(whole_granules(static_cast<int64_t>(bytes)));
        }
        if (begin >= 0) {
            void* memory = base + begin;
            c10::profiledCPUMemoryReporter().New(memory, bytes);
            return {memory, memory, &release, here};
        }
    }
    void* memory = plain->raw_allocate(bytes);
    return {memory, memory, &release, here};
}

c10::DeleterFnPtr TensorPool::raw_deleter() const { return &release; }

void TensorPool::free(void* memory) {
    if (!is_ours(memory)) {
        plain->raw_deallocate(memory);
        return;
    }
    c10::profiledCPUMemoryReporter().Delete(memory);
    std::lock_guard<std::mutex> holding(lock);
    auto found = live.find(static_cast<char*>(memory) - base);
    const auto [begin, size] = *found;
    live.erase(found);
    facts.live_bytes -= size;
    idle.add(begin, size);
}

// Where a block of so many bytes begins; -1 where there is no room.
int64_t TensorPool::take(int64_t size) {
    int64_t begin = idle.smallest_of(size);
    if (begin >= 0) {
        idle.take(begin, size);
    } else {
        begin = take_after_idle(size);
        if (begin < 0) return -1;
    }
    live.emplace(begin, size);
    facts.live_bytes += size;
    facts.allocations += 1;
    if (facts.live_bytes > facts.peak_live_bytes) facts.peak_live_bytes = facts.live_bytes;
    if (facts.live_bytes > peak_now) peak_now = facts.live_bytes;
    if (facts.allocations >= window_ends) begin_window();
    return begin;
}

int64_t TensorPool::take_after_idle(int64_t size) {
    int64_t begin = -1, had = 0;
    for (auto each = idle.sizes().rbegin(); each != idle.sizes().rend(); ++each) {
        const auto [idle_size, idle_begin] = *each;
        if (absent.size_at(idle_begin + idle_size) >= size - idle_size) {
            begin = idle_begin;
            had = idle_size;
            break;
        }
    }
    const int64_t fresh = size - had;
    if (begin >= 0) {
        idle.take(begin, had);
        absent.take(begin + had, fresh);
    } else {
        begin = absent.smallest_of(size);
        if (begin < 0) return -1;
        absent.take(begin, fresh);
    }
    const int64_t peak = peak_now > peak_before ? peak_now : peak_before;
    const int64_t room = peak - facts.live_bytes - size;
    return_beyond(room > 0 ? room : 0);
    facts.fresh_bytes += fresh;
    return begin;
}

// Idle pages go back to the system, the largest ranges' first, until no more than so many are left.
void TensorPool::return_beyond(int64_t most_idle_bytes) {
    while (idle.bytes() > most_idle_bytes) {
        const int64_t begin = idle.largest(), size = idle.size_at(begin);
        const int64_t beyond = idle.bytes() - most_idle_bytes;
        const int64_t returned = size < beyond ? size : beyond;
        if (madvise(base + begin, returned, MADV_DONTNEED) != 0) return;  // locked in memory
        idle.take(begin, returned);
        absent.add(begin, returned);
        facts.returned_bytes += returned;
    }
}

void TensorPool::begin_window() {
    peak_before = peak_now;
    peak_now = facts.live_bytes;
    window_ends = facts.allocations + window_allocations;
    return_beyond(peak_before - facts.live_bytes);
}

void TensorPool::return_idle() {
    std::lock_guard<std::mutex> holding(lock);
    return_beyond(0);
    peak_now = peak_before = facts.live_bytes;
}

Facts TensorPool::look() {
    std::lock_guard<std::mutex> holding(lock);
    Facts now = facts;
    now.idle_bytes = idle.bytes();
    return now;
}

}  // namespace

// Reserve addresses, and have tensors of `smallest` to `largest` bytes made there from now on: 0, or errno.
int64_t pool_open(int64_t capacity_bytes, int64_t smallest, int64_t largest) {
    capacity_bytes = whole_granules(capacity_bytes);
    // Pages are not asked to be huge: they come in once, and clearing huge ones takes several times as long
    // where a hypervisor has to find them first (docs/notes/figures-of-design.md).
    void* reserved = mmap(nullptr, capacity_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return errno;
    char* base = static_cast<char*>(reserved);
    pool = new (std::nothrow) TensorPool(base, capacity_bytes, smallest, largest);
    if (pool == nullptr) return ENOMEM;
    // A child that is forked while another thread allocates must not inherit a lock that nobody holds there.
    pthread_atfork([] { pool->guard().lock(); }, [] { pool->guard().unlock(); }, [] { pool->guard().unlock(); });
    c10::SetCPUAllocator(pool, 0);
    return 0;
}

// What is live and idle now, and what has come and gone: see `Facts`.
void pool_look(void* facts) { *static_cast<Facts*>(facts) = pool->look(); }

void pool_return_idle() { pool->return_idle(); }
