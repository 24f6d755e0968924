// Causal attention over paged keys and values, FlashAttention style (2205.14135): scores never leave the cache, the
// softmax of one segment of keys is merged into a running one. Decode, prefill and everything between is the same code
// with different numbers of rows.
//
// The rows of one kv head, (token, query head of its group) pairs, share every load of K and V. What a row computes
// depends on its query, its position and the keys it may see, and on nothing else: see attention_plan.hpp.
#pragma once
#include "attention_pages.hpp"

namespace forno {
namespace {
namespace attention {

using attention_plan::Problem;
using attention_plan::SegmentWalk;
using attention_plan::Stretch;
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
FORNO_INLINE Partial rows_from(Partial p, int32_t row, int64_t vp) { return {p.o + row * vp, p.m + row, p.l + row}; }

inline void clear(Partial p, int64_t rows, int64_t vp) {
  for (int64_t i = 0; i < rows; ++i) p.m[i] = kEmpty, p.l[i] = 0.0f;
  __builtin_memset(p.o, 0, size_t(rows * vp) * 4);
}

// cap * tanh(score / cap), as an exponent of two.
FORNO_INLINE vf soft_capped(vf score, float cap) {
  const vf e = vexp2(score * vset(2.0f * kLog2e / cap));
  return (vset(1.0f) - vset(2.0f) / (e + vset(1.0f))) * vset(cap * kLog2e);
}

constexpr int kPageVectors = kPage / kLanes;

// A page of weights to where the sums read them; returns `total` and what they add to the row's l. In bf16 l is summed from
// the rounded weights, so that rounding them does not bias their mean.
template <KvDType kType>
FORNO_INLINE vf store_weights(char* weights, int token, const vf* w, vf total) {
#if defined(FORNO_AVX512)
  if constexpr (kPairs<kType>) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(w[1], w[0]);
    std::memcpy(weights + token * 2, &rounded, 64);
    return _mm512_dpbf16_ps(total, rounded, (__m512bh)_mm512_set1_epi32(0x3f803f80));  // times 1
  }
#endif
  for (int i = 0; i < kPageVectors; ++i) {
    vstore(reinterpret_cast<float*>(weights) + token + i * kLanes, w[i]);
    total = total + w[i];
  }
  return total;
}

// The pages' tokens [lo, hi) are those that a row sees.
struct Seen { int lo, hi; };

// Weights times the values' scales. A masked token's scale may be NaN, and 0 times NaN is not 0.
FORNO_INLINE vf scaled_weight(vf weight, const uint16_t* scale, int token, Seen seen) {
  const vf w = weight * vload_bf16(scale);
  return seen.lo > token || seen.hi < token + kLanes ? vkeep(w, seen.lo - token, seen.hi - token, 0.0f) : w;
}

// A row's scores as exponents of two, capped and masked in place; returns their lane-wise maximum.
FORNO_INLINE vf masked_scores(const Pages& pages, float softcap, Seen seen, float* scores) {
  vf top = vset(kEmpty);
  for (int token = pages.first * kPage; token < pages.last * kPage; token += kLanes) {
    vf s = vload(scores + token);
    if (softcap > 0.0f) s = soft_capped(s, softcap);
    if (seen.lo > token || seen.hi < token + kLanes) s = vkeep(s, seen.lo - token, seen.hi - token, kMasked);
    vstore(scores + token, s);
    top = vmax(s, top);
  }
  return top;
}

// Where a row's weights go: for kScaled types there are `groups` of them, each with the scales of a group of V's columns.
struct RowWeights {
  char* at;
  int groups;
  Seen seen;
};

// The weights 2^(score - most) of kPages pages from `page`; returns `total` and their lane-wise sum. As many vectors at once as
// there are registers, page by page otherwise: the same operations on the same numbers.
template <KvDType kType, int kPages>
FORNO_INLINE vf weights_of_pages(const Pages& pages, int page, const float* scores, float most, const RowWeights& to, vf total) {
  vf w[kPages * kPageVectors];
  FORNO_UNROLL for (int i = 0; i < kPages * kPageVectors; ++i) w[i] = vload(scores + page * kPage + i * kLanes) - vset(most);
#if defined(FORNO_AVX512)
  if constexpr (kPairs<kType>) vexp2_short_each(w);
  else vexp2_each(w);
#else
  vexp2_each(w);
#endif
  FORNO_UNROLL for (int p = 0; p < kPages; ++p) {
    const int token = (page + p) * kPage;
    const vf* here = w + p * kPageVectors;
    if constexpr (!kScaled<kType>) {
      total = store_weights<kType>(to.at, token, here, total);
      continue;
    }
    FORNO_UNROLL for (int i = 0; i < kPageVectors; ++i) total = total + here[i];
    for (int g = 0; g < to.groups; ++g) {
      const uint16_t* scale = pages.v_scale[page + p] + g * kPage;
      vf scaled[kPageVectors];
      FORNO_UNROLL for (int i = 0; i < kPageVectors; ++i)
        scaled[i] = scaled_weight(here[i], scale + i * kLanes, token + i * kLanes, to.seen);
      store_weights<kType>(to.at + g * kGroupWeights, token, scaled, vf{});
    }
  }
  return total;
}

template <KvDType kType>
FORNO_INLINE vf weights_of(const Pages& pages, const float* scores, float most, const RowWeights& to) {
#if defined(FORNO_AVX512)
  if (pages.last - pages.first == kSegmentPages) return weights_of_pages<kType, kSegmentPages>(pages, 0, scores, most, to, vf{});
#endif
  vf total{};
  for (int page = pages.first; page < pages.last; ++page) total = weights_of_pages<kType, 1>(pages, page, scores, most, to, total);
  return total;
}

// The maxima m and sums l of up to Blend::kMost rows become those with a part's; returns what their o are blended with. An
// empty part leaves the total as it was, an empty total becomes the part: both factors are exact then.
inline Blend blend(float* m, float* l, const float* part_m, const float* part_l, int rows) {
  Blend factors;
  for (int32_t base = 0; base < rows; base += kLanes) {
    const int n = rows - base < kLanes ? rows - base : kLanes;
    const vf mt = vload(m + base, n), mp = vload(part_m + base, n), most = vmax(mt, mp);
    const vf ft = vexp2(mt - most), fp = vexp2(mp - most);
    vstore(m + base, most, n);
    vstore(l + base, vfma(vload(part_l + base, n), fp, vload(l + base, n) * ft), n);
    vstore(factors.total + base, ft);
    vstore(factors.part + base, fp);
  }
  return factors;
}

// One segment for the tile's rows [row, row + count): at most kRows, sharing each load of K and V. Merged into `out`, or
// stored there.
template <KvDType kType>
void rows_of_segment(const Job& job, Pages pages, int32_t begin, bool poisoned, int32_t row, int count, Partial out, bool merged) {
  const int64_t element = kPairs<kType> ? 2 : 4;
  const int32_t lowest = job.first_key(row) - begin, highest = job.positions[row + count - 1] + 1 - begin;
  if (lowest > pages.first * kPage) pages.first = lowest / kPage;
  if (highest < pages.last * kPage) pages.last = highest > 0 ? (highest + kPage - 1) / kPage : 0;
  if (pages.first >= pages.last) {
    if (!merged) clear(out, count, job.vp);
    return;
  }
  const int64_t stride = query_stride<kType>(job.kp);
  // Folding a vector's lanes takes long, but the rows' foldings overlap if nothing waits in between.
  Seen seen[kRows];
  vf folded[kRows];
  bool plain = job.args.softcap <= 0.0f;
  for (int r = 0; r < count; ++r) {
    seen[r] = {job.first_key(row + r) - begin, job.positions[row + r] + 1 - begin};
    plain = plain && seen[r].lo <= pages.first * kPage && seen[r].hi >= pages.last * kPage;
    folded[r] = vset(kEmpty);
  }
  scores<kType>(count, job.query + row * stride, stride, pages, job.kp, job.scores, folded);
  auto row_scores = [&](int r) { return job.scores + r * kSegment; };
  auto weights = [&](int r) { return job.weights + r * kSegment * element; };
  float m[Blend::kMost], l[Blend::kMost];
  if (!plain)  // most of a long prompt is
    for (int r = 0; r < count; ++r) folded[r] = masked_scores(pages, job.args.softcap, seen[r], row_scores(r));
  for (int r = 0; r < count; ++r) m[r] = vmax_lane(folded[r]);
  const int groups = kv_groups(job.args.cache.v_dim);
  for (int r = 0; r < count; ++r) folded[r] = weights_of<kType>(pages, row_scores(r), m[r], {weights(r), groups, seen[r]});
  for (int r = 0; r < count; ++r) l[r] = vsum(folded[r]);
  Blend factors;
  if (merged) factors = blend(out.m, out.l, m, l, count);
  else for (int r = 0; r < count; ++r) out.m[r] = m[r], out.l[r] = l[r];
  if (!poisoned) return sums<kType>(count, job.weights, pages, job.vp, out.o, merged ? &factors : nullptr);
  for (int r = 0; r < count; ++r) {
    const Pages clean = without_masked_tokens<kType>(pages, job.vp, seen[r].lo, seen[r].hi, job.clean);
    const Blend one{{factors.total[r]}, {factors.part[r]}};
    sums<kType>(1, weights(r), clean, job.vp, out.o + int64_t(r) * job.vp, merged ? &one : nullptr);
  }
}

// Whether a page that some row does not see whole holds a value of V that masking by weight 0 would not hide. (Where int8 is
// multiplied as it is, scaled_weight has seen to it.)
template <KvDType kType>
bool masks_non_finite(const Job& job, const SegmentWalk& at, const Pages& pages) {
  if (kScaled<kType>) return false;
  const int32_t begin = at.index * kSegment;
  const int32_t before = job.first_key(at.s.row + at.s.rows - 1) - begin, after = job.positions[at.s.row] + 1 - begin;
  const int32_t first = before > 0 ? (before + kPage - 1) / kPage : 0, last = after > 0 ? after / kPage : 0;
  if (first <= pages.first && last >= pages.last) return false;
  if (first >= last) return has_non_finite<kType>(pages, pages.first, pages.last, job.vp);
  const int32_t head = first < pages.last ? first : pages.last, tail = last > pages.first ? last : pages.first;
  return has_non_finite<kType>(pages, pages.first, head, job.vp) || has_non_finite<kType>(pages, tail, pages.last, job.vp);
}

// The segment at.index for all rows of its stretch, merged into `out` (the first one's) or stored there.
template <KvDType kType>
void segment_of_stretch(const Job& job, const SegmentWalk& at, Partial out, bool merged) {
  const int32_t begin = at.index * kSegment, first_row = at.s.row, rows = at.s.rows;
  const Pages pages = find_pages(job, at);
  const bool poisoned = masks_non_finite<kType>(job, at, pages);
  const int32_t blocks = (rows + kRows - 1) / kRows;
  for (int32_t b = 0, row = 0; b < blocks; ++b) {
    const int count = (rows - row + blocks - b - 1) / (blocks - b);  // as equal as can be
    Pages passed = pages;
    passed.fetch_in_pass(b == 0, b == blocks - 1);
    rows_of_segment<kType>(job, passed, begin, poisoned, first_row + row, count, rows_from(out, row, job.vp), merged);
    row += count;
  }
}

// total += part, as rows_of_segment merges.
inline void merge(Partial total, Partial part, int32_t rows, int vp) {
  for (int32_t base = 0; base < rows; base += Blend::kMost) {
    const int n = rows - base < Blend::kMost ? rows - base : Blend::kMost;
    const Blend factors = blend(total.m + base, total.l + base, part.m + base, part.l + base, n);
    for (int r = 0; r < n; ++r) {
      const vf a = vset(factors.total[r]), b = vset(factors.part[r]);
      float* to = total.o + int64_t(base + r) * vp;
      const float* from = part.o + int64_t(base + r) * vp;
      for (int c = 0; c < vp; c += kLanes) vstore(to + c, vfma(vload(from + c), b, vload(to + c) * a));
    }
  }
}

// o / l to the output rows.
inline void finish(const Job& job, Partial total) {
  const int32_t dim = job.args.cache.v_dim;
  job.for_tokens([&](int32_t row, int64_t target, int32_t) {
    for (int32_t g = 0; g < job.group; ++g, ++row) {
      const vf inverse = vset(1.0f / total.l[row]);
      const float* o = total.o + int64_t(row) * job.vp;
      // Adding 0 makes -0 (which pages of masked keys, skipped or not, may turn into 0) always 0.
      elementwise::write_columns(job.args.out, target, (job.unit.kv_head * job.group + g) * dim, dim,
                                 [=](int32_t i, int) { return vload(o + i) * inverse + vf{}; });
    }
  });
}

// A part of a split tile leaves its segments in shared memory; the last to arrive merges them all, in the same order as
// a worker that has the tile to itself.
template <KvDType kType>
void run_part(const Job& job, const Problem& problem, SegmentWalk at, Partial total) {
  const Tile& tile = job.unit.tile;
  const int64_t stride = attention_plan::head_partials_bytes(problem, tile) / tile.segments;
  char* shared = job.args.shared + tile.partials + job.unit.kv_head * stride * tile.segments;
  auto partial = [&](int32_t segment) { return partial_at(shared + segment * stride, tile.rows, job.vp); };
  while (at.next()) segment_of_stretch<kType>(job, at, partial(at.index - tile.segment), false);
  int32_t* arrived = reinterpret_cast<int32_t*>(job.args.shared) + tile.counter + job.unit.kv_head;
  if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < tile.parts) return;
  __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);  // as the next op expects it
  clear(total, tile.rows, job.vp);
  for (int32_t s = 0; s < tile.segments; ++s) merge(total, partial(s), tile.rows, job.vp);
  finish(job, total);
}

template <KvDType kType>
void run_unit(const Job& job, const Problem& problem, char* total_memory) {
  const Partial total = partial_at(total_memory, job.rows(), job.vp);
  load_queries<kType>(job);
  SegmentWalk at{{&job.unit.tile, job.group, job.unit.part}};
  if (job.unit.tile.parts > 1) return run_part<kType>(job, problem, at, total);
  at.next();  // the first stretch has all rows: what merging into nothing would leave
  segment_of_stretch<kType>(job, at, total, false);
  while (at.next()) segment_of_stretch<kType>(job, at, rows_from(total, at.s.row, job.vp), true);
  finish(job, total);
}

// Finds the units of a plan by number. A worker's numbers ascend but for jumps to other workers' parts.
struct Units {
  const attention_plan::Plan& plan;
  int32_t kv_heads;
  TileWalk walk = plan.walk;
  Tile tile{};
  int32_t passed = 0, here = 0;  // units of the tiles before `tile`, and of `tile`

  Unit at(int32_t number) {
    if (number < passed) walk.restart(plan.walk), passed = here = 0;
    while (number - passed >= here) {
      passed += here;
      walk.next(tile);
      here = tile.parts * kv_heads;
    }
    return {tile, (number - passed) / tile.parts, (number - passed) % tile.parts};
  }
};

}  // namespace attention

inline void attention_op(const AttentionArgs& args, const Step& step, Worker& worker) {
  namespace plans = attention_plan;
  const KvCache& cache = args.cache;
  const int32_t group = args.heads / args.kv_heads;
  const int64_t shared_bytes = args.shared == nullptr ? 0 : int64_t(args.shared_bytes);
  const plans::Problem problem{&step, args.kv_heads, group, cache.v_dim, args.window, worker.count, shared_bytes};
  const plans::ScratchLayout at = plans::scratch_layout(group, cache.k_dim, cache.v_dim);
  const int kp = int(plans::round_up(cache.k_dim, 16)), vp = int(plans::round_up(cache.v_dim, 16));
  char* memory = worker.scratch;
  auto* run = attention::run_unit<KvDType::F32>;
#if defined(FORNO_AVX512)
  if (cache.dtype == KvDType::BF16) run = attention::run_unit<KvDType::BF16>;
  if (cache.dtype == KvDType::INT8) run = attention::run_unit<KvDType::INT8>;
#endif
  const plans::Plan plan = plans::plan_tiles(problem);
  attention::Units units{plan, args.kv_heads};
  Tickets tickets{worker, plan.units};
  attention::Unit pair[2];  // a worker takes its next unit before it computes one, to fetch its first pages in time
  int32_t number = tickets.take();
  if (number >= 0) pair[0] = units.at(number);
  for (int i = 0; number >= 0; i ^= 1) {
    number = tickets.take();
    if (number >= 0) pair[i ^ 1] = units.at(number);
    const attention::Job job{args, pair[i], number >= 0 ? &pair[i ^ 1] : nullptr, group, kp, vp, memory + at.query,
                             memory + at.pages, memory + at.clean, reinterpret_cast<float*>(memory + at.scores),
                             memory + at.weights, reinterpret_cast<int32_t*>(memory + at.rows)};
    run(job, problem, memory + at.total);
  }
}

}  // namespace
}  // namespace forno
