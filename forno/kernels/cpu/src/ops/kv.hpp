// Storing keys and values into pages, alone or fused with what precedes it: q/k norm and rotary embedding.
// What kv_write stores is the same, bit for bit, on every instruction set.
#pragma once
#include "attention_pages.hpp"
#include "norm.hpp"
#include "rope.hpp"

namespace forno {
namespace {
namespace kv {

// q[i] = round(x[i] * 127 / amax) ^ flip, padded with zeros to 16. Returns the scale amax / 127, NaN if a value is not
// finite. The rules of quantize_group_s8, over a head.
FORNO_INLINE float quantize_head(const float* x, int32_t n, uint8_t flip, uint8_t* q) {
  vi bits{};
  for (int32_t i = 0; i < n; i += kLanes) bits = vmax(bits, reinterpret_cast<vi>(vabs(vload(x + i, n - i))));
  const int32_t top = vmax_lane(bits);
  float amax;
  std::memcpy(&amax, &top, 4);
  const int32_t padded = int32_t(attention_plan::round_up(n, 16));
  if (top >= 0x7f800000 || amax < 0x1p-118f) {
    std::memset(q, flip, size_t(padded));
    return top >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
  }
  const vf inverse = vset(127.0f / amax);
  for (int32_t i = 0; i < padded; i += kLanes)
    vstore_s8(reinterpret_cast<int8_t*>(q) + i, vround_words(vload(x + i, n - i) * inverse));
  if (flip) for (int32_t i = 0; i < padded; ++i) q[i] ^= flip;
  return amax / 127.0f;
}

// One head's key or value in the cache's type, padded with zeros to 16; returns its scale, if it has one.
FORNO_INLINE float pack_head(KvDType type, const float* x, int32_t n, uint8_t flip, char* out) {
  if (type == KvDType::INT8) return quantize_head(x, n, flip, reinterpret_cast<uint8_t*>(out));
  const int32_t padded = int32_t(attention_plan::round_up(n, 16));
  for (int32_t i = 0; i < padded; i += kLanes) {
    if (type == KvDType::BF16) vstore_bf16(reinterpret_cast<uint16_t*>(out) + i, vload(x + i, n - i));
    else vstore(reinterpret_cast<float*>(out) + i, vload(x + i, n - i));
  }
  return 1.0f;
}

// A packed value of elements T into slot t of V. No store touches a byte of another slot.
template <class T>
FORNO_INLINE void scatter_value(const char* packed, int32_t padded, int t, char* v) {
  constexpr int kPer = int(4 / sizeof(T));  // tokens that share a dword
  const T* in = reinterpret_cast<const T*>(packed);
  T* out = reinterpret_cast<T*>(v) + int64_t(t / kPer) * padded * kPer + t % kPer;
  for (int32_t d = 0; d < padded; ++d) out[int64_t(d) * kPer] = in[d];
}

// One head's key and value into slot t of a page. In every type K's slot is a column of dwords.
FORNO_INLINE void write_slot(const KvCache& c, char* page, int t, const float* k, const float* v, char* buffer) {
  const int32_t element = c.dtype == KvDType::F32 ? 4 : c.dtype == KvDType::BF16 ? 2 : 1;
  const float k_scale = pack_head(c.dtype, k, c.k_dim, 0x80, buffer);
  const int32_t dwords = int32_t(attention_plan::round_up(c.k_dim, 16)) * element / 4;
  for (int32_t i = 0; i < dwords; ++i) std::memcpy(page + (int64_t(i) * kPage + t) * 4, buffer + i * 4, 4);
  const float v_scale = pack_head(c.dtype, v, c.v_dim, 0, buffer);
  const int32_t padded = int32_t(attention_plan::round_up(c.v_dim, 16));
  if (c.dtype == KvDType::F32) scatter_value<float>(buffer, padded, t, page + c.v_offset);
  if (c.dtype == KvDType::BF16) scatter_value<uint16_t>(buffer, padded, t, page + c.v_offset);
  if (c.dtype != KvDType::INT8) return;
  scatter_value<int8_t>(buffer, padded, t, page + c.v_offset);
  reinterpret_cast<float*>(page + c.k_scale_offset)[t] = k_scale;
  reinterpret_cast<float*>(page + c.v_scale_offset)[t] = v_scale;
}

// Consecutive rows of one span whose slots lie in one page. Runs are the units of work: no two workers write to a page
// at the same time, whose cache lines they would take from each other.
struct Run {
  const Span* span;
  int32_t row, count, position;  // the first row's
};

// Finds runs by number; cheap while numbers ascend.
struct Runs {
  const Step& step;
  int32_t span = 0, passed = 0;  // runs of the spans before

  static int32_t of(const Span& s) {
    return s.num_tokens > 0 ? (s.start + s.num_tokens - 1) / kPage - s.start / kPage + 1 : 0;
  }

  int32_t count() const {
    int32_t total = 0;
    for (int32_t i = 0; i < step.num_spans; ++i) total += of(step.spans[i]);
    return total;
  }

  Run at(int32_t number) {
    if (number < passed) span = passed = 0;
    while (number - passed >= of(step.spans[span])) passed += of(step.spans[span++]);
    const Span& s = step.spans[span];
    const int32_t page = s.start / kPage + number - passed, end = s.start + s.num_tokens;
    const int32_t first = page * kPage > s.start ? page * kPage : s.start;
    const int32_t last = (page + 1) * kPage < end ? (page + 1) * kPage : end;
    return {&s, s.row0 + first - s.start, last - first, first};
  }
};

// f(run, the worker's next run or null) for this worker's runs.
template <class F>
FORNO_INLINE void for_runs(const Step& step, Worker& worker, F&& f) {
  Runs runs{step};
  Tickets tickets{worker, runs.count()};
  Run pair[2];
  int32_t number = tickets.take();
  if (number >= 0) pair[0] = runs.at(number);
  for (int i = 0; number >= 0; i ^= 1) {
    number = tickets.take();
    if (number >= 0) pair[i ^ 1] = runs.at(number);
    f(pair[i], number >= 0 ? &pair[i ^ 1] : nullptr);
  }
}

// Fetches the lines of one head's slot, to be written: a token's K touches a line for each of its dwords.
FORNO_INLINE void fetch_slot(const KvCache& c, const Run& run, int32_t head) {
  const int32_t element = c.dtype == KvDType::F32 ? 4 : c.dtype == KvDType::BF16 ? 2 : 1;
  const int32_t t = run.position % kPage;
  const char* page = attention::page_of(c, run.span->blocks, run.position, head);
  const int32_t dwords = int32_t(attention_plan::round_up(c.k_dim, 16)) * element / 4;
  for (int32_t i = 0; i < dwords; ++i) __builtin_prefetch(page + (int64_t(i) * kPage + t) * 4, 1);
  const int32_t bytes = int32_t(attention_plan::round_up(c.v_dim, 16)) * 4;
  const char* v = page + c.v_offset + int64_t(t * element / 4) * bytes;
  for (int32_t i = 0; i < bytes; i += 64) __builtin_prefetch(v + i, 1);
}

// All heads of the run's row `i`; `buffer` holds round_up(max dim, 16) floats. Decode writes to one slot of many pages:
// then the next run's slots are fetched meanwhile.
inline void write_row(const KvCache& c, const Run& run, int32_t i, const Run* next, const float* k, const float* v,
                      char* buffer) {
  const int32_t position = run.position + i;
  for (int32_t h = 0; h < c.kv_heads; ++h, k += c.k_dim, v += c.v_dim) {
    if (next != nullptr && run.count == 1) fetch_slot(c, *next, h);
    write_slot(c, attention::page_of(c, run.span->blocks, position, h), position % kPage, k, v, buffer);
  }
}

// Optional norm, then rotation, of `heads` heads.
FORNO_INLINE void prepare_heads(const QkvPrepareArgs& a, const float* x, float* out, int32_t heads, const float* weight,
                                const float* angles) {
  for (int32_t h = 0; h < heads; ++h, x += a.head_dim, out += a.head_dim) {
    if (weight == nullptr) {
      rotary::rotate_head(x, out, a.head_dim, a.rope_dim, angles);
      continue;
    }
    const vf inverse = vset(norm::inverse_rms(x, a.head_dim, a.eps));
    for (int32_t i = 0; i < a.head_dim; i += kLanes)
      vstore(out + i, norm::scaled(x + i, weight + i, inverse, a.head_dim - i), a.head_dim - i);
    rotary::rotate_head(out, out, a.head_dim, a.rope_dim, angles);
  }
}

}  // namespace kv

inline void kv_write(const KvWriteArgs& args, const Step& step, Worker& worker) {
  kv::for_runs(step, worker, [&](const kv::Run& run, const kv::Run* next) {
    for (int32_t i = 0; i < run.count; ++i)
      kv::write_row(args.cache, run, i, next, elementwise::row_f32(args.k, run.row + i),
                    elementwise::row_f32(args.v, run.row + i), worker.scratch);
  });
}

inline void qkv_prepare(const QkvPrepareArgs& args, const Step& step, Worker& worker) {
  const int64_t q_width = int64_t(args.heads) * args.head_dim, k_width = int64_t(args.kv_heads) * args.head_dim;
  float* k = reinterpret_cast<float*>(worker.scratch);
  char* buffer = worker.scratch + attention_plan::round_up(k_width * 4, 64);
  kv::for_runs(step, worker, [&](const kv::Run& run, const kv::Run* next) {
    for (int32_t i = 0; i < run.count; ++i) {
      const int64_t row = run.row + i;
      const float* angles = args.cos_sin + int64_t(run.position + i) * args.rope_dim;
      const float* x = elementwise::row_f32(args.x, row);
      float* out = reinterpret_cast<float*>(args.out.data + row * args.out.stride);
      kv::prepare_heads(args, x, out, args.heads, args.q_norm, angles);
      kv::prepare_heads(args, x + q_width, k, args.kv_heads, args.k_norm, angles);
      kv::write_row(args.cache, run, i, next, k, x + q_width + k_width, buffer);
    }
  });
}

}  // namespace
}  // namespace forno
