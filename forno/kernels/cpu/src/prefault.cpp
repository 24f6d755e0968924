#include "prefault.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "arena.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older ones refuse it
#endif

namespace forno {

void Prefault::start(char* data, size_t bytes) {
  if (owner_ || bytes == 0) return;
  data_ = data;
  bytes_ = bytes;
  sigset_t all, before;  // signals are for the thread that runs Python
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (pthread_create(&thread_, nullptr, thread_main, this) == 0) owner_ = getpid();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Prefault::~Prefault() {
  stop_ = true;
  if (owner_ == getpid()) pthread_join(thread_, nullptr);  // a forked child has no thread to join
}

void* Prefault::thread_main(void* self) {
  const sched_param none{};
  pthread_setname_np(pthread_self(), "forno-prefault");
  if (sched_setscheduler(0, SCHED_IDLE, &none) == 0) static_cast<Prefault*>(self)->claim();
  return nullptr;
}

void Prefault::claim() {
  for (size_t at = 0; at < bytes_ && !stop_; at += kHugePage) {
    const size_t end = std::min(bytes_, at + kHugePage);
    if (madvise(data_ + at, end - at, MADV_POPULATE_WRITE) != 0) return;
    done_.store(end, std::memory_order_relaxed);
  }
}

}  // namespace forno
