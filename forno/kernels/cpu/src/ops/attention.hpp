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
FORNO_INLINE vf scaled_weight(vf weight, const uint16_t* scale, int lo, int hi) {
  const vf w = weight * vload_bf16(scale);
  return lo > 0 || hi < kLanes ? vkeep(w, lo, hi, 0.0f) : w;
}

// The pages' tokens [lo, hi) are those that a row sees.
struct Seen { int lo, hi; };

// The lane-wise maximum of a row's scores that need no cap or mask. Here and below the plain case, which is most of
// a long prompt, is only faster: the same operations on the same numbers.
FORNO_INLINE vf plain_scores(const Pages& pages, const float* scores) {
  vf top = vset(kEmpty);
  for (int token = pages.first * kPage; token < pages.last * kPage; token += kPage)
    FORNO_UNROLL for (int i = 0; i < kPage; i += kLanes) top = vmax(vload(scores + token + i), top);
  return top;
}

// A row's scores as exponents of two, capped and masked in place; returns their lane-wise maximum.
FORNO_INLINE vf masked_scores(const Pages& pages, float softcap, Seen seen, float* scores) {
  vf top = vset(kEmpty);
  for (int page = pages.first; page < pages.last; ++page)
    for (int i = 0; i < kPage; i += kLanes) {
      const int token = page * kPage + i;
      vf s = vload(scores + token);
      if (softcap > 0.0f) s = soft_capped(s, softcap);
      if (seen.lo > token || seen.hi < token + kLanes) s = vkeep(s, seen.lo - token, seen.hi - token, kMasked);
      vstore(scores + token, s);
      top = vmax(s, top);
    }
  return top;
}

// A row's scores to weights 2^(score - most) where the sums read them, for INT8 once for each of V's `groups` of columns;
// returns their lane-wise sum.
template <KvDType kType>
FORNO_INLINE vf weights_of(const Pages& pages, Seen seen, const float* scores, float most, int groups, char* weights) {
  vf total{};
  for (int page = pages.first; page < pages.last; ++page) {
    const int token = page * kPage;
    vf w[kPageVectors];
    FORNO_UNROLL for (int i = 0; i < kPageVectors; ++i)
      w[i] = vexp2<kPairs<kType>>(vload(scores + token + i * kLanes) - vset(most));
    if constexpr (kScaled<kType>) {
      for (int i = 0; i < kPageVectors; ++i) total = total + w[i];
      for (int g = 0; g < groups; ++g) {
        vf scaled[kPageVectors];
        FORNO_UNROLL for (int i = 0; i < kPageVectors; ++i) {
          const int at = i * kLanes;
          scaled[i] = scaled_weight(w[i], pages.v_scale[page] + g * kPage + at, seen.lo - token - at, seen.hi - token - at);
        }
        store_weights<kType>(weights + g * kGroupWeights, token, scaled);
      }
    } else {
      total = total + store_weights<kType>(weights, token, w);
    }
  }
  return total;
}

// One segment for the tile's rows [row, row + count): at most kRows, sharing each load of K and V.
template <KvDType kType>
void rows_of_segment(const Job& job, Pages pages, int32_t begin, bool poisoned, int32_t row, int count, Partial out) {
  const int64_t element = kPairs<kType> ? 2 : 4;
  const int32_t lowest = job.first_key(row) - begin, highest = job.positions[row + count - 1] + 1 - begin;
  if (lowest > pages.first * kPage) pages.first = lowest / kPage;
  if (highest < pages.last * kPage) pages.last = highest > 0 ? (highest + kPage - 1) / kPage : 0;
  if (pages.first >= pages.last) {
    for (int r = 0; r < count; ++r) out.m[r] = kEmpty, out.l[r] = 0.0f;
    __builtin_memset(out.o, 0, size_t(count) * job.vp * 4);
    return;
  }
  const int64_t stride = query_stride<kType>(job.kp);
  scores<kType>(count, job.query + row * stride, stride, pages, job.kp, job.scores);
  // Folding a vector's lanes takes long, but the rows' foldings overlap if nothing waits in between.
  Seen seen[kRows];
  vf folded[kRows];
  bool plain = job.args.softcap <= 0.0f;
  for (int r = 0; r < count; ++r) {
    seen[r] = {job.first_key(row + r) - begin, job.positions[row + r] + 1 - begin};
    plain = plain && seen[r].lo <= pages.first * kPage && seen[r].hi >= pages.last * kPage;
  }
  auto row_scores = [&](int r) { return job.scores + r * kSegment; };
  auto weights = [&](int r) { return job.weights + r * kSegment * element; };
  for (int r = 0; r < count; ++r)
    folded[r] = plain ? plain_scores(pages, row_scores(r)) : masked_scores(pages, job.args.softcap, seen[r], row_scores(r));
  for (int r = 0; r < count; ++r) out.m[r] = vmax_lane(folded[r]);
  for (int r = 0; r < count; ++r)
    folded[r] = weights_of<kType>(pages, seen[r], row_scores(r), out.m[r], kv_groups(job.args.cache.v_dim), weights(r));
  for (int r = 0; r < count; ++r) out.l[r] = vsum(folded[r]);
  if (!poisoned) return sums<kType>(count, job.weights, pages, job.vp, out.o);
  for (int r = 0; r < count; ++r) {
    const Pages clean = without_masked_tokens<kType>(pages, job.vp, seen[r].lo, seen[r].hi, job.clean);
    sums<kType>(1, weights(r), clean, job.vp, out.o + int64_t(r) * job.vp);
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

// The segment at.index for all rows of its stretch; `out` is the first one's.
template <KvDType kType>
void segment_of_stretch(const Job& job, const SegmentWalk& at, Partial out) {
  const int32_t begin = at.index * kSegment, first_row = at.s.row, rows = at.s.rows;
  const Pages pages = find_pages(job, at);
  const bool poisoned = masks_non_finite<kType>(job, at, pages);
  const int32_t blocks = (rows + kRows - 1) / kRows;
  for (int32_t b = 0, row = 0; b < blocks; ++b) {
    const int count = (rows - row + blocks - b - 1) / (blocks - b);  // as equal as can be
    Pages passed = pages;
    passed.fetch_in_pass(b == 0, b == blocks - 1);
    rows_of_segment<kType>(job, passed, begin, poisoned, first_row + row, count, rows_from(out, row, job.vp));
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
    const vf mt = vload(total.m + base, n), mp = vload(part.m + base, n), most = vmax(mt, mp);
    const vf ft = vexp2(mt - most), fp = vexp2(mp - most);
    vstore(total.m + base, most, n);
    vstore(total.l + base, vfma(vload(part.l + base, n), fp, vload(total.l + base, n) * ft), n);
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
  while (at.next()) segment_of_stretch<kType>(job, at, partial(at.index - tile.segment));
  int32_t* arrived = reinterpret_cast<int32_t*>(job.args.shared) + tile.counter + job.unit.kv_head;
  if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < tile.parts) return;
  __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);  // as the next op expects it
  clear(total, tile.rows, job.vp);
  for (int32_t s = 0; s < tile.segments; ++s) merge(total, partial(s), tile.rows, job.vp);
  finish(job, total);
}

template <KvDType kType>
void run_unit(const Job& job, const Problem& problem, char* total_memory, char* segment_memory) {
  const int32_t rows = job.rows();
  const Partial total = partial_at(total_memory, rows, job.vp), partial = partial_at(segment_memory, rows, job.vp);
  load_queries<kType>(job);
  SegmentWalk at{{&job.unit.tile, job.group, job.unit.part}};
  if (job.unit.tile.parts > 1) return run_part<kType>(job, problem, at, total);
  at.next();  // the first stretch has all rows: what merging into nothing would leave
  segment_of_stretch<kType>(job, at, total);
  while (at.next()) {
    segment_of_stretch<kType>(job, at, partial);
    merge(rows_from(total, at.s.row, job.vp), partial, at.s.rows, job.vp);
  }
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
    run(job, problem, memory + at.total, memory + at.segment);
  }
}

}  // namespace
}  // namespace forno
