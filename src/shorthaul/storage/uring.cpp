// Transfers outside of Python: an io_uring with the thread that owns it, and, at the end of the file,
// the loop that the thread engine runs where there is no io_uring.
//
//   Python thread --submit--> three queues by priority --worker--> ring --> disk
//   Python thread <--wait---- a word for each job     <--worker--- ring <-- disk
//
// A job is one range, or a batch of many, of one file. The worker cuts ranges into pieces, keeps up
// to `depth` of them at the kernel, continues short ones, and tries again what may be tried again.
// Everything that the worker alone touches needs no lock; queues and outcomes are under one mutex.
// The kernel's interface is written out below, so that any Linux headers will do.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// ---------------------------------------------------------------- the kernel's interface

struct SubmissionEntry {
    uint8_t opcode, flags;
    uint16_t io_priority;
    int32_t descriptor;
    uint64_t offset, address;
    uint32_t length, operation_flags;
    uint64_t user_data;
    uint64_t unused[3];
};
static_assert(sizeof(SubmissionEntry) == 64, "the kernel's submission entry has 64 bytes");

struct CompletionEntry {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
};
static_assert(sizeof(CompletionEntry) == 16, "the kernel's completion entry has 16 bytes");

struct RingOffsets {  // of both rings; the kernel calls the last three differently for each
    uint32_t head, tail, mask, entries, a, b, c, reserved;
    uint64_t user_address;
};

struct RingParameters {
    uint32_t submission_entries, completion_entries, flags, thread_cpu, thread_idle, features;
    uint32_t workqueue_descriptor, reserved[3];
    RingOffsets submission, completion;
};
static_assert(sizeof(RingParameters) == 120, "the kernel's parameters have 120 bytes");

constexpr long kSetupCall = 425, kEnterCall = 426;
constexpr uint8_t kRead = 22, kWrite = 23;
constexpr uint32_t kCooperativeTaskRun = 1u << 8, kSingleIssuer = 1u << 12, kDeferTaskRun = 1u << 13;
constexpr uint32_t kGetEvents = 1u;
constexpr off_t kRingsAt = 0, kEntriesAt = 0x10000000;
// One mapping for both rings, no lost completions, reads and writes without vectors: Linux 5.6.
constexpr uint32_t kNeededFeatures = (1u << 0) | (1u << 1) | (1u << 3);

// ---------------------------------------------------------------- words to sleep on

// A futex and not a condition variable: a signal ends the wait, so that Ctrl-C works in Python.
// Returns 0 when woken or changed, else an errno.
int sleep_on(std::atomic<uint32_t>& word, uint32_t while_it_is, int64_t nanoseconds) {
    timespec limit{static_cast<time_t>(nanoseconds / 1000000000), nanoseconds % 1000000000};
    long result = syscall(SYS_futex, &word, 128 /* wait, private */, while_it_is,
                          nanoseconds < 0 ? nullptr : &limit, nullptr, 0);
    return result == 0 || errno == EAGAIN ? 0 : errno;
}

void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, 129 /* wake, private */, 0x7fffffff, nullptr, nullptr, 0);
}

int64_t now_nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// ---------------------------------------------------------------- jobs

constexpr int kPriorities = 3;
constexpr int64_t kDemand = 0;
constexpr int64_t kEndOfFile = 0;            // in place of an errno
constexpr int64_t kSmallestBody = 64 * 1024;  // as SMALLEST_BODY_BYTES in file.py
constexpr int kMostAttempts = 1000;           // as MOST_ATTEMPTS in thread_engine.py

enum State : uint32_t { kQueued, kStarted, kDone, kCancelled, kClosed };

struct Range {
    int64_t offset, length, position;
};

struct Failure {
    int64_t index, offset, length, moved, code;
};

struct File {
    int direct, buffered;  // descriptors; direct is -1 where there is none
    int64_t alignment, memory_alignment;
};

struct Part {
    bool is_direct;
    int64_t length;
};

// The next transfer of a range: direct where aligned, else buffered; as choose_part in file.py.
Part choose_part(const File& file, int64_t offset, int64_t length, const uint8_t* address) {
    if (file.direct < 0 || offset % file.alignment != 0 ||
        reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(file.memory_alignment) != 0) {
        return {false, length};
    }
    int64_t tail = length % file.alignment;
    if (tail != 0 && length - tail < kSmallestBody) return {false, length};
    return {true, length - tail};
}

void pause_briefly() {
    timespec millisecond{0, 1000000};
    nanosleep(&millisecond, nullptr);
}

struct Job {
    int64_t id = 0;
    bool is_write = false;
    int64_t priority = 0;
    File file{};
    uint8_t* memory = nullptr;
    int64_t bytes = 0;
    bool is_polled = false;  // whoever asked looks for its end: the listening thread is let sleep
    std::vector<Range> ranges;

    // The worker's: what to hand out next, and what came of the rest.
    size_t next_range = 0;
    int64_t next_byte = 0;
    int64_t running = 0;
    int64_t moved = 0;
    int64_t refused = 0;  // direct transfers that worked only when buffered
    std::vector<Failure> failures;
    bool is_cut_off = false;  // closed before all of it was handed out

    std::atomic<uint32_t> state{kQueued};  // slept on by those who wait
    int waiters = 0;

    bool is_handed_out() const { return next_range == ranges.size(); }
};

// One piece at the kernel. `user_data` of its entry is its place among the slots.
struct Slot {
    Job* job;
    size_t range;
    int64_t offset, left;
    uint8_t* address;
    int attempts;
    bool is_direct, was_refused;
    bool is_counted_low;  // against the window of the less urgent
    int64_t piece_bytes;
};

constexpr uint64_t kWakeData = ~0ull;

// ---------------------------------------------------------------- the engine

class Engine {
  public:
    Engine(int64_t depth, int64_t in_flight_limit, int64_t piece_bytes, int64_t window_bytes)
        : depth_(depth), in_flight_limit_(in_flight_limit), piece_bytes_(piece_bytes),
          window_bytes_(window_bytes) {}

    // Starts the worker, which sets the ring up itself: a ring for one thread is cheaper, and must
    // be made by that thread. Returns 0 or an errno.
    int start() {
        wake_ = eventfd(0, EFD_CLOEXEC);
        if (wake_ < 0) return errno;
        // Signals go to Python's threads: none may be delivered here.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int failed = 0;
        try {
            worker_ = std::thread([this] { run(); });
        } catch (const std::system_error& error) {
            failed = error.code().value();
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (failed) {
            ::close(wake_);
            return failed;
        }
        while (ready_.load() == 0) sleep_on(ready_, 0, -1);
        if (setup_error_) {
            worker_.join();
            ::close(wake_);
        }
        return setup_error_;
    }

    // 0, or a negative errno: EAGAIN when it would have to wait for room and should not, EINTR to be
    // called again, ESHUTDOWN when closed.
    int64_t submit(std::shared_ptr<Job> job, bool can_wait) {
        std::unique_lock<std::mutex> lock(mutex_);
        std::pair<int64_t, int64_t> place{job->priority, ++arrivals_};
        if (!may_enter(*job, place)) {
            if (!can_wait) return -EAGAIN;
            waiting_.insert(place);
            int interrupted = 0;
            while (!is_closing_ && !broken_ && !interrupted && !may_enter(*job, place)) {
                uint32_t seen = room_.load();
                lock.unlock();
                if (sleep_on(room_, seen, -1) == EINTR) interrupted = EINTR;
                lock.lock();
            }
            waiting_.erase(place);
            tell_room();
            if (interrupted) return -interrupted;
        }
        if (is_closing_) return -ESHUTDOWN;
        if (broken_) return -broken_;
        asked_ += static_cast<int64_t>(job->ranges.size());
        in_flight_ += job->bytes;
        if (job->priority == kDemand) demand_in_flight_ += job->bytes;
        largest_in_flight_ = std::max(largest_in_flight_, in_flight_);
        jobs_[job->id] = job;
        while (!job->is_handed_out() && job->ranges[job->next_range].length == 0) ++job->next_range;
        if (job->is_handed_out()) {
            finish(*job, kDone);
        } else {
            queues_[job->priority].push_back(job);
            queued_.fetch_add(1);
        }
        lock.unlock();
        wake_worker();
        return 0;
    }

    // 1 when done, 0 when the time is up, EINTR to be called again, ENOENT when it was forgotten.
    int wait(int64_t id, int64_t nanoseconds) {
        std::unique_lock<std::mutex> lock(mutex_);
        auto found = jobs_.find(id);
        if (found == jobs_.end()) return -ENOENT;
        std::shared_ptr<Job> job = found->second;
        int64_t stop = nanoseconds < 0 ? 0 : now_nanoseconds() + nanoseconds;
        ++job->waiters;
        int outcome = 1;
        for (uint32_t state; (state = job->state.load()) < kDone;) {
            int64_t left = nanoseconds < 0 ? -1 : stop - now_nanoseconds();
            if (nanoseconds >= 0 && left <= 0) {
                outcome = 0;
                break;
            }
            lock.unlock();
            int error = sleep_on(job->state, state, left);
            lock.lock();
            if (error == EINTR && job->state.load() < kDone) {
                outcome = -EINTR;
                break;
            }
        }
        --job->waiters;
        return outcome;
    }

    // facts: state, moved, refused, failures. False when it is not done, or not known any more.
    bool facts_of(int64_t id, int64_t* facts) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = jobs_.find(id);
        if (found == jobs_.end() || found->second->state.load() < kDone) return false;
        const Job& job = *found->second;
        facts[0] = job.state.load();
        facts[1] = job.moved;
        facts[2] = job.refused;
        facts[3] = static_cast<int64_t>(job.failures.size());
        return true;
    }

    // Whether a job was taken in, and not forgotten yet.
    bool knows(int64_t id) {
        std::lock_guard<std::mutex> lock(mutex_);
        return jobs_.count(id) != 0;
    }

    // Copies the failures of a job that is done, and forgets it.
    void take(int64_t id, int64_t* failures) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = jobs_.find(id);
        if (found == jobs_.end()) return;
        const std::vector<Failure>& list = found->second->failures;
        if (!list.empty()) std::memcpy(failures, list.data(), list.size() * sizeof(Failure));
        jobs_.erase(found);
    }

    // Numbers of jobs that ended while nobody waited for them; sleeps until there is one. 0 at the
    // end of the engine.
    int64_t next_finished(int64_t* ids, int64_t capacity) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (finished_.empty() && !is_over_) {
            uint32_t seen = finished_word_.load();
            is_listening_ = true;
            lock.unlock();
            sleep_on(finished_word_, seen, -1);
            lock.lock();
        }
        is_listening_ = false;
        int64_t count = std::min<int64_t>(capacity, static_cast<int64_t>(finished_.size()));
        for (int64_t i = 0; i < count; ++i) ids[i] = finished_[static_cast<size_t>(i)];
        finished_.erase(finished_.begin(), finished_.begin() + count);
        return count;
    }

    bool cancel(int64_t id) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = jobs_.find(id);
        if (found == jobs_.end() || found->second->state.load() != kQueued) return false;
        std::shared_ptr<Job> job = found->second;
        auto& queue = queues_[job->priority];
        for (auto each = queue.begin(); each != queue.end(); ++each) {
            if (each->get() == job.get()) {
                queue.erase(each);
                break;
            }
        }
        queued_.fetch_sub(1);
        finish(*job, kCancelled);
        return true;
    }

    void close() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_closing_ = true;
            tell_room();
        }
        ring_bell();
        if (worker_.joinable()) worker_.join();
        std::lock_guard<std::mutex> lock(mutex_);
        is_over_ = true;
        finished_word_.fetch_add(1);
        wake_all(finished_word_);
        int bell = std::exchange(wake_, -1);
        if (bell >= 0) ::close(bell);
    }

    // Hands nothing more to the kernel and returns when nothing is there; ETIMEDOUT if it stays.
    int pause(int64_t nanoseconds) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_paused_.store(true);
            is_quiet_.store(has_ended_);
        }
        ring_bell();
        int64_t stop = now_nanoseconds() + nanoseconds;
        while (!is_quiet_.load()) {
            int64_t left = stop - now_nanoseconds();
            if (left <= 0) return ETIMEDOUT;
            sleep_on(is_quiet_, 0, left);
        }
        return 0;
    }

    void resume() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_paused_.store(false);
        }
        ring_bell();
    }

    // In a forked child: let go of the parent's ring without touching it. Threads, locks and queues
    // may have been caught in any state, so they are left as they are, and never freed.
    void abandon() {
        if (rings_ != MAP_FAILED) munmap(rings_, rings_bytes_);
        if (entries_ != MAP_FAILED) munmap(entries_, entries_bytes_);
        if (ring_ >= 0) ::close(ring_);
        if (wake_ >= 0) ::close(wake_);
    }

    void stats(int64_t* facts) {
        std::lock_guard<std::mutex> lock(mutex_);
        facts[0] = asked_;
        facts[1] = read_;
        facts[2] = written_;
        facts[3] = direct_.load();
        facts[4] = buffered_.load();
        facts[5] = failed_;
        facts[6] = in_flight_;
        facts[7] = largest_in_flight_;
        facts[8] = enter_calls_.load();
    }

    int ring_descriptor() const { return ring_; }

#ifdef SHORTHAUL_INJECT
    // For tests: what the next completions say instead. Negative: an errno. Positive: at most that
    // many bytes. 0: as it was. 2^62: nothing moved.
    void inject(const int64_t* results, int64_t count) {
        std::lock_guard<std::mutex> lock(mutex_);
        injected_.assign(results, results + count);
    }
#endif

  private:
    // ------------------------------------------------------------ under the mutex

    bool may_enter(const Job& job, std::pair<int64_t, int64_t> place) const {
        if (is_closing_ || broken_) return true;  // to be told so
        if (!waiting_.empty() && *waiting_.begin() < place) return false;
        // As has_room in queue_engine.py.
        int64_t reserve = in_flight_limit_ / 4, low_limit = in_flight_limit_ - reserve;
        bool fits = in_flight_ + job.bytes <= in_flight_limit_;
        if (job.priority == kDemand) {
            return fits || demand_in_flight_ == 0 || demand_in_flight_ + job.bytes <= reserve;
        }
        int64_t low = in_flight_ - demand_in_flight_;
        return (fits && low + job.bytes <= low_limit) || (low == 0 && job.bytes > low_limit);
    }

    void tell_room() {
        room_.fetch_add(1);
        if (!waiting_.empty()) wake_all(room_);
    }

    void finish(Job& job, State state) {
        if (job.failures.size() > 1) keep_first_failures(job.failures);
        in_flight_ -= job.bytes;
        if (job.priority == kDemand) demand_in_flight_ -= job.bytes;
        (job.is_write ? written_ : read_) += job.moved;
        failed_ += static_cast<int64_t>(job.failures.size());
        job.state.store(state);
        if (job.waiters > 0) {
            wake_all(job.state);
        } else if (!job.is_polled) {
            finished_.push_back(job.id);
            finished_word_.fetch_add(1);
            if (is_listening_) {
                is_listening_ = false;  // woken once for however many end before it looks
                wake_all(finished_word_);
            }
        }
        tell_room();
    }

    // Pieces of one range may fail separately: the failure nearest its beginning stands for it.
    static void keep_first_failures(std::vector<Failure>& failures) {
        std::sort(failures.begin(), failures.end(), [](const Failure& a, const Failure& b) {
            return std::pair(a.index, a.moved) < std::pair(b.index, b.moved);
        });
        auto is_same = [](const Failure& a, const Failure& b) { return a.index == b.index; };
        failures.erase(std::unique(failures.begin(), failures.end(), is_same), failures.end());
    }

    // ------------------------------------------------------------ waking the worker

    void wake_worker() {
        if (is_asleep_.exchange(false)) ring_bell();
    }

    void ring_bell() {
        uint64_t one = 1;
        ssize_t ignored = ::write(wake_, &one, sizeof one);
        (void)ignored;  // it only fails when it has been rung 2^64 times already
    }

    // ------------------------------------------------------------ the worker

    void run() {
        pthread_setname_np(pthread_self(), "shorthaul-ring");
        setup_error_ = set_up();
        ready_.store(1);
        wake_all(ready_);
        if (setup_error_) {
            tear_down();
            return;
        }
        slots_.resize(static_cast<size_t>(depth_));
        for (int64_t i = depth_; i-- > 0;) free_.push_back(static_cast<uint32_t>(i));
        listen_for_bell();
        while (!broken_) {
            hand_out();
            if (is_closing_now() && in_flight_slots() == 0) break;
            if (is_paused_.load() && in_flight_slots() == 0) say_quiet();
            enter();
            reap();
        }
        end_all();
        tear_down();
    }

    int set_up() {
        unsigned entries = 2;
        while (entries < depth_ + 1) entries *= 2;  // one more: the bell
        RingParameters parameters;
        for (uint32_t flags : {kSingleIssuer | kDeferTaskRun, kCooperativeTaskRun, 0u}) {
            std::memset(&parameters, 0, sizeof parameters);
            parameters.flags = flags;
            ring_ = static_cast<int>(syscall(kSetupCall, entries, &parameters));
            if (ring_ >= 0 || errno != EINVAL) break;  // an older kernel does not know the flags
        }
        if (ring_ < 0) return errno;
        if ((parameters.features & kNeededFeatures) != kNeededFeatures) return ENOSYS;
        const RingOffsets &in = parameters.submission, &out = parameters.completion;
        size_t in_bytes = in.b + parameters.submission_entries * sizeof(uint32_t);
        size_t out_bytes = out.b + parameters.completion_entries * sizeof(CompletionEntry);
        rings_bytes_ = std::max(in_bytes, out_bytes);
        entries_bytes_ = parameters.submission_entries * sizeof(SubmissionEntry);
        const int access = PROT_READ | PROT_WRITE, sharing = MAP_SHARED | MAP_POPULATE;
        rings_ = mmap(nullptr, rings_bytes_, access, sharing, ring_, kRingsAt);
        if (rings_ == MAP_FAILED) return errno;
        entries_ = mmap(nullptr, entries_bytes_, access, sharing, ring_, kEntriesAt);
        if (entries_ == MAP_FAILED) return errno;
        auto at = [this](uint32_t offset) {
            return reinterpret_cast<uint32_t*>(static_cast<char*>(rings_) + offset);
        };
        in_tail_ = at(in.tail);
        in_mask_ = *at(in.mask);
        out_head_ = at(out.head);
        out_tail_ = at(out.tail);
        out_mask_ = *at(out.mask);
        completions_ = reinterpret_cast<CompletionEntry*>(at(out.b));
        uint32_t* order = at(in.c);  // which entry each place of the ring stands for: its own
        for (uint32_t i = 0; i < parameters.submission_entries; ++i) order[i] = i;
        return 0;
    }

    void tear_down() {
        std::lock_guard<std::mutex> lock(mutex_);
        // Forgotten before they are let go: a child forked in between must not let go of them too.
        void *rings = std::exchange(rings_, MAP_FAILED), *entries = std::exchange(entries_, MAP_FAILED);
        int ring = std::exchange(ring_, -1);
        if (rings != MAP_FAILED) munmap(rings, rings_bytes_);
        if (entries != MAP_FAILED) munmap(entries, entries_bytes_);
        if (ring >= 0) ::close(ring);
    }

    int64_t in_flight_slots() const { return depth_ - static_cast<int64_t>(free_.size()); }

    bool is_closing_now() {
        std::lock_guard<std::mutex> lock(mutex_);
        return is_closing_;
    }

    void say_quiet() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (is_paused_.load()) is_quiet_.store(1);
        wake_all(is_quiet_);
    }

    SubmissionEntry& next_entry() {
        // Never full: there are more entries than slots, and each slot has one at most.
        uint32_t tail = *in_tail_ + unsubmitted_++;
        SubmissionEntry& entry = static_cast<SubmissionEntry*>(entries_)[tail & in_mask_];
        std::memset(&entry, 0, sizeof entry);
        return entry;
    }

    void listen_for_bell() {
        SubmissionEntry& entry = next_entry();
        entry.opcode = kRead;
        entry.descriptor = wake_;
        entry.address = reinterpret_cast<uint64_t>(&rung_);
        entry.length = sizeof rung_;
        entry.offset = ~0ull;
        entry.user_data = kWakeData;
    }

    // Fills the free slots, the most urgent jobs first.
    void hand_out() {
        while (!free_.empty() && !is_paused_.load(std::memory_order_relaxed)) {
            if (queued_.load() == 0) return;
            Job* job = nullptr;
            {
                std::lock_guard<std::mutex> lock(mutex_);
                if (is_closing_) {
                    drop_queued();
                    return;
                }
                for (int64_t priority = 0; priority < kPriorities && !job; ++priority) {
                    if (queues_[priority].empty()) continue;
                    // A long queue of writes at the disk would be before the next urgent read.
                    if (priority != kDemand && low_bytes_ >= window_bytes_) return;
                    job = queues_[priority].front().get();
                    job->state.store(kStarted);
                }
            }
            if (!job) return;
            bool is_low = job->priority != kDemand;
            do {
                hand_out_piece(*job, is_low);
            } while (!job->is_handed_out() && !free_.empty() &&
                     (!is_low || low_bytes_ < window_bytes_));
            if (job->is_handed_out()) {
                std::lock_guard<std::mutex> lock(mutex_);
                queues_[job->priority].pop_front();  // only the worker takes started jobs out
                queued_.fetch_sub(1);
                if (job->running == 0) finish(*job, kDone);
            }
        }
    }

    void hand_out_piece(Job& job, bool is_low) {
        const Range& range = job.ranges[job.next_range];
        int64_t length = std::min(piece_bytes_, range.length - job.next_byte);
        uint32_t number = free_.back();
        free_.pop_back();
        Slot& slot = slots_[number];
        slot.job = &job;
        slot.range = job.next_range;
        slot.offset = range.offset + job.next_byte;
        slot.left = slot.piece_bytes = length;
        slot.address = job.memory + range.position + job.next_byte;
        slot.attempts = 0;
        slot.was_refused = false;
        slot.is_counted_low = is_low;
        if (is_low) low_bytes_ += length;
        ++job.running;
        job.next_byte += length;
        skip_finished_ranges(job);
        transfer(number);
    }

    static void skip_finished_ranges(Job& job) {
        while (!job.is_handed_out() && job.next_byte >= job.ranges[job.next_range].length) {
            ++job.next_range;
            job.next_byte = 0;
        }
    }

    // Puts the next part of a slot into the ring.
    void transfer(uint32_t number) {
        Slot& slot = slots_[number];
        const Job& job = *slot.job;
        Part part = choose_part(job.file, slot.offset, slot.left, slot.address);
        slot.is_direct = part.is_direct && !slot.was_refused;
        SubmissionEntry& entry = next_entry();
        entry.opcode = job.is_write ? kWrite : kRead;
        entry.descriptor = slot.is_direct ? job.file.direct : job.file.buffered;
        entry.offset = static_cast<uint64_t>(slot.offset);
        entry.address = reinterpret_cast<uint64_t>(slot.address);
        entry.length = static_cast<uint32_t>(part.length);
        entry.user_data = number;
        auto& counter = slot.is_direct ? direct_ : buffered_;
        counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    // Submits what is in the ring and, when there is nothing else to do, sleeps for a completion.
    void enter() {
        uint32_t least = 1;
        bool can_take = !free_.empty() && !is_paused_.load();
        if (can_take) {
            // First say that it sleeps, then look once more: whoever submits does it the other way
            // round, so one of the two sees the other.
            is_asleep_.store(true);
            if (queued_.load() != 0 && has_work_to_take()) {
                is_asleep_.store(false);
                least = 0;
            }
        }
        uint32_t tail = *in_tail_;
        __atomic_store_n(in_tail_, tail + unsubmitted_, __ATOMIC_RELEASE);
        submitted_tail_pending_ += unsubmitted_;
        unsubmitted_ = 0;
        if (!retries_.empty()) least = 0;
        long result = syscall(kEnterCall, ring_, submitted_tail_pending_, least, kGetEvents,
                              nullptr, 0);
        is_asleep_.store(false);
        enter_calls_.store(enter_calls_.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
        if (result >= 0) {
            submitted_tail_pending_ -= static_cast<uint32_t>(result);
        } else if (errno == EAGAIN || errno == EBUSY) {
            pause_briefly();  // short of memory, or completions to take first
        } else if (errno != EINTR) {
            broken_errno_ = errno;
            give_up();
        }
        if (!retries_.empty()) {
            pause_briefly();
            std::vector<uint32_t> again;
            again.swap(retries_);
            for (uint32_t number : again) transfer(number);
        }
    }

    bool has_work_to_take() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (is_closing_) return in_flight_slots() == 0;
        if (!queues_[kDemand].empty()) return true;
        return low_bytes_ < window_bytes_ && (!queues_[1].empty() || !queues_[2].empty());
    }

    void reap() {
        uint32_t head = *out_head_;
        uint32_t tail = __atomic_load_n(out_tail_, __ATOMIC_ACQUIRE);
        for (; head != tail; ++head) {
            const CompletionEntry completion = completions_[head & out_mask_];
            if (completion.user_data == kWakeData) {
                listen_for_bell();
            } else {
                complete(static_cast<uint32_t>(completion.user_data), completion.result);
            }
        }
        __atomic_store_n(out_head_, head, __ATOMIC_RELEASE);
    }

    void complete(uint32_t number, int64_t result) {
        Slot& slot = slots_[number];
        Job& job = *slot.job;
#ifdef SHORTHAUL_INJECT
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!injected_.empty()) {
                int64_t said = injected_.front();
                injected_.pop_front();
                if (said < 0) result = said;
                if (said > 0) result = said == int64_t(1) << 62 ? 0 : std::min(result, said);
            }
        }
#endif
        if (result > 0) {
            job.moved += result;
            job.refused += slot.was_refused;
            slot.offset += result;
            slot.address += result;
            slot.left -= result;
            if (slot.left > 0) return transfer(number);  // it was short, or the tail is left
            return release(number);
        }
        if (result == -EINTR) return transfer(number);
        if (result == -EAGAIN && ++slot.attempts < kMostAttempts) return retries_.push_back(number);
        if (result == -EINVAL && slot.is_direct) {
            slot.was_refused = true;
            return transfer(number);
        }
        int64_t code = result < 0 ? -result : job.is_write ? EIO : kEndOfFile;
        const Range& range = job.ranges[slot.range];
        job.failures.push_back({static_cast<int64_t>(slot.range), range.offset, range.length,
                                slot.offset - range.offset, code});
        if (job.next_range == slot.range && !job.is_cut_off) {  // the rest of a range cannot save it
            ++job.next_range;
            job.next_byte = 0;
            skip_finished_ranges(job);
            if (job.is_handed_out()) {
                std::lock_guard<std::mutex> lock(mutex_);
                queues_[job.priority].pop_front();
                queued_.fetch_sub(1);
            }
        }
        release(number);
    }

    void release(uint32_t number) {
        Slot& slot = slots_[number];
        Job& job = *slot.job;
        if (slot.is_counted_low) low_bytes_ -= slot.piece_bytes;
        free_.push_back(number);
        if (--job.running == 0 && (job.is_handed_out() || job.is_cut_off)) {
            std::lock_guard<std::mutex> lock(mutex_);
            finish(job, job.is_cut_off ? kClosed : kDone);
        }
    }

    // ------------------------------------------------------------ ending

    void drop_queued() {
        for (auto& queue : queues_) {
            for (auto& job : queue) {
                job->is_cut_off = true;
                if (job->running == 0) finish(*job, kClosed);
            }
            queued_.fetch_sub(static_cast<int64_t>(queue.size()));
            queue.clear();
        }
    }

    // The ring is gone, for instance because somebody closed its descriptor. What is at the disk
    // gets a second to end, then everything fails.
    void give_up() {
        timespec second{1, 0};
        nanosleep(&second, nullptr);
        std::lock_guard<std::mutex> lock(mutex_);
        broken_ = broken_errno_;
        ring_ = -1;  // closed by whoever it was; the number may be another file's by now
    }

    void end_all() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (broken_) {
            for (auto& each : jobs_) {
                Job& job = *each.second;
                if (job.state.load() >= kDone) continue;
                job.failures.push_back({0, job.ranges[0].offset, job.ranges[0].length, 0, broken_});
                finish(job, kDone);
            }
            for (auto& queue : queues_) queue.clear();
            queued_.store(0);
        } else {
            drop_queued();
        }
        has_ended_ = true;
        is_quiet_.store(1);
        wake_all(is_quiet_);
        tell_room();
    }

    const int64_t depth_, in_flight_limit_, piece_bytes_, window_bytes_;

    std::mutex mutex_;
    std::deque<std::shared_ptr<Job>> queues_[kPriorities];
    std::unordered_map<int64_t, std::shared_ptr<Job>> jobs_;  // not yet taken
    std::set<std::pair<int64_t, int64_t>> waiting_;           // priority and arrival, for room
    std::vector<int64_t> finished_;
    int64_t arrivals_ = 0, asked_ = 0, read_ = 0, written_ = 0, failed_ = 0;
    int64_t in_flight_ = 0, demand_in_flight_ = 0, largest_in_flight_ = 0;
    bool is_closing_ = false, is_over_ = false, has_ended_ = false;
    bool is_listening_ = false;
    std::atomic<int> broken_{0};
    std::atomic<uint32_t> room_{0}, finished_word_{0}, ready_{0}, is_quiet_{0};
    std::atomic<int64_t> queued_{0}, direct_{0}, buffered_{0}, enter_calls_{0};
    std::atomic<bool> is_asleep_{false}, is_paused_{false};

    // The worker's.
    std::thread worker_;
    int setup_error_ = 0, broken_errno_ = 0;
    int wake_ = -1, ring_ = -1;
    uint64_t rung_ = 0;
    void *rings_ = MAP_FAILED, *entries_ = MAP_FAILED;
    size_t rings_bytes_ = 0, entries_bytes_ = 0;
    uint32_t *in_tail_ = nullptr, *out_head_ = nullptr, *out_tail_ = nullptr;
    uint32_t in_mask_ = 0, out_mask_ = 0, unsubmitted_ = 0, submitted_tail_pending_ = 0;
    CompletionEntry* completions_ = nullptr;
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_, retries_;
    int64_t low_bytes_ = 0;
#ifdef SHORTHAUL_INJECT
    std::deque<int64_t> injected_;
#endif
};

Engine& at(void* engine) { return *static_cast<Engine*>(engine); }

// ---------------------------------------------------------------- without a ring

#ifdef SHORTHAUL_INJECT
std::mutex call_mutex;
std::deque<int64_t> call_answers;  // as for `inject`
#endif

// One system call: bytes moved, or a negative errno.
int64_t move_once(bool is_write, int descriptor, uint8_t* address, int64_t length, int64_t offset) {
#ifdef SHORTHAUL_INJECT
    std::lock_guard<std::mutex> lock(call_mutex);
    if (!call_answers.empty()) {
        int64_t said = call_answers.front();
        call_answers.pop_front();
        if (said < 0) return said;
        if (said > 0) length = std::min(length, said);
    }
#endif
    const auto size = static_cast<size_t>(length);
    ssize_t count = is_write ? ::pwrite(descriptor, address, size, offset)
                             : ::pread(descriptor, address, size, offset);
    return count < 0 ? -errno : count;
}

struct RangeOutcome {
    int64_t moved = 0, direct = 0, buffered = 0, refused = 0;
    int64_t code = -1;  // an errno or kEndOfFile where it failed
};

RangeOutcome move_range(bool is_write, const File& file, const Range& range, uint8_t* address) {
    RangeOutcome outcome;
    bool was_refused = false;
    for (int attempts = 0; outcome.moved < range.length;) {
        int64_t offset = range.offset + outcome.moved;
        uint8_t* place = address + outcome.moved;
        Part part = choose_part(file, offset, range.length - outcome.moved, place);
        bool is_direct = part.is_direct && !was_refused;
        ++(is_direct ? outcome.direct : outcome.buffered);
        int64_t count = move_once(is_write, is_direct ? file.direct : file.buffered, place,
                                  part.length, offset);
        if (count > 0) {
            outcome.moved += count;
            outcome.refused += was_refused;
        } else if (count == -EINVAL && is_direct) {
            was_refused = true;
        } else if (count == -EAGAIN && ++attempts < kMostAttempts) {
            pause_briefly();
        } else if (count != -EINTR) {
            outcome.code = count < 0 ? -count : is_write ? EIO : kEndOfFile;
            break;
        }
    }
    return outcome;
}

}  // namespace

// ---------------------------------------------------------------- what Python calls

void* ring_open(int64_t depth, int64_t in_flight_limit, int64_t piece_bytes, int64_t window_bytes,
                void* error) {
    auto engine = std::make_unique<Engine>(depth, in_flight_limit, piece_bytes, window_bytes);
    int failed = engine->start();
    *static_cast<int64_t*>(error) = failed;
    return failed ? nullptr : engine.release();
}

int64_t ring_submit(void* engine, int64_t id, int64_t is_write, int64_t priority, int64_t direct,
                    int64_t buffered, int64_t alignment, int64_t memory_alignment, void* memory,
                    int64_t offset, int64_t length, int64_t is_polled, int64_t can_wait) {
    auto job = std::make_shared<Job>();
    job->id = id;
    job->is_write = is_write != 0;
    job->priority = priority;
    job->file = {static_cast<int>(direct), static_cast<int>(buffered), alignment, memory_alignment};
    job->memory = static_cast<uint8_t*>(memory);
    job->bytes = length;
    job->is_polled = is_polled != 0;
    job->ranges.push_back({offset, length, 0});
    return at(engine).submit(std::move(job), can_wait != 0);
}

int64_t ring_submit_many(void* engine, int64_t id, int64_t is_write, int64_t priority,
                         int64_t direct, int64_t buffered, int64_t alignment,
                         int64_t memory_alignment, void* memory, int64_t bytes, int64_t count,
                         void* offsets, void* lengths, void* positions) {
    auto job = std::make_shared<Job>();
    job->id = id;
    job->is_write = is_write != 0;
    job->priority = priority;
    job->file = {static_cast<int>(direct), static_cast<int>(buffered), alignment, memory_alignment};
    job->memory = static_cast<uint8_t*>(memory);
    job->bytes = bytes;
    try {
        job->ranges.resize(static_cast<size_t>(count));
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
    for (int64_t i = 0; i < count; ++i) {
        job->ranges[static_cast<size_t>(i)] = {static_cast<int64_t*>(offsets)[i],
                                               static_cast<int64_t*>(lengths)[i],
                                               static_cast<int64_t*>(positions)[i]};
    }
    return at(engine).submit(std::move(job), true);
}

int64_t ring_wait(void* engine, int64_t id, int64_t nanoseconds) {
    return at(engine).wait(id, nanoseconds);
}

int64_t ring_facts(void* engine, int64_t id, void* facts) {
    return at(engine).facts_of(id, static_cast<int64_t*>(facts));
}

int64_t ring_knows(void* engine, int64_t id) { return at(engine).knows(id); }

void ring_take(void* engine, int64_t id, void* failures) {
    at(engine).take(id, static_cast<int64_t*>(failures));
}

int64_t ring_next_finished(void* engine, void* ids, int64_t capacity) {
    return at(engine).next_finished(static_cast<int64_t*>(ids), capacity);
}

int64_t ring_cancel(void* engine, int64_t id) { return at(engine).cancel(id); }

void ring_stats(void* engine, void* facts) { at(engine).stats(static_cast<int64_t*>(facts)); }

int64_t ring_pause(void* engine, int64_t nanoseconds) { return at(engine).pause(nanoseconds); }

void ring_resume(void* engine) { at(engine).resume(); }

int64_t ring_descriptor(void* engine) { return at(engine).ring_descriptor(); }

void ring_abandon(void* engine) { at(engine).abandon(); }

void ring_close(void* engine) { at(engine).close(); }

void ring_free(void* engine) { delete static_cast<Engine*>(engine); }

// Ranges `first` to `last` of a batch, one after another. facts: moved, direct, buffered, refused.
// Writes five numbers for each range that failed, and returns how many did.
int64_t move_ranges(int64_t is_write, int64_t direct, int64_t buffered, int64_t alignment,
                    int64_t memory_alignment, void* memory, void* offsets, void* lengths,
                    void* positions, int64_t first, int64_t last, void* facts, void* failures) {
    const File file{static_cast<int>(direct), static_cast<int>(buffered), alignment,
                    memory_alignment};
    auto* sums = static_cast<int64_t*>(facts);
    auto* failed = static_cast<Failure*>(failures);
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
        const Range range{static_cast<int64_t*>(offsets)[i], static_cast<int64_t*>(lengths)[i],
                          static_cast<int64_t*>(positions)[i]};
        RangeOutcome outcome = move_range(is_write != 0, file, range,
                                          static_cast<uint8_t*>(memory) + range.position);
        sums[0] += outcome.moved;
        sums[1] += outcome.direct;
        sums[2] += outcome.buffered;
        sums[3] += outcome.refused;
        if (outcome.code >= 0) {
            failed[count++] = {i, range.offset, range.length, outcome.moved, outcome.code};
        }
    }
    return count;
}

#ifdef SHORTHAUL_INJECT
extern "C" __attribute__((visibility("default"))) void ring_inject(void* engine, void* results,
                                                                   int64_t count) {
    at(engine).inject(static_cast<int64_t*>(results), count);
}

extern "C" __attribute__((visibility("default"))) void read_inject(void* results, int64_t count) {
    std::lock_guard<std::mutex> lock(call_mutex);
    auto* answers = static_cast<int64_t*>(results);
    call_answers.assign(answers, answers + count);
}
#endif
