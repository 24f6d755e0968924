#include "threads.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <system_error>
#include <thread>
#include <vector>

namespace forno {
namespace {

// Lets go first whoever else wants this thread's core: Python, which has more to do until the first token than we have.
void yield_to_others() {
#ifdef __linux__
  setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 10);  // on Linux a thread has its own; a refusal is no error
#endif
}

}  // namespace

void on_new_threads(int32_t threads, const std::function<void()>& work) {
  std::vector<std::thread> workers;
  try {
    for (int32_t i = 0; i < threads; ++i)
      workers.emplace_back([&work] {
        yield_to_others();
        work();
      });
  } catch (const std::system_error&) {  // no more threads to be had
    if (workers.empty()) throw;
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace forno
