// The thread pool and the machine's speeds, as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <malloc.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../isa.hpp"
#include "../pool.hpp"
#include "../probe.hpp"
#include "../stepping.hpp"
#include "../work.hpp"
#include "bindings.hpp"

namespace forno {
namespace nb = nanobind;
namespace {

// Runs `rounds` phases of `units` units; returns how often each unit was done, and per worker whether it flushed
// denormals. With `late` all workers but the first come when all is done. For tests.
std::pair<std::vector<int64_t>, std::vector<bool>> exercise(Pool& pool, int32_t units, int32_t rounds, bool late) {
  std::atomic<bool> finished{!late};
  std::vector<int64_t> done(units);
  std::vector<char> flushed(pool.size());
  {
    nb::gil_scoped_release release;
    pool.run([&](Worker& w) {
      flushed[w.id] = FlushDenormals::active();
      while (w.id > 0 && !finished.load()) sched_yield();
      for (int32_t r = 0; r < rounds; ++r)  // a unit belongs to one worker in each phase
        pool.phase(w, [&] { for_units(w, units, [&](int32_t u) { ++done[u]; }); });
      finished = true;
    });
  }
  return {done, std::vector<bool>(flushed.begin(), flushed.end())};
}

double bandwidth(Pool& pool, int64_t bytes_per_worker, double seconds) {
  nb::gil_scoped_release release;
  return read_bandwidth(pool, bytes_per_worker, seconds);
}

// None where the instruction set has no such unit.
std::optional<double> peak(Pool& pool, const std::string& isa, const std::string& kind, double seconds) {
  const KernelTable* kernels = kernels_for(isa.c_str());
  if (!kernels) throw std::invalid_argument("this machine cannot run the kernels for '" + isa + "'");
  const bool int8 = kind == "int8", bf16 = kind == "bf16";
  if (!int8 && !bf16 && kind != "fp32") throw std::invalid_argument("kind must be int8, bf16 or fp32");
  const PeakUnit unit = int8 ? PeakUnit::INT8 : bf16 ? PeakUnit::BF16 : PeakUnit::FP32;
  double rate = 0.0;
  {
    nb::gil_scoped_release release;
    rate = peak_rate(pool, *kernels, unit, seconds);
  }
  return rate > 0.0 ? std::optional<double>(rate) : std::nullopt;
}

// (instructions, allocations) of a loop that asks for memory `times` times. For tests.
std::pair<int64_t, int64_t> step_through_allocations(int32_t times) {
  int64_t instructions = 0;
  {
    Stepping stepping;
    for (int32_t i = 0; i < times; ++i) {
      void* volatile memory = std::malloc(64);
      std::free(memory);
    }
    instructions = forno_instructions();
  }
  return {instructions, stepped_allocations()};
}

}  // namespace

void bind_machine(nb::module_& m) {
  m.def("trim_memory", [] {
#ifdef __GLIBC__
    malloc_trim(0);  // glibc's; others keep less
#endif
  }, "Give freed memory back to the system, where the C library keeps it: worth it once, after a start.");
#if defined(__clang__)
  m.attr("COMPILER") = __VERSION__;
#else
  m.attr("COMPILER") = "GCC " __VERSION__;
#endif
  m.attr("CAN_STEP") = kCanStep;
  m.def("step_through_allocations", &step_through_allocations, nb::arg("times"), "For tests of counting.");
  nb::class_<Pool>(m, "Pool", "Worker threads, for tests and micro-benchmarks.")
      .def(nb::init<int32_t, int32_t>(), nb::arg("workers"), nb::arg("spin_us") = 50)
      .def_prop_ro("size", &Pool::size)
      .def("exercise", &exercise, nb::arg("units"), nb::arg("rounds"), nb::arg("late") = false, "For tests.")
      .def("read_bandwidth", &bandwidth, nb::arg("bytes_per_worker"), nb::arg("seconds"), "Bytes per second, all workers.")
      .def("peak", &peak, nb::arg("isa"), nb::arg("kind"), nb::arg("seconds"),
           "Operations per second of int8, bf16 or fp32 multiply-adds, all workers; None without such a unit.");
  m.def("flushes_denormals", &FlushDenormals::active, "Whether the calling thread flushes denormals now.");
}

}  // namespace forno
