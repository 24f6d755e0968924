// Packed matrices for the loader, and the linear ops one by one for tests and benchmarks.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../isa.hpp"
#include "../packed.hpp"
#include "../types.hpp"
#include "../weight_memory.hpp"
#include "bindings.hpp"
#include "sources.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace forno {
namespace {

using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using NumpyMatrix = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

// Zeroed memory, 4096-byte aligned, that a numpy array can take over.
struct Buffer {
  std::unique_ptr<char, void (*)(void*)> data{nullptr, std::free};
  explicit Buffer(size_t bytes) {
    const size_t rounded = (bytes + 4096) / 4096 * 4096;
    data.reset(static_cast<char*>(std::aligned_alloc(4096, rounded)));
    if (!data) throw std::bad_alloc();
    std::memset(data.get(), 0, rounded);
  }
};

template <class T>
NumpyMatrix<T> to_numpy(Buffer& buffer, size_t rows, size_t columns) {
  T* p = reinterpret_cast<T*>(buffer.data.release());
  return NumpyMatrix<T>(p, {rows, columns}, nb::capsule(p, [](void* q) noexcept { std::free(q); }));
}

DType dtype_of(const std::string& name) {
  if (name == "f32") return DType::F32;
  if (name == "bf16") return DType::BF16;
  if (name == "s8") return DType::S8;
  if (name == "s8_row") return DType::S8_ROW;
  throw std::invalid_argument("dtype must be f32, bf16, s8 or s8_row, got '" + name + "'");
}

bool is_int8(DType dtype) { return dtype == DType::S8 || dtype == DType::S8_ROW; }

// Columns that share a scale.
int64_t group_of(DType dtype, int64_t width) { return dtype == DType::S8_ROW ? width : 32; }

int64_t row_stride(DType dtype, int64_t width) { return (row_bytes(dtype, width) + 63) / 64 * 64; }

// Activations of any dtype, owned.
struct Activations {
  Buffer memory;
  View view;
  Activations(int64_t rows, int64_t width, DType dtype)
      : memory(size_t(rows * row_stride(dtype, width))),
        view{memory.data.get(), row_stride(dtype, width), int32_t(width), dtype} {
    if (is_int8(dtype) && width % 32) throw std::invalid_argument("an s8 row has whole groups of 32, got width " + std::to_string(width));
  }
};

View view_of(const Floats2& x) {
  return {const_cast<char*>(reinterpret_cast<const char*>(x.data())), int64_t(x.shape(1)) * 4, int32_t(x.shape(1)), DType::F32};
}

const KernelTable& require_isa(const std::string& isa) {
  const KernelTable* table = kernels_for(isa.c_str());
  if (!table) throw std::invalid_argument("instruction set '" + isa + "' is not available on this machine");
  return *table;
}

// Calls f(Worker&) on `threads` threads at once, as the executor's pool would.
template <class F>
void on_workers(int32_t threads, F&& f) {
  if (threads < 1 || threads > 256) throw std::invalid_argument("threads must be between 1 and 256, got " + std::to_string(threads));
  std::vector<int32_t> tickets(size_t(threads) * kTicketStride);
  Buffer scratch(size_t(threads) * kScratchBytes);
  auto work = [&](int32_t id) {
    Worker worker{id, threads, scratch.data.get() + size_t(id) * kScratchBytes, kScratchBytes, tickets.data()};
    f(worker);
  };
  std::vector<std::thread> others;
  for (int32_t id = 1; id < threads; ++id) others.emplace_back(work, id);
  work(0);
  for (std::thread& t : others) t.join();
}

// An activation array as Python sees it: f32 [rows, width]; bf16 as its uint16 bits; s8 as (q, scale, sum).
nb::object to_python(Activations& a, int64_t rows) {
  const size_t m = size_t(rows), width = size_t(a.view.width);
  if (is_int8(a.view.dtype)) {
    const size_t groups = width ? width / size_t(group_of(a.view.dtype, a.view.width)) : 0;
    Buffer q(m * width), scale(m * groups * 4), sum(m * groups * 4);
    for (size_t r = 0; r < m; ++r) {
      const char* p = a.view.data + int64_t(r) * a.view.stride;
      std::memcpy(q.data.get() + r * width, p, width);
      std::memcpy(scale.data.get() + r * groups * 4, p + width, groups * 4);
      std::memcpy(sum.data.get() + r * groups * 4, p + width + groups * 4, groups * 4);
    }
    return nb::make_tuple(to_numpy<int8_t>(q, m, width), to_numpy<float>(scale, m, groups), to_numpy<int32_t>(sum, m, groups));
  }
  const size_t size = a.view.dtype == DType::F32 ? 4 : 2;
  Buffer out(m * width * size);
  for (size_t r = 0; r < m; ++r) std::memcpy(out.data.get() + r * width * size, a.view.data + int64_t(r) * a.view.stride, width * size);
  if (size == 4) return nb::cast(to_numpy<float>(out, m, width));
  return nb::cast(to_numpy<uint16_t>(out, m, width));
}

// --- packing -------------------------------------------------------------------------------------------------------

void pack_rows(PackedMatrix& m, const Bytes& data, const std::string& format, const std::optional<Order>& order, int32_t first,
               int32_t last, const Scales& scales) {
  const Source source = source_of(m, data, format, order, scales);
  nb::gil_scoped_release release;
  pack(m, &source, 1, first, last < 0 ? m.panels : last);
}

void pack_gate_up(PackedMatrix& m, const Bytes& gate, const Bytes& up, const std::string& format, int32_t first, int32_t last,
                  const Scales& gate_scales, const Scales& up_scales) {
  const Source sources[2] = {source_of(m, gate, format, std::nullopt, gate_scales), source_of(m, up, format, std::nullopt, up_scales)};
  nb::gil_scoped_release release;
  pack(m, sources, 2, first, last < 0 ? m.panels : last);
}

NumpyMatrix<float> dequantize(const PackedMatrix& m) {
  Buffer out(size_t(m.n) * size_t(m.k) * 4);
  {
    nb::gil_scoped_release release;
    for (int32_t r = 0; r < m.n; ++r) dequantize_row(m, r, reinterpret_cast<float*>(out.data.get()) + int64_t(r) * m.k);
  }
  return to_numpy<float>(out, size_t(m.n), size_t(m.k));
}

// --- ops, one by one -----------------------------------------------------------------------------------------------

nb::object quantize(const Floats2& x, const std::string& dtype, const std::string& isa, int32_t threads) {
  const KernelTable& kernels = require_isa(isa);
  const int64_t rows = int64_t(x.shape(0));
  Activations out(rows, int64_t(x.shape(1)), dtype_of(dtype));
  const QuantizeArgs args{view_of(x), out.view};
  on_workers(threads, [&](Worker& w) { kernels.quantize(args, int32_t(rows), w); });
  return to_python(out, rows);
}

NumpyMatrix<float> embed(const PackedMatrix& m, const Order& ids, const std::string& isa, int32_t threads) {
  const KernelTable& kernels = require_isa(isa);
  if (m.interleaved) throw std::invalid_argument("an interleaved matrix is no embedding");
  Buffer out(ids.size() * size_t(m.k) * 4);
  const EmbedArgs args{{out.data.get(), int64_t(m.k) * 4, m.k, DType::F32}, &m};
  Step step{};
  step.num_rows = int32_t(ids.size());
  step.token_ids = ids.data();
  on_workers(threads, [&](Worker& w) { kernels.embed(args, step, w); });
  return to_numpy<float>(out, ids.size(), size_t(m.k));
}

DType activation_dtype(Format format) {
  if (format == Format::W8A8) return DType::S8_ROW;
  return format == Format::BF16 ? DType::BF16 : format == Format::F32 || format == Format::F16 ? DType::F32 : DType::S8;
}

// A linear call with its inputs converted and its output allocated, to be run any number of times.
struct LinearCall {
  const KernelTable& kernels;
  int64_t rows;
  Activations x;
  Activations out;
  LinearArgs args{};

  static int64_t width_of(const std::vector<const PackedMatrix*>& weights, bool silu_mul) {
    if (weights.empty() || weights.size() > size_t(kMaxParts)) throw std::invalid_argument("a linear has 1 to 4 weights");
    int64_t width = 0;
    for (const PackedMatrix* w : weights) {
      if (w->k != weights[0]->k || activation_dtype(w->format) != activation_dtype(weights[0]->format))
        throw std::invalid_argument("the weights of one linear read the same input");
      if (w->interleaved != silu_mul || (silu_mul && weights.size() > 1))
        throw std::invalid_argument("silu_mul takes one interleaved weight, and only it does");
      width += silu_mul ? w->n / 2 : w->n;
    }
    return width;
  }

  LinearCall(const KernelTable& kernels_, const Floats2& input, const std::vector<const PackedMatrix*>& weights, bool silu_mul,
             DType out_dtype, int32_t row_begin, int32_t row_end)
      : kernels(kernels_),
        rows(row_end > 0 ? row_end - row_begin : int64_t(input.shape(0))),
        x(int64_t(input.shape(0)), int64_t(input.shape(1)), weights.empty() ? DType::F32 : activation_dtype(weights[0]->format)),
        out(rows < 0 ? 0 : rows, width_of(weights, silu_mul), out_dtype) {
    const int64_t available = int64_t(input.shape(0));
    if (out_dtype == DType::S8_ROW) throw std::invalid_argument("a linear computes a row in parts, so it cannot scale it as one");
    if (rows < 0 || row_begin < 0 || row_end > available) throw std::invalid_argument("the rows are outside x");
    if (int64_t(input.shape(1)) != weights[0]->k)
      throw std::invalid_argument("x has width " + std::to_string(input.shape(1)) + ", the weights " + std::to_string(weights[0]->k));
    const QuantizeArgs quantize_args{view_of(input), x.view};
    on_workers(1, [&](Worker& w) { kernels.quantize(quantize_args, int32_t(available), w); });
    args.x = x.view;
    args.out = out.view;
    args.num_parts = int32_t(weights.size());
    args.silu_mul = silu_mul;
    args.row_begin = row_begin;
    args.row_end = row_end;
    int32_t column = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (out_dtype == DType::S8 && column % 32) throw std::invalid_argument("s8 output needs parts of whole groups of 32");
      args.parts[i] = {weights[i], nullptr, column};
      column += weights[i]->n;
    }
  }

  void run(Worker& worker) const { kernels.linear(args, int32_t(x.view.data ? rows : 0), worker); }
};

nb::object linear(const Floats2& x, const std::vector<const PackedMatrix*>& weights, const std::vector<std::optional<Floats1>>& biases,
                  const std::optional<Floats2>& residual, bool silu_mul, const std::string& out_dtype, int32_t row_begin,
                  int32_t row_end, const std::string& isa, int32_t threads) {
  LinearCall call(require_isa(isa), x, weights, silu_mul, dtype_of(out_dtype), row_begin, row_end);
  if (!biases.empty() && biases.size() != weights.size()) throw std::invalid_argument("one bias, or None, per weight");
  for (size_t i = 0; i < biases.size(); ++i) {
    if (!biases[i]) continue;
    const size_t expected = size_t(silu_mul ? weights[i]->panels * kPanel : weights[i]->n);
    if (biases[i]->size() != expected) throw std::invalid_argument("the bias must have length " + std::to_string(expected));
    call.args.parts[i].bias = biases[i]->data();
  }
  if (residual) {
    if (residual->shape(0) != x.shape(0) || int32_t(residual->shape(1)) != call.out.view.width)
      throw std::invalid_argument("the residual must have x's rows and the output's width");
    call.args.residual = view_of(*residual);
  }
  {
    nb::gil_scoped_release release;
    on_workers(threads, [&](Worker& w) { call.run(w); });
  }
  return to_python(call.out, call.rows);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const char* name : available_isas()) names.emplace_back(name);
    return names;
  }, "Instruction sets that this machine and this build support, best first.");

  m.def("packed_bytes", [](const std::string& format, int64_t n, int64_t k, bool interleaved) {
    return packed_bytes(format_of(format.c_str()), n, k, interleaved);
  }, "format"_a, "n"_a, "k"_a, "interleaved"_a = false, "Bytes that a PackedMatrix of this shape takes, a multiple of 64.");

  nb::class_<PackedMatrix>(m, "PackedMatrix",
                           "A weight [n, k] in the kernels' layout and the file's own precision. Interleaved: gate and up, n / 2 rows\n"
                           "each, for a linear with silu_mul; its bias has the packed order and length panels * 64.")
      .def("__init__", [](PackedMatrix* self, const std::string& format_text, int64_t n, int64_t k, bool interleaved, WeightMemory* memory) {
        const Format format = format_of(format_text.c_str());
        new (self) PackedMatrix(format, n, k, interleaved, memory ? memory->take(packed_bytes(format, n, k, interleaved)) : nullptr);
      }, "format"_a, "n"_a, "k"_a, "interleaved"_a = false, "memory"_a = nb::none(), nb::keep_alive<1, 6>(),
         "Allocate, or take a part of `memory`. ValueError if n or k do not suit the format, or `memory` is used up.")
      .def("pack", &pack_rows, "data"_a, "source_format"_a = "", "row_order"_a = nb::none(), "first"_a = 0, "last"_a = -1,
           "scales"_a = nb::none(),
           "Fill panels [first, last) (64 rows each; -1: all) from `data`: n rows as the file holds them, uint8. Disjoint ranges may be\n"
           "packed by several threads; the GIL is released. `source_format` f32, f16 or bf16 quantizes to a matrix of format q8_0\n"
           "(symmetric, amax / 127) or q4_1 (asymmetric, a least-squares scale and minimum: closer than symmetric int4 for half a bit\n"
           "more). w8a8 takes f32 `scales` [n] beside its codes. ValueError if a length does not fit or a value cannot be quantized.")
      .def("pack_gate_up", &pack_gate_up, "gate"_a, "up"_a, "source_format"_a = "", "first"_a = 0, "last"_a = -1, "gate_scales"_a = nb::none(), "up_scales"_a = nb::none(),
           "The same for an interleaved matrix, from its two sources of n / 2 rows. A panel holds 32 rows of each.")
      .def("dequantize", &dequantize, "The weights as f32 [n, k], bit for bit what the format defines; interleaved: gate's rows, then up's.")
      .def_ro("n", &PackedMatrix::n)
      .def_ro("k", &PackedMatrix::k)
      .def_ro("panels", &PackedMatrix::panels)
      .def_ro("interleaved", &PackedMatrix::interleaved)
      .def_ro("nbytes", &PackedMatrix::bytes)
      .def_prop_ro("format", [](const PackedMatrix& p) { return format_name(p.format); });

  m.def("quantize", &quantize, "x"_a, "dtype"_a = "s8", "isa"_a = "auto", "threads"_a = 1,
        "f32 [rows, width] to s8 or s8_row, as (q, scale, sum), or to bf16, as uint16 bits.");
  m.def("embed", &embed, "weight"_a, "ids"_a, "isa"_a = "auto", "threads"_a = 1, "Rows of a packed matrix as f32; NaN for ids outside it.");
  m.def("linear", &linear, "x"_a, "weights"_a, "biases"_a = std::vector<std::optional<Floats1>>{}, "residual"_a = nb::none(),
        "silu_mul"_a = false, "out_dtype"_a = "f32", "row_begin"_a = 0, "row_end"_a = 0, "isa"_a = "auto", "threads"_a = 1,
        "x f32 [rows, k] (converted to what the weights read) times the weights, side by side. See LinearArgs in types.hpp.");
}

}  // namespace forno
