// Causal attention over paged keys and values, FlashAttention style (2205.14135): scores never leave the cache, the
// softmax of one segment of keys is merged into a running one. Decode, prefill and everything between is the same code
// with different numbers of rows.
//
// The rows of one kv head, (token, query head of its group) pairs, share every load of K and V. What a row computes
// depends on its query, its position and the keys it may see, and on nothing else: see attention_plan.hpp.
#pragma once
#include "attention_pages.hpp"
#include "attention_query.hpp"

namespace forno {
namespace {
namespace attention {

using attention_plan::Problem;
using attention_plan::TileWalk;

// The maximum of no scores: finite, so that empty minus empty is 0 and not NaN.
constexpr float kEmpty = -3e38f;
constexpr float kMasked = -__builtin_inff();

// Softmax sums of a tile's rows over some keys: o = sum of p * V, m = the maximum score, l = sum of p.
struct Partial {
  float *o, *m, *l;
};
FORNO_INLINE Partial partial_at(char* memory, int64_t rows, int64_t vp) {
  float* o = reinterpret_cast<float*>(memory);
  float* m = o + rows * vp;
  return {o, m, m + attention_plan::round_up(rows, 16)};
}

// cap * tanh(score / cap), as an exponent of two.
FORNO_INLINE vf soft_capped(vf score, float cap) {
  const vf e = vexp2(score * vset(2.0f * kLog2e / cap));
  return (vset(1.0f) - vset(2.0f) / (e + vset(1.0f))) * vset(cap * kLog2e);
}

constexpr int kPageVectors = kPage / kLanes;

// A page of weights to where the sums read them; returns what they add to the row's l. In bf16 l is summed from the
// rounded weights, so that rounding them does not bias their mean.
template <KvDType kType>
FORNO_INLINE vf store_weights(char* weights, int token, const vf* w) {
#if defined(FORNO_AVX512)
  if constexpr (kPairs<kType>) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(w[1], w[0]);
    std::memcpy(weights + token * 2, &rounded, 64);
    const vi bits = vload_words(&rounded);
    return vlow_bf16(bits) + vhigh_bf16(bits);
  }
#endif
  vf sum{};
  for (int i = 0; i < kPageVectors; ++i) {
    vstore(reinterpret_cast<float*>(weights) + token + i * kLanes, w[i]);
    sum = sum + w[i];
  }
  return sum;
}

// Weights times the values' scales. A masked token's scale may be NaN, and 0 times NaN is not 0.
FORNO_INLINE vf scaled_weight(vf weight, const float* scale, int lo, int hi) {
  const vf w = weight * vload(scale);
  return lo > 0 || hi < kLanes ? vkeep(w, lo, hi, 0.0f) : w;
}

// Scores of one row to weights 2^(score - m) over the pages' tokens, of which [lo, hi) count.
template <KvDType kType>
void softmax_row(const Pages& pages, float softcap, int lo, int hi, float* scores, char* weights, float* m, float* l) {
  vf top = vset(kEmpty);
  for (int page = pages.first; page < pages.last; ++page)
    for (int i = 0; i < kPage; i += kLanes) {
      const int token = page * kPage + i;
      vf s = vload(scores + token);
      if (pages.k_scale[page]) s = s * vload(pages.k_scale[page] + i);
      if (softcap > 0.0f) s = soft_capped(s, softcap);
      if (lo > token || hi < token + kLanes) s = vkeep(s, lo - token, hi - token, kMasked);
      vstore(scores + token, s);
      top = vmax(s, top);
    }
  *m = vmax_lane(top);
  const vf most = vset(*m);
  vf total = vf{};
  for (int page = pages.first; page < pages.last; ++page) {
    const int token = page * kPage;
    vf w[kPageVectors];
    for (int i = 0; i < kPageVectors; ++i) w[i] = vexp2(vload(scores + token + i * kLanes) - most);
    if (pages.v_scale[page]) {
      for (int i = 0; i < kPageVectors; ++i) {
        const int at = token + i * kLanes;
        total = total + w[i];
        w[i] = scaled_weight(w[i], pages.v_scale[page] + i * kLanes, lo - at, hi - at);
      }
      store_weights<kType>(weights, token, w);
    } else {
      total = total + store_weights<kType>(weights, token, w);
    }
  }
  *l = vsum(total);
}

// One segment for rows [row, row + count): at most kRows, sharing each load of K and V.
template <KvDType kType>
void rows_of_segment(const Job& job, Pages pages, int32_t begin, bool poisoned, int32_t row, int count, Partial out) {
  const int64_t element = kPairs<kType> ? 2 : 4;
  const int32_t lowest = job.first_key(row) - begin, highest = job.position(row + count - 1) + 1 - begin;
  if (lowest > pages.first * kPage) pages.first = lowest / kPage;
  if (highest < pages.last * kPage) pages.last = highest > 0 ? (highest + kPage - 1) / kPage : 0;
  float* o = out.o + int64_t(row) * job.vp;
  if (pages.first >= pages.last) {
    for (int r = 0; r < count; ++r) out.m[row + r] = kEmpty, out.l[row + r] = 0.0f;
    __builtin_memset(o, 0, size_t(count) * job.vp * 4);
    return;
  }
  const int64_t stride = query_stride<kType>(job.kp);
  scores<kType>(count, job.query + row * stride, stride, pages, job.kp, job.scores);
  for (int r = 0; r < count; ++r) {
    const int lo = job.first_key(row + r) - begin, hi = job.position(row + r) + 1 - begin;
    char* weights = job.weights + r * kSegment * element;
    softmax_row<kType>(pages, job.args.softcap, lo, hi, job.scores + r * kSegment, weights, out.m + row + r, out.l + row + r);
    if (poisoned) {
      const Pages clean = without_masked_tokens<kType>(pages, job.vp, lo, hi, job.clean);
      sums<kType>(1, weights, clean, job.vp, o + int64_t(r) * job.vp);
    }
  }
  if (!poisoned) sums<kType>(count, job.weights, pages, job.vp, o);
}

template <KvDType kType>
void segment_of_tile(const Job& job, int32_t segment, Partial out) {
  const int32_t begin = segment * kSegment, last_row = job.rows - 1;
  const int32_t lowest = job.first_key(0) - begin, end = job.position(last_row) + 1 - begin;
  const int first = lowest > 0 ? lowest / kPage : 0;
  const int last = end < kSegment ? (end + kPage - 1) / kPage : kSegmentPages;
  const Pages pages = find_pages(job.args.cache, job.tile.span->blocks, segment, first, last, begin + end, job.kv_head,
                                 job.kp, job.vp, job.pages);
  const bool masked = job.position(0) + 1 - begin < last * kPage || job.first_key(last_row) - begin > first * kPage;
  const bool poisoned = masked && job.args.cache.dtype != KvDType::INT8 && has_non_finite<kType>(pages, job.vp);
  const int32_t blocks = (job.rows + kRows - 1) / kRows;
  for (int32_t b = 0, row = 0; b < blocks; ++b) {
    const int count = (job.rows - row + blocks - b - 1) / (blocks - b);  // as equal as can be
    rows_of_segment<kType>(job, pages, begin, poisoned, row, count, out);
    row += count;
  }
}

inline void clear(Partial p, int64_t rows, int64_t vp) {
  for (int64_t i = 0; i < attention_plan::round_up(rows, 16); ++i) p.m[i] = kEmpty, p.l[i] = 0.0f;
  __builtin_memset(p.o, 0, size_t(rows * vp) * 4);
}

// total += part. An empty part leaves total as it was, an empty total becomes part: both factors are exact then.
inline void merge(Partial total, Partial part, int32_t rows, int vp) {
  for (int32_t base = 0; base < rows; base += kLanes) {
    const int n = rows - base < kLanes ? rows - base : kLanes;
    const vf mt = vload(total.m + base), mp = vload(part.m + base, n), most = vmax(mt, mp);
    const vf ft = vexp2(mt - most), fp = vexp2(mp - most);
    vstore(total.m + base, most);
    vstore(total.l + base, vfma(vload(part.l + base, n), fp, vload(total.l + base) * ft));
    float factor_total[kLanes], factor_part[kLanes];
    vstore(factor_total, ft);
    vstore(factor_part, fp);
    for (int r = 0; r < n; ++r) {
      const vf a = vset(factor_total[r]), b = vset(factor_part[r]);
      float* to = total.o + int64_t(base + r) * vp;
      const float* from = part.o + int64_t(base + r) * vp;
      for (int c = 0; c < vp; c += kLanes) vstore(to + c, vfma(vload(from + c), b, vload(to + c) * a));
    }
  }
}

// o / l to the output rows.
inline void finish(const Job& job, Partial total) {
  const int32_t dim = job.args.cache.v_dim;
  for (int32_t row = 0; row < job.rows; ++row) {
    const int64_t target = job.tile.span->row0 + job.tile.token + row / job.group;
    const int32_t head = job.kv_head * job.group + row % job.group;
    const vf inverse = vset(1.0f / total.l[row]);
    const float* o = total.o + int64_t(row) * job.vp;
    // Adding 0 makes -0 (which pages of masked keys, skipped or not, may turn into 0) always 0.
    elementwise::write_columns(job.args.out, target, head * dim, dim,
                               [=](int32_t i, int) { return vload(o + i) * inverse + vf{}; });
  }
}

// One part of one (tile, kv head). A part of a split tile leaves its segments in shared memory; the last to arrive
// merges them all, in the same order as a worker that has the tile to itself.
template <KvDType kType>
void run_part(const Job& job, const Problem& problem, int32_t part, char* total_memory, char* segment_memory) {
  const Tile& tile = job.tile;
  const int64_t stride = attention_plan::head_partials_bytes(problem, tile) / tile.segments;
  char* shared = job.args.shared + tile.partials + job.kv_head * stride * tile.segments;
  const Partial total = partial_at(total_memory, job.rows, job.vp);
  load_queries<kType>(job);
  if (tile.parts == 1) {
    const Partial partial = partial_at(segment_memory, job.rows, job.vp);
    clear(total, job.rows, job.vp);
    for (int32_t s = 0; s < tile.segments; ++s) {
      segment_of_tile<kType>(job, tile.segment + s, partial);
      merge(total, partial, job.rows, job.vp);
    }
    finish(job, total);
    return;
  }
  const int32_t first = part * tile.part_segments;
  const int32_t last = first + tile.part_segments < tile.segments ? first + tile.part_segments : tile.segments;
  for (int32_t s = first; s < last; ++s)
    segment_of_tile<kType>(job, tile.segment + s, partial_at(shared + s * stride, job.rows, job.vp));
  int32_t* arrived = reinterpret_cast<int32_t*>(job.args.shared) + tile.counter + job.kv_head;
  if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < tile.parts) return;
  __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);  // as the next op expects it
  clear(total, job.rows, job.vp);
  for (int32_t s = 0; s < tile.segments; ++s) merge(total, partial_at(shared + s * stride, job.rows, job.vp), job.rows, job.vp);
  finish(job, total);
}

}  // namespace attention

inline void attention_op(const AttentionArgs& args, const Step& step, Worker& worker) {
  namespace plan = attention_plan;
  const KvCache& cache = args.cache;
  const int32_t group = args.heads / args.kv_heads;
  const int64_t shared_bytes = args.shared == nullptr ? 0 : int64_t(args.shared_bytes);
  const plan::Problem problem{&step, args.kv_heads, group, cache.v_dim, args.window, worker.count, shared_bytes};
  const plan::ScratchLayout at = plan::scratch_layout(group, cache.k_dim, cache.v_dim);
  const int kp = int(plan::round_up(cache.k_dim, 16)), vp = int(plan::round_up(cache.v_dim, 16));
  char* memory = worker.scratch;
  plan::TileWalk walk{problem, plan::unit_target(problem)};
  plan::Tile tile;
  int32_t done = 0;  // units of the tiles before this one
  bool more = walk.next(tile);
  auto* run = attention::run_part<KvDType::F32>;
#if defined(FORNO_AVX512)
  if (cache.dtype == KvDType::BF16) run = attention::run_part<KvDType::BF16>;
  if (cache.dtype == KvDType::INT8) run = attention::run_part<KvDType::INT8>;
#endif
  while (more) {
    const int32_t unit = __atomic_fetch_add(worker.ticket, 1, __ATOMIC_RELAXED);
    for (; more && unit - done >= tile.parts * args.kv_heads; more = walk.next(tile)) done += tile.parts * args.kv_heads;
    if (!more) return;
    const int32_t kv_head = (unit - done) / tile.parts, part = (unit - done) % tile.parts;
    const attention::Job job{args, tile, kv_head, group, tile.tokens * group, kp, vp, memory + at.query,
                             memory + at.pages, memory + at.clean, reinterpret_cast<float*>(memory + at.scores),
                             memory + at.weights};
    run(job, problem, part, memory + at.total, memory + at.segment);
  }
}

}  // namespace
}  // namespace forno
