#include "pack_jobs.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>

#include "threads.hpp"

namespace forno {
namespace {

constexpr int64_t kUnitBytes = 1 << 20;

struct Unit {
  int64_t job;
  int32_t first, last;  // panels
};

std::vector<Unit> units_of(const std::vector<PackJob>& jobs) {
  std::vector<Unit> units;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const PackedMatrix& m = *jobs[i].matrix;
    const int32_t step = int32_t(std::clamp<int64_t>(kUnitBytes / m.panel_bytes, 1, m.panels));
    for (int32_t first = 0; first < m.panels; first += step)
      units.push_back({int64_t(i), first, std::min(m.panels, first + step)});
  }
  return units;
}

// Whole pages inside a source. They stay in the system's page cache: reading them again would be correct and cheap.
void drop_pages(const Source& s) {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(s.data) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(s.data + s.bytes) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

PackFailure pack_all(const std::vector<PackJob>& jobs, int32_t threads) {
  const std::vector<Unit> units = units_of(jobs);
  const std::unique_ptr<std::atomic<int32_t>[]> left(new std::atomic<int32_t>[jobs.size()]());
  for (const Unit& unit : units) ++left[size_t(unit.job)];
  std::atomic<size_t> next{0};
  std::mutex lock;
  PackFailure failure;
  on_new_threads(threads, [&] {
    for (size_t i; (i = next++) < units.size();) {
      const PackJob& job = jobs[size_t(units[i].job)];
      try {
        pack(*job.matrix, job.sources.data(), int32_t(job.sources.size()), units[i].first, units[i].last);
      } catch (const std::exception& error) {
        const std::lock_guard<std::mutex> held(lock);
        if (failure.job < 0) failure = {units[i].job, error.what()};
        next = units.size();
        return;
      }
      if (--left[size_t(units[i].job)] == 0 && job.mapped) std::for_each(job.sources.begin(), job.sources.end(), drop_pages);
    }
  });
  return failure;
}

}  // namespace forno
