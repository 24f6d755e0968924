// Length-prefixed strings, as GGUF stores vocabularies: a hundred thousand of them, which a Python loop takes long for.
#include <nanobind/ndarray.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace forno {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls f(text, length) for each of `count` strings from `pos`; returns where the last one ends.
template <class F>
int64_t for_each_string(const Bytes& data, int64_t pos, int64_t count, F&& f) {
  const uint64_t size = data.size();
  if (pos < 0 || count < 0) throw std::invalid_argument("a position and a count must not be negative");
  uint64_t at = uint64_t(pos);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t length;
    if (at > size || size - at < 8) throw std::invalid_argument("string " + std::to_string(i) + " starts outside the data");
    std::memcpy(&length, data.data() + at, 8);  // little-endian, as the machines forno is built for
    at += 8;
    if (length > size - at) throw std::invalid_argument("string " + std::to_string(i) + " ends outside the data");
    f(reinterpret_cast<const char*>(data.data()) + at, size_t(length));
    at += length;
  }
  return int64_t(at);
}

int64_t skip_strings(const Bytes& data, int64_t pos, int64_t count) {
  return for_each_string(data, pos, count, [](const char*, size_t) {});
}

nb::list read_strings(const Bytes& data, int64_t pos, int64_t count) {
  nb::list strings;
  for_each_string(data, pos, count, [&](const char* text, size_t length) {
    PyObject* string = PyUnicode_DecodeUTF8(text, Py_ssize_t(length), nullptr);
    if (!string) {
      PyErr_Clear();
      string = PyBytes_FromStringAndSize(text, Py_ssize_t(length));
    }
    if (!string) throw nb::python_error();
    strings.append(nb::steal(string));
  });
  return strings;
}

}  // namespace

void bind_strings(nb::module_& m) {
  m.def("skip_strings", &skip_strings, "data"_a, "pos"_a, "count"_a,
        "Where `count` strings from `pos` end: each a little-endian u64 length, then its bytes. ValueError if one leaves the data.");
  m.def("read_strings", &read_strings, "data"_a, "pos"_a, "count"_a,
        "The same strings as a list: str, or bytes where they are no UTF-8.");
}

}  // namespace forno
