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

// Sums 64 bytes at a time into eight accumulators: plain code that is as fast as memory on any machine.
uint64_t sum(const uint64_t* data, int64_t words) {
  uint64_t lanes[8] = {};
  for (int64_t i = 0; i < words; i += 8)
    for (int l = 0; l < 8; ++l) lanes[l] += data[i + l];
  uint64_t total = 0;
  for (uint64_t lane : lanes) total += lane;
  return total;
}

float fp32_portable(int64_t rounds) {
  constexpr int kLanes = 32;
  float acc[kLanes];
  for (int l = 0; l < kLanes; ++l) acc[l] = 1.0f + float(l);
  for (int64_t r = 0; r < rounds; ++r) {
    for (int l = 0; l < kLanes; ++l) acc[l] = acc[l] * 0.999f + 0.5f;
    keep(acc);
  }
  float total = 0.0f;
  for (float a : acc) total += a;
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

const ProbeLoops* probe_loops_portable() {
  static constexpr ProbeLoops loops{"portable", nullptr, nullptr, fp32_portable, 0, 0, 64};
  return &loops;
}

const ProbeLoops* probe_loops_for(const char* isa) {
  for (const ProbeLoops* loops : {probe_loops_avx512(), probe_loops_avx2(), probe_loops_portable()})
    if (loops && std::strcmp(loops->name, isa) == 0) return loops;
  return nullptr;
}

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

double peak_rate(Pool& pool, ProbeLoop loop, int32_t ops_per_round, double seconds) {
  constexpr int64_t kRounds = 20000;
  std::vector<Share> shares(pool.size());
  pool.run([&](Worker& w) {
    keep(loop(kRounds));
    pool.barrier();
    const double start = now();
    double rounds = 0.0, elapsed = 0.0;
    do {
      keep(loop(kRounds));
      rounds += double(kRounds);
      elapsed = now() - start;
    } while (elapsed < seconds);
    shares[w.id] = {rounds * ops_per_round, elapsed};
  });
  return total_rate(shares);
}

}  // namespace forno
