// Parallel loops on the OpenMP runtime that PyTorch itself runs on.
//
// A kernel is compiled without -fopenmp and links no OpenMP library: a second runtime would bring a
// second pool of spinning threads to the same cores. When the kernel is loaded, shorthaul hands it
// the address of GOMP_parallel found in PyTorch's own runtime (libgomp exports it, and LLVM's and
// Intel's runtimes export it for compatibility). Without one, loops run on the calling thread.
#pragma once

#include <cstdint>

namespace shorthaul {

using ParallelRegion = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
using ThreadNumber = int (*)();

static ParallelRegion parallel_region = nullptr;
static ThreadNumber thread_number = nullptr;
static ThreadNumber team_size = nullptr;

// Calls body(thread, threads) once on each thread of a team. The team may be smaller than asked for
// (inside another parallel region, or under a thread limit), so a body trusts `threads` alone. A
// body must not throw: there is nobody above a thread of the team to catch.
template <class Body>
inline void on_each_thread(int64_t threads, const Body& body) {
  if (threads <= 1 || parallel_region == nullptr) {
    body(int64_t{0}, int64_t{1});
    return;
  }
  auto trampoline = [](void* data) {
    (*static_cast<const Body*>(data))(int64_t{thread_number()}, int64_t{team_size()});
  };
  parallel_region(trampoline, const_cast<Body*>(&body), static_cast<unsigned>(threads), 0);
}

// Splits [0, count) into one contiguous chunk per thread, chunk edges at multiples of `grain` (at
// least 1), and calls body(begin, end) for each chunk that is not empty.
template <class Body>
inline void parallel_for(int64_t count, int64_t grain, int64_t threads, const Body& body) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  const int64_t grains = count / grain + (count % grain != 0);
  on_each_thread(threads < grains ? threads : grains, [&](int64_t thread, int64_t team) {
    const int64_t begin = grains * thread / team * grain;
    const int64_t end = thread + 1 == team ? count : grains * (thread + 1) / team * grain;
    if (begin < end) body(begin, end);
  });
}

}  // namespace shorthaul

extern "C" __attribute__((visibility("default"))) void shorthaul_bind_runtime(
    void* parallel_region, void* thread_number, void* team_size) {
  shorthaul::parallel_region = reinterpret_cast<shorthaul::ParallelRegion>(parallel_region);
  shorthaul::thread_number = reinterpret_cast<shorthaul::ThreadNumber>(thread_number);
  shorthaul::team_size = reinterpret_cast<shorthaul::ThreadNumber>(team_size);
}
