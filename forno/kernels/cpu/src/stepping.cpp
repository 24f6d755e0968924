#include "stepping.hpp"

#include <stdexcept>

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <x86intrin.h>
#endif

namespace forno {
namespace {

// Of this thread. A signal handler must not allocate them on first use.
#if defined(__x86_64__) && defined(__linux__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local int64_t instructions = 0, allocations = 0;

}  // namespace

#if defined(__x86_64__) && defined(__linux__)
namespace {

constexpr uint64_t kTrapFlag = 0x100;
struct sigaction previous;
uintptr_t allocators[6];

void on_trap(int, siginfo_t*, void* context) {
  ++instructions;
  const auto next = uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  for (const uintptr_t allocator : allocators) allocations += next == allocator;
}

}  // namespace

Stepping::Stepping() {
  allocators[0] = reinterpret_cast<uintptr_t>(&::malloc);
  allocators[1] = reinterpret_cast<uintptr_t>(&::calloc);
  allocators[2] = reinterpret_cast<uintptr_t>(&::realloc);
  allocators[3] = reinterpret_cast<uintptr_t>(&::aligned_alloc);
  allocators[4] = reinterpret_cast<uintptr_t>(&::posix_memalign);
  allocators[5] = reinterpret_cast<uintptr_t>(&::mmap);
  struct sigaction action = {};
  action.sa_sigaction = &on_trap;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGTRAP, &action, &previous)) throw std::runtime_error("cannot handle SIGTRAP, so cannot count instructions");
  instructions = allocations = 0;
  __writeeflags(__readeflags() | kTrapFlag);
}

Stepping::~Stepping() {
  __writeeflags(__readeflags() & ~kTrapFlag);
  sigaction(SIGTRAP, &previous, nullptr);
}
#else
Stepping::Stepping() { throw std::runtime_error("instructions can be counted on x86-64 Linux only"); }
Stepping::~Stepping() = default;
#endif

int64_t stepped_allocations() { return allocations; }

}  // namespace forno

__attribute__((noinline)) int64_t forno_instructions() {
  __asm__ volatile("");  // a call that stays a call
  return forno::instructions;
}
