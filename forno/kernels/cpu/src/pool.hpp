// A fixed set of threads that run one function together. The calling thread is worker 0.
//
// Waiting is the same everywhere: spin with PAUSE for a short while, yield, then sleep on a futex. Between steps that
// makes an idle pool free; inside a step it keeps a barrier short when every worker has a core, and keeps the step
// moving when one has lost its core to a neighbour or to a cgroup quota.
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <vector>

#include "arena.hpp"
#include "types.hpp"

namespace forno {

// A counter to wait on. `advance` is called by one thread at a time.
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void advance();
  void wait_past(uint32_t seen, int64_t spin_ns);  // returns once value() != seen

 private:
  alignas(128) std::atomic<uint32_t> value_{0};
  std::atomic<int32_t> sleepers_{0};
};

// While alive, this thread's denormal floats are read and written as zero; then its own mode is restored.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
  static bool active();  // whether this thread flushes now

 private:
  uint64_t saved_;
};

class Pool {
 public:
  // `spin_us`: how long a waiter spins before it yields; pass 0 where workers outnumber the usable cores.
  Pool(int32_t workers, int32_t spin_us, size_t scratch_bytes = kScratchBytes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t size() const { return size_; }
  size_t scratch_bytes() const { return seats_[0].worker.scratch_bytes; }

  // Calls body(worker) on every worker at once and returns when all have returned. `body` must not throw.
  // Throws std::runtime_error in a forked child, where the pool's threads do not exist.
  template <class F>
  void run(F&& body) {
    run_erased([](void* f, Worker& w) { (*static_cast<std::remove_reference_t<F>*>(f))(w); }, &body);
  }

  // Inside `run`: every worker waits for all others. Zeroes the ticket.
  void barrier();

 private:
  using Body = void (*)(void*, Worker&);
  static void* thread_main(void* seat);
  void run_erased(Body body, void* context);
  void start_threads();
  void stop_threads();

  struct Seat {
    Pool* pool;
    Worker worker;
    pthread_t thread;
  };

  const int32_t size_;
  const int64_t spin_ns_;
  const pid_t owner_;
  Arena scratch_;
  std::vector<Seat> seats_;
  int32_t started_ = 0;  // threads created
  Body body_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  Gate start_;
  Gate done_;
  alignas(128) std::atomic<int32_t> arrived_{0};
  alignas(128) int32_t ticket_ = 0;
};

}  // namespace forno
