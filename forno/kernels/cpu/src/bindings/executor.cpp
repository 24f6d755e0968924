// The executor as Python sees it: typed methods that add op records, and one that runs a step.
#include "../executor.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../isa.hpp"
#include "../kv_layout.hpp"
#include "../packed.hpp"
#include "bindings.hpp"

namespace forno {
namespace nb = nanobind;
namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

// Where a value lies in the activation arena: offset and row stride in bytes, columns, type (DType).
using ViewSpec = std::tuple<int64_t, int64_t, int32_t, int32_t>;
using PartSpec = std::tuple<nb::object, int32_t, int32_t>;  // packed matrix, bias (constant or -1), first column

// An executor and what keeps its records' pointers alive. Every shape is checked here, once.
class Builder {
 public:
  Builder(const std::string& isa, int32_t threads, int32_t spin_us, int32_t max_rows, int32_t vocab, int32_t max_positions,
          int32_t num_blocks, int32_t block_size, int64_t activation_bytes)
      : executor_({find(isa), threads, spin_us, max_rows, vocab, max_positions, num_blocks, block_size,
                   size_t(activation_bytes < 0 ? 0 : activation_bytes)}) {}

  Executor& executor() { return executor_; }

  int32_t constant(Vector<float> values) {
    constants_.push_back({executor_.keep(values.data(), values.size()), static_cast<int64_t>(values.size())});
    return static_cast<int32_t>(constants_.size()) - 1;
  }

  void add_embed(const ViewSpec& out, nb::object weight) {
    const PackedMatrix* matrix = keep(weight);
    EmbedArgs args{view(out), matrix};
    require(args.out.width == matrix->k && matrix->n >= executor_.config().vocab && !matrix->interleaved,
            "embed: the table has another shape");
    executor_.add(args, Axis::Rows);
  }

  void add_rms_norm(const ViewSpec& x, const ViewSpec& out, int32_t weight, float eps, int32_t group, Axis axis) {
    RmsNormArgs args{view(x), view(out), nullptr, eps, group};
    const int32_t length = group ? group : args.x.width;
    require(args.x.dtype == DType::F32 && args.x.width == args.out.width && group >= 0 && args.x.width % length == 0,
            "rms_norm: the shapes do not fit");
    require(args.out.dtype != DType::S8_ROW || length == args.x.width, "rms_norm: a scale per row needs the row as one group");
    args.weight = constant_of(weight, length);
    executor_.add(args, axis);
  }

  void add_quantize(const ViewSpec& x, const ViewSpec& out, Axis axis) {
    QuantizeArgs args{view(x), view(out)};
    require(args.x.dtype == DType::F32 && args.x.width == args.out.width, "quantize: the shapes do not fit");
    executor_.add(args, axis);
  }

  void add_add(const ViewSpec& a, const ViewSpec& b, const ViewSpec& out, Axis axis) {
    AddArgs args{view(a), view(b), view(out)};
    require(args.a.width == args.out.width && args.b.width == args.out.width && all_f32({args.a, args.b, args.out}),
            "add: the shapes do not fit");
    executor_.add(args, axis);
  }

  void add_silu_mul(const ViewSpec& gate, const ViewSpec& up, const ViewSpec& out, Axis axis) {
    SiluMulArgs args{view(gate), view(up), view(out)};
    require(args.gate.width == args.out.width && args.up.width == args.out.width && all_f32({args.gate, args.up}),
            "silu_mul: the shapes do not fit");
    executor_.add(args, axis);
  }

  void add_gather(const ViewSpec& x, const ViewSpec& out) {
    GatherArgs args{view(x), view(out)};
    require(args.x.width == args.out.width && args.x.dtype == args.out.dtype, "gather: the shapes do not fit");
    executor_.add(args, Axis::Outputs);
  }

  void add_rope(const ViewSpec& x, const ViewSpec& out, int32_t heads, int32_t head_dim, int32_t rope_dim, int32_t table) {
    RopeArgs args{view(x), view(out), heads, head_dim, rope_dim, rope_table(table, rope_dim, head_dim)};
    require(args.x.width == int64_t(heads) * head_dim && args.out.width == args.x.width && all_f32({args.x, args.out}),
            "rope: the shapes do not fit");
    executor_.add(args, Axis::Rows);
  }

  void add_kv_write(const ViewSpec& k, const ViewSpec& v, int32_t cache) {
    KvWriteArgs args{view(k), view(v), executor_.cache(cache)};
    require(args.k.width == int64_t(args.cache.kv_heads) * args.cache.k_dim &&
                args.v.width == int64_t(args.cache.kv_heads) * args.cache.v_dim && all_f32({args.k, args.v}),
            "kv_write: the shapes do not fit");
    executor_.add(args, Axis::Rows);
  }

  void add_qkv_prepare(const ViewSpec& x, const ViewSpec& out, int32_t cache, int32_t heads, int32_t head_dim,
                       int32_t rope_dim, int32_t table, int32_t q_norm, int32_t k_norm, float eps) {
    const KvCache& kv = executor_.cache(cache);
    QkvPrepareArgs args{view(x), view(out), kv, heads, kv.kv_heads, head_dim, rope_dim,
                        rope_table(table, rope_dim, head_dim),
                        q_norm < 0 ? nullptr : constant_of(q_norm, head_dim),
                        k_norm < 0 ? nullptr : constant_of(k_norm, head_dim), eps};
    require(kv.k_dim == head_dim && kv.v_dim == head_dim && args.out.width == int64_t(heads) * head_dim &&
                args.x.width == (int64_t(heads) + 2 * kv.kv_heads) * head_dim && all_f32({args.x, args.out}),
            "qkv_prepare: the shapes do not fit");
    executor_.add(args, Axis::Rows);
  }

  void add_attention(const ViewSpec& q, const ViewSpec& out, int32_t cache, int32_t heads, float scale, int32_t window,
                     float softcap, bool materialized) {
    const KvCache& kv = executor_.cache(cache);
    require(heads > 0 && heads % kv.kv_heads == 0 && window >= 0, "attention: heads must be a multiple of kv_heads");
    AttentionArgs args{view(q), view(out), kv, heads, kv.kv_heads, kv.k_dim, scale, window, softcap, nullptr, 0};
    require(args.q.width == int64_t(heads) * kv.k_dim && args.out.width == int64_t(heads) * kv.v_dim && all_f32({args.q}),
            "attention: the shapes do not fit");
    require(args.out.dtype != DType::S8_ROW, "attention computes a row in parts, so it cannot scale it as one");
    if (!materialized) return executor_.add(args, Axis::Rows);
    for (MatrixPass pass : kMatrixPasses) executor_.add(MatrixArgs{args, pass, nullptr}, Axis::Rows);
  }

  void add_linear(const ViewSpec& x, const ViewSpec& out, const std::vector<PartSpec>& parts, const ViewSpec* residual,
                  bool silu_mul, Axis axis) {
    executor_.add(linear(view(x), view(out), parts, residual, silu_mul, axis), axis);
  }

  void add_sample(const ViewSpec& logits) {
    const View v = view(logits);
    require(v.width == executor_.config().vocab, "sample: the logits must cover the vocabulary");
    executor_.add(SampleOpArgs{v}, Axis::Outputs);
  }

  void add_sample_head(const ViewSpec& x, const ViewSpec& logits, const std::vector<PartSpec>& parts) {
    const View slice = view(logits, std::min(kHeadSlice, executor_.config().max_rows));
    require(slice.width == executor_.config().vocab, "sample_head: the logits must cover the vocabulary");
    executor_.add(SampleHeadArgs{linear(view(x), slice, parts, nullptr, false, Axis::Outputs)}, Axis::Outputs);
  }

 private:
  static const KernelTable* find(const std::string& isa) {
    const KernelTable* kernels = kernels_for(isa.c_str());
    if (!kernels) throw std::invalid_argument("this machine cannot run the kernels for '" + isa + "'");
    return kernels;
  }

  static bool all_f32(std::initializer_list<View> views) {
    for (const View& v : views)
      if (v.dtype != DType::F32) return false;
    return true;
  }

  View view(const ViewSpec& spec) const { return view(spec, executor_.config().max_rows); }

  View view(const ViewSpec& spec, int32_t rows) const {
    const auto& [offset, stride, width, dtype] = spec;
    require(width > 0 && offset >= 0 && stride > 0 && stride % 4 == 0 && offset % 4 == 0, "a view has an absurd shape");
    require(dtype >= 0 && dtype <= int32_t(DType::S8_ROW), "a view has an unknown type");
    const DType type = static_cast<DType>(dtype);
    require((type != DType::S8 && type != DType::S8_ROW) || (width % 32 == 0 && offset % 64 == 0),
            "an s8 view needs groups of 32 and alignment");
    const int64_t bytes = static_cast<int64_t>(executor_.activation_bytes());
    require(row_bytes(type, width) <= stride && stride <= bytes, "a view's rows overlap");
    require(offset <= bytes && stride * int64_t(rows - 1) + row_bytes(type, width) <= bytes - offset,
            "a view reaches beyond the activations");
    return {executor_.activations() + offset, stride, width, type};
  }

  const float* constant_of(int32_t index, int64_t length) const {
    require(index >= 0 && index < int32_t(constants_.size()), "there is no such constant");
    require(constants_[index].second == length, "a constant has another length");
    return constants_[index].first;
  }

  const float* rope_table(int32_t index, int32_t rope_dim, int32_t head_dim) const {
    require(rope_dim > 0 && rope_dim % 2 == 0 && rope_dim <= head_dim, "rope: the rotated part must be even and fit a head");
    return constant_of(index, int64_t(rope_dim) * executor_.config().max_positions);
  }

  const PackedMatrix* keep(nb::object weight) {
    const PackedMatrix* matrix = nb::cast<const PackedMatrix*>(weight);
    require(matrix != nullptr, "a weight is missing");
    weights_.push_back(std::move(weight));
    return matrix;
  }

  LinearArgs linear(View x, View out, const std::vector<PartSpec>& parts, const ViewSpec* residual, bool silu_mul,
                    Axis axis) {
    LinearArgs args{};
    args.x = x;
    args.out = out;
    if (residual) args.residual = view(*residual);
    require(!parts.empty() && parts.size() <= size_t(kMaxParts), "linear: there must be 1 to 4 parts");
    require(!silu_mul || parts.size() == 1, "linear: gate and up are one part");
    require(out.dtype != DType::S8_ROW, "linear: a row is computed in parts, so it cannot be scaled as one");
    require(!residual || (args.residual.width == out.width && args.residual.dtype == DType::F32),
            "linear: the residual does not fit");
    int64_t columns = 0;
    for (const auto& [weight, bias, column] : parts) {
      const PackedMatrix* matrix = keep(weight);
      require(matrix->k == x.width && column == columns, "linear: a part does not fit");
      require(matrix->interleaved == silu_mul, "linear: only gate and up are interleaved");
      require((matrix->format == Format::W8A8) == (x.dtype == DType::S8_ROW), "linear: w8a8 reads rows with one scale, and only it does");
      const int64_t bias_length = silu_mul ? int64_t(matrix->panels) * kPanel : matrix->n;
      args.parts[args.num_parts++] = {matrix, bias < 0 ? nullptr : constant_of(bias, bias_length), column};
      columns += silu_mul ? matrix->n / 2 : matrix->n;
    }
    require(columns == out.width, "linear: the parts do not fill the output");
    args.silu_mul = silu_mul;
    args.axis_outputs = axis == Axis::Outputs;
    return args;
  }

  Executor executor_;
  std::vector<std::pair<const float*, int64_t>> constants_;
  std::vector<nb::object> weights_;
};

int32_t admit(Builder& self, Vector<int32_t> prompt, int32_t capacity, const Sampling& sampling) {
  require(prompt.size() <= size_t(INT32_MAX), "the prompt is absurdly long");
  return self.executor().requests().admit(prompt.data(), int32_t(prompt.size()), capacity, sampling);
}

int32_t run(Builder& self, Matrix<int32_t> rows, int32_t num_rows, Vector<int32_t> blocks, Matrix<int32_t> copies,
            Matrix<uint32_t> masks, Vector<int32_t> drafts) {
  Executor& executor = self.executor();
  require(rows.shape(1) == kPlanColumns && num_rows >= 0 && size_t(num_rows) <= rows.shape(0), "rows: wrong shape");
  require(copies.shape(0) == 0 || copies.shape(1) == 2, "copies: wrong shape");
  require(copies.shape(0) <= size_t(INT32_MAX / 4096), "copies: too many");
  const size_t words = (size_t(executor.config().vocab) + 31) / 32;
  require(masks.shape(0) == 0 || masks.shape(1) == words, "masks: wrong shape");
  StepInput input{reinterpret_cast<const PlanRow*>(rows.data()), num_rows,
                  blocks.data(), int64_t(blocks.size()),
                  copies.data(), int32_t(copies.shape(0)),
                  masks.data(), int32_t(std::min<size_t>(masks.shape(0), INT32_MAX)),
                  drafts.data(), int64_t(drafts.size())};
  nb::gil_scoped_release release;
  return executor.run(input);
}

using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

Bytes draws(Builder& self) {
  const std::vector<Draw>& all = self.executor().draws();
  return Bytes(all.data(), {all.size() * sizeof(Draw)}, nb::find(self));
}

nb::ndarray<nb::numpy, const float, nb::ndim<2>> logits(Builder& self) {
  const ExecutorConfig& config = self.executor().config();
  require(self.executor().captured() != nullptr, "logits are not captured; call capture_logits(True) first");
  return {self.executor().captured(), {size_t(config.max_rows), size_t(config.vocab)}, nb::find(self)};
}

void set_caches(Builder& self, const std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t>>& layers) {
  std::vector<KvShape> shapes;
  for (const auto& [kv_heads, k_dim, v_dim, dtype] : layers) {
    require(dtype >= 0 && dtype <= int32_t(KvDType::F32), "unknown cache type");
    shapes.push_back({kv_heads, k_dim, v_dim, self.executor().config().block_size, static_cast<KvDType>(dtype)});
  }
  self.executor().set_caches(shapes);
}

void bind_ops(nb::class_<Builder>& c) {
  c.def("constant", &Builder::constant, nb::arg("values"), "Copy float32 values; returns their index.")
      .def("add_embed", &Builder::add_embed)
      .def("add_rms_norm", &Builder::add_rms_norm)
      .def("add_quantize", &Builder::add_quantize)
      .def("add_add", &Builder::add_add)
      .def("add_silu_mul", &Builder::add_silu_mul)
      .def("add_gather", &Builder::add_gather)
      .def("add_rope", &Builder::add_rope)
      .def("add_kv_write", &Builder::add_kv_write)
      .def("add_qkv_prepare", &Builder::add_qkv_prepare)
      .def("add_attention", &Builder::add_attention)
      .def(
          "add_linear",
          [](Builder& b, const ViewSpec& x, const ViewSpec& out, const std::vector<PartSpec>& parts, nb::object residual,
             bool silu_mul, Axis axis) {
            if (residual.is_none()) return b.add_linear(x, out, parts, nullptr, silu_mul, axis);
            const ViewSpec spec = nb::cast<ViewSpec>(residual);
            b.add_linear(x, out, parts, &spec, silu_mul, axis);
          },
          nb::arg("x"), nb::arg("out"), nb::arg("parts"), nb::arg("residual").none(), nb::arg("silu_mul"), nb::arg("axis"))
      .def("add_sample", &Builder::add_sample)
      .def("add_sample_head", &Builder::add_sample_head);
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::enum_<Axis>(m, "Axis").value("ROWS", Axis::Rows).value("OUTPUTS", Axis::Outputs);
  m.attr("HEAD_SLICE") = kHeadSlice;
  m.def("kv_block_bytes",
        [](int32_t kv_heads, int32_t k_dim, int32_t v_dim, int32_t dtype, int32_t block_size) {
          require(dtype >= 0 && dtype <= int32_t(KvDType::F32), "unknown cache type");
          return kv_block_bytes(kv_layout({kv_heads, k_dim, v_dim, block_size, static_cast<KvDType>(dtype)}));
        },
        nb::arg("kv_heads"), nb::arg("k_dim"), nb::arg("v_dim"), nb::arg("dtype"), nb::arg("block_size"),
        "Bytes of one block of one layer's cache.");
  m.def("score_matrix_bytes", &score_matrix_bytes, nb::arg("heads"), nb::arg("max_rows"), nb::arg("max_context"),
        "Bytes that materialized attention reserves for its scores.");

  nb::class_<Builder> c(m, "Executor", "Walks a recorded program; see executor.hpp.");
  c.def(nb::init<const std::string&, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int64_t>(),
        nb::arg("isa"), nb::arg("threads"), nb::arg("spin_us"), nb::arg("max_rows"), nb::arg("vocab"),
        nb::arg("max_positions"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("activation_bytes"));
  bind_ops(c);
  c.def("set_caches", &set_caches, nb::arg("layers"), "Each layer's (kv_heads, k_dim, v_dim, dtype); ops name them by index.")
      .def("admit", &admit, nb::arg("prompt"), nb::arg("capacity"), nb::arg("sampling"))
      .def("release", [](Builder& b, int32_t slot) { b.executor().requests().release(slot); }, nb::arg("slot"))
      .def("run", &run, nb::arg("rows"), nb::arg("num_rows"), nb::arg("blocks"), nb::arg("copies"), nb::arg("masks"),
           nb::arg("drafts"),
           "Compute one step with the GIL released; returns the number of draws.")
      .def("draws", &draws, "The bytes of all draw records; the last step's come first.")
      .def("capture_logits", [](Builder& b, bool on) { b.executor().capture_logits(on); }, nb::arg("on"))
      .def("logits", &logits, "The last step's raw logits, one row per draw.")
      .def("time_ops", [](Builder& b, bool on) {
        b.executor().measure(on ? Executor::Measure::Nanoseconds : Executor::Measure::Nothing);
      }, nb::arg("on"))
      .def("count_ops", [](Builder& b, bool on, bool stepping, size_t first, size_t last) {
        using Measure = Executor::Measure;
        b.executor().measure(!on ? Measure::Nothing : stepping ? Measure::Instructions : Measure::Marks, first, last);
      }, nb::arg("on"), nb::arg("stepping") = true, nb::arg("first") = 0, nb::arg("last") = SIZE_MAX,
           "Count the instructions of ops [first, last) in the next steps (exact with one thread). Without stepping: only\n"
           "call forno_instructions before, between and after the ops, for a tool that counts.")
      .def("share_prefixes", [](Builder& b, bool on) { b.executor().share_prefixes(on); }, nb::arg("on"),
           "Whether sequences that share leading blocks read them once; changes no result.")
      .def("op_nanoseconds", [](Builder& b) { return b.executor().measured(); })
      .def("op_instructions", [](Builder& b) { return b.executor().measured(); })
      .def_prop_ro("allocations", [](Builder& b) { return b.executor().allocations(); },
                   "Calls for memory in the last step whose instructions were counted.")
      .def_prop_ro("shared_keys", [](Builder& b) { return b.executor().shared_keys(); },
                   "Keys of the last step that a layer without a window read for one sequence instead of another, too.")
      .def_prop_ro("missing_seconds", [](Builder& b) { return double(b.executor().missing_ns()) * 1e-9; },
                   "Time of the last step in which workers had no core, summed.")
      .def("prefault", [](Builder& b, uint64_t bytes) { b.executor().prefault(size_t(bytes)); }, nb::arg("bytes"))
      .def_prop_ro("prefaulted", [](Builder& b) { return b.executor().prefaulted(); })
      .def_prop_ro("kv_bytes", [](Builder& b) { return b.executor().kv_bytes(); })
      .def_prop_ro("num_requests", [](Builder& b) { return b.executor().requests().size(); })
      .def_prop_ro("isa", [](Builder& b) { return b.executor().config().kernels->name; });
}

}  // namespace forno
