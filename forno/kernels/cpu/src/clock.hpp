// Time as waits and measurements see it.
#pragma once
#include <time.h>

#include <cstdint>

namespace forno {
namespace {

inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

inline int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

// Time that this thread has had a core. Of another thread the system knows it only up to its last tick.
inline int64_t core_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace
}  // namespace forno
