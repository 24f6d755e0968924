#include "probe.hpp"

#include <time.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "arena.hpp"

namespace forno {
namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Keeps `value` alive without storing it anywhere.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// Sums 64 bytes at a time into eight accumulators, as fast as memory on any machine: fetching two pages ahead, since a
// ceiling must not lie below what kernels reach that do so (45 GB/s on average where plain code read 38).
uint64_t sum(const uint64_t* data, int64_t words) {
  constexpr int64_t kAhead = 1024;
  uint64_t lanes[8] = {};
  for (int64_t i = 0; i < words; i += 8) {
    __builtin_prefetch(data + i + kAhead);
    for (int l = 0; l < 8; ++l) lanes[l] += data[i + l];
  }
  uint64_t total = 0;
  for (uint64_t lane : lanes) total += lane;
  return total;
}

// Each worker's own count and time: the rates add up.
struct alignas(128) Share {
  double amount = 0.0, seconds = 1.0;
};

double total_rate(const std::vector<Share>& shares) {
  double rate = 0.0;
  for (const Share& s : shares) rate += s.amount / s.seconds;
  return rate;
}

}  // namespace

double read_bandwidth(Pool& pool, int64_t bytes, double seconds) {
  bytes = bytes / 4096 * 4096;
  if (bytes <= 0) throw std::invalid_argument("a bandwidth probe needs at least a page per worker");
  Arena arena(size_t(bytes) * pool.size());
  std::vector<Share> shares(pool.size());
  pool.run([&](Worker& w) {
    const char* own = arena.data() + bytes * w.id;
    std::memset(arena.data() + bytes * w.id, 1, size_t(bytes));
    pool.barrier();
    const uint64_t* data = reinterpret_cast<const uint64_t*>(own);
    keep(sum(data, bytes / 8));
    const double start = now();
    double passes = 0.0, elapsed = 0.0;
    do {
      keep(sum(data, bytes / 8));
      passes += 1.0;
      elapsed = now() - start;
    } while (elapsed < seconds);
    shares[w.id] = {passes * double(bytes), elapsed};
  });
  return total_rate(shares);
}

double peak_rate(Pool& pool, const KernelTable& kernels, PeakUnit unit, double seconds) {
  constexpr int64_t kRounds = 20000;  // tens of microseconds
  std::vector<Share> shares(pool.size());
  pool.run([&](Worker& w) {
    double operations = double(kernels.peak(unit, kRounds)), elapsed = 0.0;  // wakes the unit up
    if (operations == 0.0) return;
    pool.barrier();
    operations = 0.0;
    const double start = now();
    do {
      operations += double(kernels.peak(unit, kRounds));
      elapsed = now() - start;
    } while (elapsed < seconds);
    shares[w.id] = {operations, elapsed};
  });
  return total_rate(shares);
}

}  // namespace forno
