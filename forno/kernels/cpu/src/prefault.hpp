// Claims an arena's memory from the system before it is used, in moments when a core has nothing else to do.
//
// The first touch of a page makes the system find and zero it, in a virtual machine twice over: up to 4.6 ms per huge page
// were seen, which a step would have to wait for. The thread runs at idle priority and touches nothing that others read.
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>

namespace forno {

class Prefault {
 public:
  Prefault() = default;
  ~Prefault();  // ends the thread after its current page
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // Start on `bytes` from `data` on, in ascending order; at most once. The memory must outlive this object.
  // Where the system offers no thread or no such call, memory stays as it is: claimed when used.
  void start(char* data, size_t bytes);
  size_t done() const { return done_.load(std::memory_order_relaxed); }  // bytes claimed so far

 private:
  static void* thread_main(void* self);
  void claim();

  char* data_ = nullptr;
  size_t bytes_ = 0;
  pid_t owner_ = 0;  // the process that has the thread; 0: none
  pthread_t thread_{};
  std::atomic<size_t> done_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace forno
