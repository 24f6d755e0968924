// Time as waits and measurements see it.
#pragma once
#include <time.h>

#include <cstdint>

namespace forno {
namespace {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace
}  // namespace forno
