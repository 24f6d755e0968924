// Every op but the linears, one by one on numpy arrays, for tests and benchmarks: any instruction set, any number of
// threads. Outputs are raw bytes [rows, row_bytes] in the layout of types.hpp's View, so that tests compare bits.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "../isa.hpp"
#include "../kv_layout.hpp"
#include "../prefixes.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace forno {
namespace {

using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>;
using SpanTuple = std::tuple<int32_t, int32_t, std::vector<int32_t>>;  // start, num_tokens, blocks

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

struct FreeAligned {
  void operator()(char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<char, FreeAligned>;

Memory aligned(size_t bytes) {
  constexpr size_t huge = size_t(2) << 20;
  const size_t unit = bytes >= huge ? huge : 4096, rounded = (bytes + unit - 1) / unit * unit + unit;
  char* p = static_cast<char*>(std::aligned_alloc(unit, rounded));
  if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (unit == huge) madvise(p, rounded, MADV_HUGEPAGE);  // scattered blocks miss the TLB at 4 KiB
#endif
  std::memset(p, 0, bytes);
  return Memory(p);
}

const KernelTable& table(const std::string& isa) {
  const KernelTable* t = kernels_for(isa.c_str());
  require(t != nullptr, "no such instruction set here: " + isa);
  return *t;
}

// Calls op(worker) on `threads` threads, `repeat` times with a barrier between; returns seconds per call, after one
// call that is not timed when repeat > 1.
double run_workers(int32_t threads, int32_t repeat, const std::function<void(Worker&, int32_t)>& op) {
  require(threads >= 1 && threads <= 256, "threads must be in [1, 256]");
  const size_t stride = size_t(threads) * kTicketStride;
  std::vector<int32_t> tickets((size_t(repeat) + 1) * stride);
  std::vector<Memory> scratch;
  for (int32_t i = 0; i < threads; ++i) scratch.push_back(aligned(kScratchBytes));
  std::atomic<int32_t> arrived{0};
  std::chrono::steady_clock::time_point begin, end;
  const int32_t warm = repeat > 1 ? 1 : 0;
  auto body = [&](int32_t id) {
    for (int32_t i = 0; i < repeat + warm; ++i) {
      arrived.fetch_add(1);
      while (arrived.load() < threads * (i + 1)) std::this_thread::yield();
      if (id == 0 && i == warm) begin = std::chrono::steady_clock::now();
      Worker worker{id, threads, scratch[size_t(id)].get(), kScratchBytes, &tickets[size_t(i) * stride]};
      op(worker, i);
    }
    arrived.fetch_add(1);
    while (arrived.load() < threads * (repeat + warm + 1)) std::this_thread::yield();
    if (id == 0) end = std::chrono::steady_clock::now();
  };
  nb::gil_scoped_release release;
  std::vector<std::thread> pool;
  for (int32_t id = 1; id < threads; ++id) pool.emplace_back(body, id);
  body(0);
  for (auto& t : pool) t.join();
  return std::chrono::duration<double>(end - begin).count() / repeat;
}

// Arrays of a step, and a Step that points into them.
struct StepData {
  std::vector<int32_t> positions, row_span;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<Span> spans;
  SharedPrefixes prefixes;
  Step step{};

  // `block_size` > 0: with the prefixes that spans share.
  explicit StepData(const std::vector<SpanTuple>& list, int32_t block_size = 0) : prefixes(int32_t(list.size())) {
    for (const auto& [start, tokens, ids] : list) {
      require(start >= 0 && tokens >= 0 && tokens <= (1 << 24) && start <= (1 << 24), "bad span");
      blocks.push_back(ids);
      spans.push_back({0, start, tokens, int32_t(positions.size()), nullptr, 0});
      for (int32_t i = 0; i < tokens; ++i) {
        positions.push_back(start + i);
        row_span.push_back(int32_t(spans.size()) - 1);
      }
    }
    for (size_t i = 0; i < spans.size(); ++i) spans[i].blocks = blocks[i].data();
    step.num_rows = int32_t(positions.size());
    step.num_spans = int32_t(spans.size());
    step.positions = positions.data();
    step.row_span = row_span.data();
    step.spans = spans.data();
    if (block_size > 0) prefixes.find(spans.data(), block_size, step);
  }
};

DType dtype_of(const std::string& name) {
  if (name == "f32") return DType::F32;
  if (name == "bf16") return DType::BF16;
  require(name == "s8", "dtype must be f32, bf16 or s8, got " + name);
  return DType::S8;
}

KvDType kv_dtype_of(const std::string& name) {
  if (name == "bf16") return KvDType::BF16;
  if (name == "int8") return KvDType::INT8;
  require(name == "float32", "KV dtype must be bf16, int8 or float32, got " + name);
  return KvDType::F32;
}

View input(const FloatMatrix& x) {
  return {const_cast<char*>(reinterpret_cast<const char*>(x.data())), int64_t(x.shape(1)) * 4, int32_t(x.shape(1)), DType::F32};
}

// Rows of an output type, poisoned with 0xA5 so that a byte not written shows.
struct Output2d {
  View view;
  size_t rows, bytes;
  uint8_t* data;
  nb::capsule owner;

  Output2d(size_t rows_, int32_t width, DType dtype) : rows(rows_) {
    require(dtype != DType::S8 || width % 32 == 0, "an s8 output needs a width that is a multiple of 32");
    bytes = size_t(row_bytes(dtype, width));
    data = new uint8_t[rows * bytes + 1];
    owner = nb::capsule(data, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    std::memset(data, 0xA5, rows * bytes);
    view = {reinterpret_cast<char*>(data), int64_t(bytes), width, dtype};
  }
  Bytes array() const { return Bytes(data, {rows, bytes}, owner); }
};

// One or several layers of a paged cache.
class PagedKv {
 public:
  PagedKv(int32_t kv_heads, int32_t k_dim, int32_t v_dim, int32_t block_size, int32_t num_blocks, const std::string& dtype,
          int32_t layers)
      : cache_(kv_layout({kv_heads, k_dim, v_dim, block_size, kv_dtype_of(dtype)})), num_blocks_(num_blocks), layers_(layers) {
    require(layers >= 1, "layers must be at least 1");
    layer_bytes_ = kv_arena_bytes(kv_block_bytes(cache_), num_blocks);
    memory_ = aligned(size_t(layer_bytes_) * size_t(layers));
    cache_.base = memory_.get();
  }

  KvCache layer(int32_t index) const {
    KvCache c = cache_;
    c.base += layer_bytes_ * (index % layers_);
    return c;
  }
  const KvCache& cache() const { return cache_; }
  int64_t nbytes() const { return layer_bytes_ * layers_; }

  void check(const StepData& data) const {
    for (const Span& s : data.spans) {
      const auto& ids = data.blocks[size_t(&s - data.spans.data())];
      require(int64_t(ids.size()) * cache_.block_size >= int64_t(s.start) + s.num_tokens, "a span has too few blocks");
      for (int32_t id : ids) require(id >= 0 && id < num_blocks_, "block id out of range");
    }
  }

  void copy_block(int32_t source, int32_t target) {
    require(source >= 0 && source < num_blocks_ && target >= 0 && target < num_blocks_, "block id out of range");
    kv_copy_block(cache_, source, target);
  }

  nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> raw() const {
    auto* copy = new uint8_t[size_t(layer_bytes_) + 1];
    std::memcpy(copy, cache_.base, size_t(layer_bytes_));
    nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    return {copy, {size_t(layer_bytes_)}, owner};
  }

  // Keys (part 0) or values (part 1) of one sequence's first `count` tokens as the cache holds them: [count, heads, dim].
  nb::ndarray<nb::numpy, float, nb::ndim<3>> read(const std::vector<int32_t>& blocks, int32_t count, int32_t part) const {
    check(StepData({{0, count, blocks}}));
    const size_t heads = size_t(cache_.kv_heads), dim = size_t(part ? cache_.v_dim : cache_.k_dim);
    auto* out = new float[size_t(count) * heads * dim + 1];
    nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    float* next = out;
    for (int32_t t = 0; t < count; ++t)
      for (int32_t h = 0; h < cache_.kv_heads; ++h)
        for (int32_t d = 0; d < int32_t(dim); ++d) *next++ = element(blocks, t, h, d, part);
    return {out, {size_t(count), heads, dim}, owner};
  }

 private:
  template <class T>
  static T at(const char* p, int64_t index) {
    T v;
    std::memcpy(&v, p + index * int64_t(sizeof(T)), sizeof v);
    return v;
  }

  static float bf16_at(const char* p, int64_t index) {
    const uint32_t bits = uint32_t(at<uint16_t>(p, index)) << 16;
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }

  // Written from the layout in types.hpp, not from the kernels, so that a test of one tests the other.
  float element(const std::vector<int32_t>& blocks, int32_t token, int32_t head, int32_t d, int32_t part) const {
    const int32_t block = blocks[size_t(token / cache_.block_size)], in_block = token % cache_.block_size;
    const char* page = cache_.base + block * cache_.block_stride + head * cache_.head_stride;
    page += in_block / kPage * cache_.page_stride;
    const char* p = page + (part ? cache_.v_offset : 0);
    const int64_t t = in_block % kPage, vp = (cache_.v_dim + 15) / 16 * 16;
    // Elements of K lie [d / per][t][d % per], of V [t / per][d][t % per], `per` of them to a dword.
    const int64_t per = cache_.dtype == KvDType::F32 ? 1 : cache_.dtype == KvDType::BF16 ? 2 : 4;
    const int64_t index = part ? (t / per * vp + d) * per + t % per : (d / per * kPage + t) * per + d % per;
    if (cache_.dtype == KvDType::F32) return at<float>(p, index);
    if (cache_.dtype == KvDType::BF16) return bf16_at(p, index);
    const char* scales = page + (part ? cache_.v_scale_offset : cache_.k_scale_offset);
    return bf16_at(scales, d / 32 * kPage + t) * float(part ? at<int8_t>(p, index) : at<uint8_t>(p, index) - 128);
  }

  KvCache cache_;
  int32_t num_blocks_, layers_;
  int64_t layer_bytes_;
  Memory memory_;
};

void write_kv(const std::string& isa, int32_t threads, const PagedKv& kv, const std::vector<SpanTuple>& spans, FloatMatrix k,
              FloatMatrix v, int32_t layer) {
  const StepData data(spans);
  kv.check(data);
  const KvCache cache = kv.layer(layer);
  require(int32_t(k.shape(0)) == data.step.num_rows && k.shape(0) == v.shape(0), "k and v need one row per token");
  require(int64_t(k.shape(1)) == int64_t(cache.kv_heads) * cache.k_dim, "k has the wrong width");
  require(int64_t(v.shape(1)) == int64_t(cache.kv_heads) * cache.v_dim, "v has the wrong width");
  const KvWriteArgs args{input(k), input(v), cache};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.kv_write(args, data.step, w); });
}

AttentionArgs attention_args(const PagedKv& kv, FloatMatrix q, const Output2d& out, int32_t heads, float scale, int32_t window,
                             float softcap, const Memory& shared, size_t shared_bytes) {
  const KvCache& cache = kv.cache();
  require(heads > 0 && heads % cache.kv_heads == 0, "heads must be a multiple of kv_heads");
  require(int64_t(q.shape(1)) == int64_t(heads) * cache.k_dim, "q has the wrong width");
  require(out.view.dtype != DType::S8 || cache.v_dim % 32 == 0, "an s8 output needs v_dim % 32 == 0");
  require(attention_scratch_bytes(heads, cache) <= kScratchBytes, "head group and dims need more scratch than a worker has");
  return {input(q), out.view, cache, heads, cache.kv_heads, cache.k_dim, scale, window, softcap, shared.get(), shared_bytes};
}

size_t default_shared_bytes(const StepData& data, const PagedKv& kv, int32_t heads, int32_t threads) {
  int32_t longest = 0;
  for (const Span& s : data.spans) longest = std::max(longest, s.start + s.num_tokens);
  return attention_shared_bytes(heads, kv.cache().v_dim, data.step.num_rows, longest, threads);
}

// A step of these spans, checked against the cache before tables are compared.
StepData step_data(const PagedKv& kv, const std::vector<SpanTuple>& spans, bool share_prefixes) {
  kv.check(StepData(spans));
  return StepData(spans, share_prefixes ? kv.cache().block_size : 0);
}

// The groups that a step's spans form: (indices of spans, keys shared).
std::vector<std::tuple<std::vector<int32_t>, int32_t>> shared_prefixes(const std::vector<SpanTuple>& spans, int32_t block_size) {
  require(block_size >= kPage && block_size % kPage == 0, "block_size must be a multiple of 32");
  for (const auto& [start, tokens, ids] : spans)
    require(int64_t(ids.size()) * block_size >= int64_t(start) + tokens, "a span has too few blocks");
  const StepData data(spans, block_size);
  std::vector<std::tuple<std::vector<int32_t>, int32_t>> groups;
  for (int32_t i = 0; i < data.step.num_prefixes; ++i) {
    const SharedPrefix& p = data.step.prefixes[i];
    const int32_t* members = data.step.prefix_spans + p.first;
    groups.emplace_back(std::vector<int32_t>(members, members + p.count), p.keys);
  }
  return groups;
}

// The three passes over a matrix of NaN, so that a score not written shows.
void materialize(const KernelTable& kernels, int32_t threads, const StepData& data, const AttentionArgs& args) {
  int32_t longest = 1;
  for (const Span& s : data.spans) longest = std::max(longest, s.start + s.num_tokens);
  const size_t bytes = score_matrix_bytes(args.heads, std::max(data.step.num_rows, 1), longest);
  const Memory memory = aligned(bytes);
  std::memset(memory.get(), 0xff, bytes);
  for (MatrixPass pass : kMatrixPasses) {
    const MatrixArgs matrix{args, pass, reinterpret_cast<float*>(memory.get())};
    run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.attention_matrix(matrix, data.step, w); });
  }
}

Bytes attend(const std::string& isa, int32_t threads, const PagedKv& kv, const std::vector<SpanTuple>& spans, FloatMatrix q,
             int32_t heads, float scale, int32_t window, float softcap, const std::string& dtype, int64_t shared_bytes,
             bool share_prefixes, bool materialized) {
  const StepData data = step_data(kv, spans, share_prefixes);
  require(int32_t(q.shape(0)) == data.step.num_rows, "q needs one row per token");
  const size_t bytes = shared_bytes < 0 ? default_shared_bytes(data, kv, heads, threads) : size_t(shared_bytes);
  const Memory shared = aligned(bytes);
  const Output2d out(q.shape(0), heads * kv.cache().v_dim, dtype_of(dtype));
  const AttentionArgs args = attention_args(kv, q, out, heads, scale, window, softcap, shared, bytes);
  const KernelTable& kernels = table(isa);
  if (materialized) materialize(kernels, threads, data, args);
  else run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.attention(args, data.step, w); });
  for (size_t i = 0; i < std::min(bytes, size_t(4096)); ++i) require(shared.get()[i] == 0, "a counter was not reset");
  return out.array();
}

// Seconds per call over `repeat` calls that go through the layers in turn.
double time_attention(const std::string& isa, int32_t threads, const PagedKv& kv, const std::vector<SpanTuple>& spans,
                      FloatMatrix q, int32_t heads, float scale, int32_t repeat, bool share_prefixes) {
  const StepData data = step_data(kv, spans, share_prefixes);
  require(int32_t(q.shape(0)) == data.step.num_rows && repeat >= 1, "q needs one row per token");
  const size_t bytes = default_shared_bytes(data, kv, heads, threads);
  const Memory shared = aligned(bytes);
  const Output2d out(q.shape(0), heads * kv.cache().v_dim, DType::F32);
  const AttentionArgs args = attention_args(kv, q, out, heads, scale, 0, 0.0f, shared, bytes);
  const KernelTable& kernels = table(isa);
  return run_workers(threads, repeat, [&](Worker& w, int32_t i) {
    AttentionArgs mine = args;
    mine.cache = kv.layer(i);
    kernels.attention(mine, data.step, w);
  });
}

Bytes rms_norm(const std::string& isa, int32_t threads, FloatMatrix x, FloatVector weight, float eps, int32_t group,
               const std::string& dtype) {
  const int32_t width = int32_t(x.shape(1));
  require(group >= 0 && (group == 0 || width % group == 0), "group must divide the width");
  require(int32_t(weight.shape(0)) == (group ? group : width), "weight has the wrong length");
  const Output2d out(x.shape(0), width, dtype_of(dtype));
  require(out.view.dtype != DType::S8 || group % 32 == 0, "an s8 output needs group % 32 == 0");
  const RmsNormArgs args{input(x), out.view, weight.data(), eps, group};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.rms_norm(args, int32_t(x.shape(0)), w); });
  return out.array();
}

Bytes add(const std::string& isa, int32_t threads, FloatMatrix a, FloatMatrix b) {
  require(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), "shapes differ");
  const Output2d out(a.shape(0), int32_t(a.shape(1)), DType::F32);
  const AddArgs args{input(a), input(b), out.view};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.add(args, int32_t(a.shape(0)), w); });
  return out.array();
}

Bytes silu_mul(const std::string& isa, int32_t threads, FloatMatrix gate, FloatMatrix up, const std::string& dtype) {
  require(gate.shape(0) == up.shape(0) && gate.shape(1) == up.shape(1), "shapes differ");
  const Output2d out(gate.shape(0), int32_t(gate.shape(1)), dtype_of(dtype));
  const SiluMulArgs args{input(gate), input(up), out.view};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.silu_mul(args, int32_t(gate.shape(0)), w); });
  return out.array();
}

Bytes gather(const std::string& isa, int32_t threads, FloatMatrix x, const std::vector<int32_t>& rows) {
  std::vector<Output> outputs;
  for (int32_t row : rows) {
    require(row >= 0 && row < int32_t(x.shape(0)), "row out of range");
    outputs.push_back({row, 0, 0, -1});
  }
  Step step{};
  step.num_rows = int32_t(x.shape(0));
  step.num_outputs = int32_t(outputs.size());
  step.outputs = outputs.data();
  const Output2d out(rows.size(), int32_t(x.shape(1)), DType::F32);
  const GatherArgs args{input(x), out.view};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.gather(args, step, w); });
  return out.array();
}

void check_angles(const FloatMatrix& cos_sin, const Step& step, int32_t head_dim) {
  const int32_t rope_dim = int32_t(cos_sin.shape(1));
  require(rope_dim % 2 == 0 && rope_dim <= head_dim, "cos_sin has the wrong width");
  for (int32_t i = 0; i < step.num_rows; ++i)
    require(step.positions[i] < int32_t(cos_sin.shape(0)), "cos_sin has too few rows");
}

Bytes rope(const std::string& isa, int32_t threads, const std::vector<SpanTuple>& spans, FloatMatrix x, int32_t heads,
           FloatMatrix cos_sin) {
  const StepData data(spans);
  require(heads > 0 && int32_t(x.shape(1)) % heads == 0 && int32_t(x.shape(0)) == data.step.num_rows, "x has the wrong shape");
  const int32_t head_dim = int32_t(x.shape(1)) / heads;
  check_angles(cos_sin, data.step, head_dim);
  const Output2d out(x.shape(0), int32_t(x.shape(1)), DType::F32);
  const RopeArgs args{input(x), out.view, heads, head_dim, int32_t(cos_sin.shape(1)), cos_sin.data()};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.rope(args, data.step, w); });
  return out.array();
}

Bytes qkv_prepare(const std::string& isa, int32_t threads, const PagedKv& kv, const std::vector<SpanTuple>& spans,
                  FloatMatrix x, int32_t heads, FloatMatrix cos_sin, FloatVector q_norm, FloatVector k_norm, float eps) {
  const StepData data(spans);
  kv.check(data);
  const KvCache& cache = kv.cache();
  const int32_t dim = cache.k_dim;
  require(cache.v_dim == dim && int32_t(x.shape(1)) == (heads + 2 * cache.kv_heads) * dim, "x has the wrong width");
  require(int32_t(x.shape(0)) == data.step.num_rows, "x needs one row per token");
  check_angles(cos_sin, data.step, dim);
  for (const FloatVector& norm : {q_norm, k_norm})
    require(norm.shape(0) == 0 || int32_t(norm.shape(0)) == dim, "bad norm length");
  const Output2d out(x.shape(0), heads * dim, DType::F32);
  const QkvPrepareArgs args{input(x), out.view, cache, heads, cache.kv_heads, dim, int32_t(cos_sin.shape(1)), cos_sin.data(),
                            q_norm.shape(0) ? q_norm.data() : nullptr, k_norm.shape(0) ? k_norm.data() : nullptr, eps};
  const KernelTable& kernels = table(isa);
  run_workers(threads, 1, [&](Worker& w, int32_t) { kernels.qkv_prepare(args, data.step, w); });
  return out.array();
}

}  // namespace

void bind_attention(nb::module_& root) {
  nb::module_ m = root.def_submodule("ops", "single ops on numpy arrays, for tests and benchmarks");
  using namespace nb::literals;
  m.def("isas", [] {
    nb::list names;
    for (const char* name : available_isas()) names.append(name);
    return names;
  });
  nb::class_<PagedKv>(m, "PagedKv")
      .def(nb::init<int32_t, int32_t, int32_t, int32_t, int32_t, const std::string&, int32_t>(), "kv_heads"_a, "k_dim"_a,
           "v_dim"_a, "block_size"_a, "num_blocks"_a, "dtype"_a, "layers"_a = 1)
      .def_prop_ro("nbytes", &PagedKv::nbytes)
      .def("copy_block", &PagedKv::copy_block, "source"_a, "target"_a)
      .def("raw", &PagedKv::raw, "A copy of the first layer's bytes.")
      .def("read", &PagedKv::read, "blocks"_a, "count"_a, "part"_a);
  m.def("kv_write", &write_kv, "isa"_a, "threads"_a, "cache"_a, "spans"_a, "k"_a, "v"_a, "layer"_a = 0);
  m.def("attention", &attend, "isa"_a, "threads"_a, "cache"_a, "spans"_a, "q"_a, "heads"_a, "scale"_a, "window"_a = 0,
        "softcap"_a = 0.0f, "dtype"_a = "f32", "shared_bytes"_a = -1, "share_prefixes"_a = true, "materialized"_a = false);
  m.def("time_attention", &time_attention, "isa"_a, "threads"_a, "cache"_a, "spans"_a, "q"_a, "heads"_a, "scale"_a, "repeat"_a,
        "share_prefixes"_a = true);
  m.def("shared_prefixes", &shared_prefixes, "spans"_a, "block_size"_a);
  m.def("attention_shared_bytes", &attention_shared_bytes, "heads"_a, "v_dim"_a, "max_rows"_a, "max_context"_a, "threads"_a);
  m.def("rms_norm", &rms_norm, "isa"_a, "threads"_a, "x"_a, "weight"_a, "eps"_a, "group"_a = 0, "dtype"_a = "f32");
  m.def("add", &add, "isa"_a, "threads"_a, "a"_a, "b"_a);
  m.def("silu_mul", &silu_mul, "isa"_a, "threads"_a, "gate"_a, "up"_a, "dtype"_a = "f32");
  m.def("gather", &gather, "isa"_a, "threads"_a, "x"_a, "rows"_a);
  m.def("rope", &rope, "isa"_a, "threads"_a, "spans"_a, "x"_a, "heads"_a, "cos_sin"_a);
  m.def("qkv_prepare", &qkv_prepare, "isa"_a, "threads"_a, "cache"_a, "spans"_a, "x"_a, "heads"_a, "cos_sin"_a, "q_norm"_a,
        "k_norm"_a, "eps"_a);
}

}  // namespace forno
