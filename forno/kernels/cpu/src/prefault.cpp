#include "prefault.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "arena.hpp"
#include "clock.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older ones refuse it
#endif

namespace forno {
namespace {

constexpr int64_t kMillisecond = 1000000;

}  // namespace

void Prefault::start(char* data, size_t bytes, int32_t threads) {
  if (owner_) return;
  data_ = data;
  bytes_ = bytes;
  owner_ = getpid();
  sigset_t all, before;  // signals are for the thread that runs Python
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (pthread_t thread; threads > 0 && pthread_create(&thread, nullptr, thread_main, this) == 0; --threads)
    threads_.push_back(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Prefault::~Prefault() {
  stop_ = true;
  if (owner_ != getpid()) return;  // a forked child has no threads to join
  for (pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void Prefault::pause(int64_t milliseconds) {
  resume_at_.store(now_ns() + milliseconds * kMillisecond, std::memory_order_relaxed);
}

void* Prefault::thread_main(void* self) {
  const sched_param none{};
  pthread_setname_np(pthread_self(), "forno-prefault");
  if (sched_setscheduler(0, SCHED_IDLE, &none) == 0) static_cast<Prefault*>(self)->claim();
  return nullptr;
}

void Prefault::claim() {
  const timespec moment{0, 5 * kMillisecond};
  while (!stop_) {
    if (now_ns() < resume_at_.load(std::memory_order_relaxed)) {
      nanosleep(&moment, nullptr);
      continue;
    }
    const size_t begin = next_.fetch_add(kHugePage), size = std::min(kHugePage, bytes_ - std::min(begin, bytes_));
    if (size == 0 || madvise(data_ + begin, size, MADV_POPULATE_WRITE) != 0) return;
    done_.fetch_add(size, std::memory_order_relaxed);
  }
}

}  // namespace forno
