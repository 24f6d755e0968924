// The thread pool and the machine's speeds, as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "../pool.hpp"
#include "../work.hpp"
#include "bindings.hpp"

namespace forno {
namespace nb = nanobind;
namespace {

// Runs `rounds` ops of `units` units on a fresh pool; returns how often each unit was done, and per worker whether it
// flushed denormals. For tests.
std::pair<std::vector<int64_t>, std::vector<bool>> exercise(Pool& pool, int32_t units, int32_t rounds) {
  std::vector<int64_t> done(units);
  std::vector<char> flushed(pool.size());
  {
    nb::gil_scoped_release release;
    pool.run([&](Worker& w) {
      flushed[w.id] = FlushDenormals::active();
      for (int32_t r = 0; r < rounds; ++r) {
        for_units(w, units, [&](int32_t u) { ++done[u]; });  // a unit belongs to one worker between two barriers
        pool.barrier();
      }
    });
  }
  return {done, std::vector<bool>(flushed.begin(), flushed.end())};
}

}  // namespace

void bind_machine(nb::module_& m) {
  nb::class_<Pool>(m, "Pool", "Worker threads, for tests and micro-benchmarks.")
      .def(nb::init<int32_t, int32_t>(), nb::arg("workers"), nb::arg("spin_us") = 50)
      .def_prop_ro("size", &Pool::size)
      .def("exercise", &exercise, nb::arg("units"), nb::arg("rounds"));
  m.def("flushes_denormals", &FlushDenormals::active, "Whether the calling thread flushes denormals now.");
}

}  // namespace forno
