// Storing keys and values into pages, alone or fused with what precedes it: q/k norm and rotary embedding.
// What kv_write stores is the same, bit for bit, on every instruction set.
#pragma once
#include "attention_pages.hpp"
#include "norm.hpp"
#include "rope.hpp"

namespace forno {
namespace {
namespace kv {

// q[i] = round(x[i] / scale) ^ flip for n values of a group, padded with zeros to 16. Returns the scale as bf16: amax / 127
// rounded up, so that no q exceeds 127, or NaN if a value is not finite.
FORNO_INLINE uint16_t quantize_group(const float* x, int32_t n, uint8_t flip, uint8_t* q) {
  vi bits{};
  for (int32_t i = 0; i < n; i += kLanes) bits = vmax(bits, reinterpret_cast<vi>(vabs(vload(x + i, n - i))));
  const int32_t top = vmax_lane(bits), padded = int32_t(attention_plan::round_up(n, 16));
  float amax;
  std::memcpy(&amax, &top, 4);
  if (top >= 0x7f800000 || amax < 0x1p-118f) {
    std::memset(q, flip, size_t(padded));
    return top >= 0x7f800000 ? 0x7fc0 : 0;
  }
  float scale = amax / 127.0f;
  uint32_t rounded;
  std::memcpy(&rounded, &scale, 4);
  rounded = (rounded + 0xffff) & 0xffff0000u;
  std::memcpy(&scale, &rounded, 4);
  const vf inverse = vset(1.0f / scale);
  const vi flips = vset_words(flip);
  for (int32_t i = 0; i < padded; i += kLanes)
    vstore_s8(reinterpret_cast<int8_t*>(q) + i, vround_words(vload(x + i, n - i) * inverse) ^ flips);
  return uint16_t(rounded >> 16);
}

// One head's key or value in int8, padded with zeros to 16, and its groups' scales, kPage apart.
FORNO_INLINE void quantize_head(const float* x, int32_t n, uint8_t flip, char* out, uint16_t* scale) {
  for (int32_t i = 0; i < n; i += kKvGroup, scale += kPage)
    *scale = quantize_group(x + i, n - i < kKvGroup ? n - i : kKvGroup, flip, reinterpret_cast<uint8_t*>(out) + i);
}

// One head's key or value in bf16 or fp32, padded with zeros to 16.
FORNO_INLINE void pack_head(KvDType type, const float* x, int32_t n, char* out) {
  const int32_t padded = int32_t(attention_plan::round_up(n, 16));
  for (int32_t i = 0; i < padded; i += kLanes) {
    if (type == KvDType::BF16) vstore_bf16(reinterpret_cast<uint16_t*>(out) + i, vload(x + i, n - i));
    else vstore(reinterpret_cast<float*>(out) + i, vload(x + i, n - i));
  }
}

// Rows packed one after the other, to be stored in the slots [slot, slot + count) of a page; in every type K's slot is a
// column of dwords. No store touches a byte of another slot. Whole vectors of slots are turned in registers.
FORNO_INLINE void store_keys(const char* rows, int32_t dwords, int slot, int count, char* page) {
  const int64_t row_bytes = int64_t(dwords) * 4;
  for (int i = 0; i < count;) {
    const bool whole = (slot + i) % kLanes == 0 && count - i >= kLanes;
    const int step = whole ? kLanes : 1;
    char* out = page + (slot + i) * 4;
    int32_t d = 0;
    for (; whole && d + kLanes <= dwords; d += kLanes) {
      vi x[kLanes];
      FORNO_UNROLL for (int t = 0; t < kLanes; ++t) x[t] = vload_words(rows + (i + t) * row_bytes + d * 4);
      vtranspose(x);
      FORNO_UNROLL for (int t = 0; t < kLanes; ++t) vstore_words(out + int64_t(d + t) * kPage * 4, x[t]);
    }
    for (; d < dwords; ++d)
      for (int t = 0; t < step; ++t) std::memcpy(out + (int64_t(d) * kPage + t) * 4, rows + (i + t) * row_bytes + d * 4, 4);
    i += step;
  }
}

// As many rows of elements T as share a dword of V, `padded` elements each: returns how many of those it has stored.
template <class T>
FORNO_INLINE int32_t interleave_values(const char* rows, int32_t padded, char* out) {
  constexpr int kPer = int(4 / sizeof(T)), kStep = kPer * kLanes;
  const int64_t bytes = int64_t(padded) * int(sizeof(T));
  int32_t d = 0;
  for (; d + kStep <= padded; d += kStep, rows += kLanes * 4) {
    const vi a = vload_words(rows);
    char* to = out + int64_t(d) * 4;
    if constexpr (kPer == 1) {
      vstore_words(to, a);
      continue;
    }
    const vi low16 = vset_words(0xffff), b = vload_words(rows + bytes);
    auto low = [&](vi x, vi y) { return (x & low16) | (y << 16); };
    auto high = [&](vi x, vi y) { return ((x >> 16) & low16) | (y & ~low16); };
    vi first[2] = {low(a, b), high(a, b)}, last[2] = {};
    if constexpr (kPer == 4) {
      const vi even = vset_words(0x00ff00ff), c = vload_words(rows + 2 * bytes), e = vload_words(rows + 3 * bytes);
      const vi ab0 = (a & even) | ((b & even) << 8), ab1 = ((a >> 8) & even) | (b & ~even);
      const vi ce0 = (c & even) | ((e & even) << 8), ce1 = ((c >> 8) & even) | (e & ~even);
      const vi x[4] = {low(ab0, ce0), low(ab1, ce1), high(ab0, ce0), high(ab1, ce1)};  // elements 0, 1, 2, 3 of each dword
      first[0] = vinterleave_low(x[0], x[2]), first[1] = vinterleave_low(x[1], x[3]);
      last[0] = vinterleave_high(x[0], x[2]), last[1] = vinterleave_high(x[1], x[3]);
      vstore_words(to + 2 * kLanes * 4, vinterleave_low(last[0], last[1]));
      vstore_words(to + 3 * kLanes * 4, vinterleave_high(last[0], last[1]));
    }
    vstore_words(to, vinterleave_low(first[0], first[1]));
    vstore_words(to + kLanes * 4, vinterleave_high(first[0], first[1]));
  }
  return d;
}

template <class T>
FORNO_INLINE void store_values(const char* rows, int32_t padded, int slot, int count, char* v) {
  constexpr int kPer = int(4 / sizeof(T));  // tokens that share a dword
  const int64_t bytes = int64_t(padded) * int(sizeof(T));
  for (int i = 0; i < count;) {
    const int t = slot + i;
    const bool whole = t % kPer == 0 && count - i >= kPer;
    const int step = whole ? kPer : 1;
    char* out = v + int64_t(t / kPer) * padded * 4;
    const int32_t done = whole ? interleave_values<T>(rows + i * bytes, padded, out) : 0;
    for (int j = 0; j < step; ++j) {
      const T* in = reinterpret_cast<const T*>(rows + (i + j) * bytes);
      T* to = reinterpret_cast<T*>(out) + (t + j) % kPer;
      for (int32_t d = done; d < padded; ++d) to[int64_t(d) * kPer] = in[d];
    }
    i += step;
  }
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
  if (c.dtype != KvDType::INT8) return;
  for (int32_t g = 0; g < kv_groups(c.k_dim); ++g) __builtin_prefetch(page + c.k_scale_offset + (g * kPage + t) * 2, 1);
  for (int32_t g = 0; g < kv_groups(c.v_dim); ++g) __builtin_prefetch(page + c.v_scale_offset + (g * kPage + t) * 2, 1);
}

// The rows of a run in the cache's type, until they are stored: a head's keys and values side by side.
struct PackedRun {
  const KvCache& cache;
  char* memory;  // a page of every head

  static int32_t element(const KvCache& c) { return c.dtype == KvDType::F32 ? 4 : c.dtype == KvDType::BF16 ? 2 : 1; }
  int64_t k_bytes() const { return attention_plan::round_up(cache.k_dim, 16) * element(cache); }
  int64_t v_bytes() const { return attention_plan::round_up(cache.v_dim, 16) * element(cache); }
  char* keys(int32_t head) const { return memory + head * (k_bytes() + v_bytes()) * kPage; }
  char* values(int32_t head) const { return keys(head) + k_bytes() * kPage; }

  // Row `i`, all heads; int8 scales go straight to their places.
  FORNO_INLINE void pack(const Run& run, int32_t i, const float* k, const float* v) const {
    for (int32_t h = 0; h < cache.kv_heads; ++h, k += cache.k_dim, v += cache.v_dim) {
      char *k_out = keys(h) + i * k_bytes(), *v_out = values(h) + i * v_bytes();
      if (cache.dtype != KvDType::INT8) {
        pack_head(cache.dtype, k, cache.k_dim, k_out);
        pack_head(cache.dtype, v, cache.v_dim, v_out);
        continue;
      }
      char* page = attention::page_of(cache, run.span->blocks, run.position, h) + (run.position % kPage + i) * 2;
      quantize_head(k, cache.k_dim, 0x80, k_out, reinterpret_cast<uint16_t*>(page + cache.k_scale_offset));
      quantize_head(v, cache.v_dim, 0, v_out, reinterpret_cast<uint16_t*>(page + cache.v_scale_offset));
    }
  }

  // All rows to their page. Decode writes to one slot of many pages: then the next run's slots are fetched meanwhile.
  void store(const Run& run, const Run* next) const {
    const int32_t slot = run.position % kPage, padded = int32_t(attention_plan::round_up(cache.v_dim, 16));
    for (int32_t h = 0; h < cache.kv_heads; ++h) {
      if (next != nullptr && run.count == 1) fetch_slot(cache, *next, h);
      char* page = attention::page_of(cache, run.span->blocks, run.position, h);
      char* v = page + cache.v_offset;
      store_keys(keys(h), int32_t(k_bytes() / 4), slot, run.count, page);
      if (cache.dtype == KvDType::F32) store_values<float>(values(h), padded, slot, run.count, v);
      if (cache.dtype == KvDType::BF16) store_values<uint16_t>(values(h), padded, slot, run.count, v);
      if (cache.dtype == KvDType::INT8) store_values<int8_t>(values(h), padded, slot, run.count, v);
    }
  }
};

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
  const kv::PackedRun packed{args.cache, worker.scratch};
  kv::for_runs(step, worker, [&](const kv::Run& run, const kv::Run* next) {
    for (int32_t i = 0; i < run.count; ++i)
      packed.pack(run, i, elementwise::row_f32(args.k, run.row + i), elementwise::row_f32(args.v, run.row + i));
    packed.store(run, next);
  });
}

inline void qkv_prepare(const QkvPrepareArgs& args, const Step& step, Worker& worker) {
  const int64_t q_width = int64_t(args.heads) * args.head_dim, k_width = int64_t(args.kv_heads) * args.head_dim;
  float* k = reinterpret_cast<float*>(worker.scratch);
  const kv::PackedRun packed{args.cache, worker.scratch + attention_plan::round_up(k_width * 4, 64)};
  kv::for_runs(step, worker, [&](const kv::Run& run, const kv::Run* next) {
    for (int32_t i = 0; i < run.count; ++i) {
      const int64_t row = run.row + i;
      const float* angles = args.cos_sin + int64_t(run.position + i) * args.rope_dim;
      const float* x = elementwise::row_f32(args.x, row);
      float* out = reinterpret_cast<float*>(args.out.data + row * args.out.stride);
      kv::prepare_heads(args, x, out, args.heads, args.q_norm, angles);
      kv::prepare_heads(args, x + q_width, k, args.kv_heads, args.k_norm, angles);
      packed.pack(run, i, k, x + q_width + k_width);
    }
    packed.store(run, next);
  });
}

}  // namespace
}  // namespace forno
