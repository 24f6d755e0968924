// Counts what a thread executes by stepping through it one instruction at a time. Slow (a microsecond each) and exact; it
// needs no performance counters, which virtual machines hide, and no tool, none of which knows every instruction set.
#pragma once
#include <cstdint>

namespace forno {

constexpr bool kCanStep =
#if defined(__x86_64__) && defined(__linux__)
    true;
#else
    false;
#endif

// While alive, the calling thread stops after every instruction to count it, from zero. At most one in the process.
// Throws std::runtime_error where it cannot be done.
class Stepping {
 public:
  Stepping();
  ~Stepping();
  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;
};

// What the calling thread's last Stepping has counted so far. A repeated string instruction counts once per repetition.
int64_t stepped_allocations();  // calls of malloc and its like, and of mmap

}  // namespace forno

// Instructions of the calling thread's last Stepping; 0 without one. Its name is visible: callgrind, which counts by
// itself, is told to close its books whenever it is called.
extern "C" __attribute__((visibility("default"))) int64_t forno_instructions();
