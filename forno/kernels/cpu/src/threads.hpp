// Threads for the work of a start: as many as asked for, of low priority, gone when it is done.
#pragma once
#include <cstdint>
#include <functional>

namespace forno {

// Runs `work` on `threads` new threads of low priority and waits for all. `work` takes its share from a counter of the
// caller's and must not throw: where fewer threads can be had, those that run do it all.
// Throws std::system_error if no thread can be had.
void on_new_threads(int32_t threads, const std::function<void()>& work);

}  // namespace forno
