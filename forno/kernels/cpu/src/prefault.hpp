// Claims an arena's memory from the system before it is used, while nothing is being computed.
//
// The first touch of a page makes the system find and zero it, in a virtual machine twice over: up to 4.6 ms per huge page
// were seen, which a step would have to wait for. And so would a thread that wants the core meanwhile: hence pauses.
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace forno {

class Prefault {
 public:
  Prefault() = default;
  ~Prefault();  // ends the threads after their current pages
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // Claim `bytes` from `data` on, in ascending order, with that many threads of idle priority; at most once. The memory
  // must outlive this object. Where the system offers no thread or no such call, memory is claimed when used.
  void start(char* data, size_t bytes, int32_t threads);
  void pause(int64_t milliseconds);  // from now on, until the next call; cheap
  size_t done() const { return done_.load(std::memory_order_relaxed); }  // bytes claimed so far

 private:
  static void* thread_main(void* self);
  void claim();

  char* data_ = nullptr;
  size_t bytes_ = 0;
  pid_t owner_ = 0;  // the process that has the threads
  std::vector<pthread_t> threads_;
  std::atomic<int64_t> resume_at_{0};  // nanoseconds
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace forno
