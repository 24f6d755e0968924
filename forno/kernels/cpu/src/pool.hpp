// A fixed set of threads that run one function together. The calling thread is worker 0.
//
// Waiting is the same everywhere: spin with PAUSE for a short while, yield, then sleep on a futex. Between steps that
// makes an idle pool free; inside a step it is fast when every worker has a core.
//
// A step is a row of phases. Those workers that have a core share a phase's units, and it ends when they find none left:
// a worker that has lost its core to a neighbour or to a cgroup quota is not waited for (unless it holds a unit), and
// skips what was done without it. With a barrier for all instead, one busy neighbour on two cores cost a factor of six.
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

  // Inside `run`, by every worker in the same order: calls f() on those that come before the phase has ended, with fresh
  // tickets, and returns when it has. f must take units until none is left.
  template <class F>
  void phase(Worker& worker, F&& f) {
    if (!enter(worker)) return;
    f();
    leave(worker);
  }

  // Inside `run`: every worker waits for all others.
  void barrier();

 private:
  using Body = void (*)(void*, Worker&);
  static void* thread_main(void* seat);
  void run_erased(Body body, void* context);
  bool enter(Worker& worker);
  void leave(Worker& worker);
  int32_t* tickets(uint32_t phase) const;
  void start_threads();
  void stop_threads();

  struct Seat {
    Pool* pool;
    Worker worker;
    pthread_t thread;
    uint32_t phase;  // number of the next one this worker comes to
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
  alignas(128) std::atomic<uint64_t> phase_{0};  // its number << 32 | workers in it
  std::atomic<int32_t> phase_sleepers_{0};
  Arena tickets_;  // of even phases, then of odd ones: those of the next phase are zeroed during this one
};

}  // namespace forno
