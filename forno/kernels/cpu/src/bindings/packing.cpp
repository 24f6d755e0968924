// The memory of a model's matrices: packed in one call, or read back from a file.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../pack_jobs.hpp"
#include "../weight_memory.hpp"
#include "bindings.hpp"
#include "sources.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace forno {
namespace {

using Array = std::pair<Bytes, Scales>;
using Given = std::tuple<PackedMatrix*, std::vector<Array>, std::string, std::optional<Order>, bool>;

PackJob job_of(const Given& given) {
  const auto& [matrix, arrays, format, order, mapped] = given;
  PackJob job{matrix, {}, mapped};
  for (const auto& [data, scales] : arrays) job.sources.push_back(source_of(*matrix, data, format, order, scales));
  return job;
}

void check_threads(int32_t threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be between 1 and 1024, got " + std::to_string(threads));
}

std::vector<uint64_t> checksums(const WeightMemory& memory, int32_t threads) {
  check_threads(threads);
  nb::gil_scoped_release release;
  return memory.checksums(threads);
}

std::optional<std::string> read_memory(WeightMemory& memory, int file, int64_t offset, const std::vector<uint64_t>& sums, int32_t threads) {
  check_threads(threads);
  if (offset < 0) throw std::invalid_argument("the offset is negative");
  nb::gil_scoped_release release;
  std::string failure = memory.read(file, offset, sums, threads);
  if (failure.empty()) return std::nullopt;
  return failure;
}

nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> content(WeightMemory& memory) {
  return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(memory.data(), {memory.used()}, nb::find(memory));
}

std::optional<std::tuple<int64_t, std::string>> pack_given(const std::vector<Given>& given, int32_t threads) {
  check_threads(threads);
  std::vector<PackJob> jobs;
  for (const Given& each : given) jobs.push_back(job_of(each));
  nb::gil_scoped_release release;
  PackFailure failure = pack_all(jobs, threads);
  if (failure.job < 0) return std::nullopt;
  return std::make_tuple(failure.job, std::move(failure.message));
}

}  // namespace

void bind_packing(nb::module_& m) {
  m.attr("PACKED_LAYOUT") = kPackedLayout;
  m.attr("CHUNK_BYTES") = kChunk;
  nb::class_<WeightMemory>(m, "WeightMemory",
                           "Memory for the matrices of a model side by side, in huge pages where the system grants them. Pages are\n"
                           "touched by whoever packs into them. Checksums are of CHUNK_BYTES each, in order, the last of what is left.")
      .def(nb::init<size_t>(), "bytes"_a)
      .def_prop_ro("content", &content, "uint8: what was handed out so far, not copied.")
      .def("checksums", &checksums, "threads"_a, "64 bits of every chunk. The GIL is released.")
      .def("read", &read_memory, "file"_a, "offset"_a, "checksums"_a, "threads"_a,
           "Fill what was handed out from a file descriptor, on several threads; the GIL is released. Returns None, or why the file\n"
           "does not hold it: too short, other checksums, unreadable. The content is undefined then.");
  m.def("pack_all", &pack_given, "jobs"_a, "threads"_a,
        "Fill matrices on several threads; the GIL is released. A job is (matrix, sources, source_format, row_order, mapped): one\n"
        "(data, scales), or gate's and up's, as PackedMatrix.pack takes them; `mapped`: the sources are whole mapped files' pages, dropped from\n"
        "this process once read. Returns None, or the (index, message) of a job whose source does not fit.");
}

}  // namespace forno
