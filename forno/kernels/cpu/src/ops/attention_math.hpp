// The two products of attention for a few rows against the pages of one segment: scores q.K^T and sums P.V.
// Pages are read in place in the layout of types.hpp. A row's arithmetic is the same whatever rows share the call.
#pragma once
#include "../isa/simd_attn.hpp"
#include "attention_plan.hpp"

namespace forno {
namespace {
namespace attention {

using attention_plan::kSegment;
using attention_plan::kSegmentPages;

// Rows per call, vectors of V's columns and pages of K per pass: as many accumulators as there are registers.
#if defined(FORNO_AVX512)
constexpr int kRows = 6, kScorePages = 2;
constexpr bool kNative = true;  // multiplies cached types as they are; otherwise everything is widened to fp32
#elif defined(FORNO_AVX2)
constexpr int kRows = 3, kScorePages = 1;
constexpr bool kNative = false;
#else
constexpr int kRows = 1, kScorePages = 1;
constexpr bool kNative = false;
#endif
constexpr int kColumns = 4;
static_assert(kRows <= attention_plan::kBlockRows, "scratch holds the scores of kBlockRows rows");

// Unrolled before the compiler decides where arrays live, so that accumulators stay in registers from first to last.
#define FORNO_UNROLL _Pragma("GCC unroll 16")

// Weights and V are multiplied as bf16 pairs for this type of computation. (INT8 differs from BF16 in its scores, and in
// that a row has weights for each group of V's columns: the group's scale is in them.)
template <KvDType kType>
constexpr bool kPairs = kNative && kType != KvDType::F32;

// K and V are multiplied as codes, which leaves their scales to the scores and the weights.
template <KvDType kType>
constexpr bool kScaled = kNative && kType == KvDType::INT8;

// A row's weights for the groups of V's columns lie this many bytes apart.
constexpr int kGroupWeights = kRows * kSegment * 2;

// K and V of a segment in the type that is computed with; [first, last) are the pages in use.
struct Pages {
  const char* k[kSegmentPages];
  const char* v[kSegmentPages];
  const uint16_t* k_scale[kSegmentPages];  // bf16 [groups][kPage], for INT8 only
  const uint16_t* v_scale[kSegmentPages];
  // What to fetch from memory, line by line, while the scores or the sums of a page are computed: pages are scattered,
  // and the hardware's prefetcher stops at the end of each. Bursts do not work, they fill the miss queue and stall.
  const char* during_scores[kSegmentPages];
  const char* during_sums[kSegmentPages];
  int first, last;

  // Of the passes of several blocks of rows over the pages, the first fetches what the second product of this segment
  // reads, and the last what the first product of the next one does: earlier, it would drive out of L1 what is in use.
  FORNO_INLINE void fetch_in_pass(bool first_pass, bool last_pass) {
    for (int i = first; i < last; ++i) {
      if (!first_pass) during_scores[i] = k[i];
      if (!last_pass) during_sums[i] = v[i];
    }
  }
};

// Stores the scores of V vectors of tokens for R rows; `top` becomes the lane-wise maximum with what it was.
template <int R, int V>
FORNO_INLINE void store_scores(const vf (&acc)[R][V], int page, float* scores, vf* top) {
  FORNO_UNROLL for (int r = 0; r < R; ++r) {
    vf most = top[r];
    FORNO_UNROLL for (int i = 0; i < V; ++i) {
      vstore(scores + r * kSegment + page * kPage + i * kLanes, acc[r][i]);
      most = vmax(acc[r][i], most);
    }
    top[r] = most;
  }
}

// How two parts of a row's sums are added: total * its factor + part * its factor.
struct Blend {
  static constexpr int kMost = 16;
  float total[kMost], part[kMost];
};

// Stores C vectors of sums for R rows, or blends them into what is there.
template <int R, int C>
FORNO_INLINE void store_sums(const vf (&acc)[R][C], float* out, int64_t out_stride, const Blend* blend) {
  FORNO_UNROLL for (int r = 0; r < R; ++r) {
    float* to = out + r * out_stride;
    if (blend == nullptr) {
      FORNO_UNROLL for (int c = 0; c < C; ++c) vstore(to + c * kLanes, acc[r][c]);
    } else {
      const vf a = vset(blend->total[r]), b = vset(blend->part[r]);
      FORNO_UNROLL for (int c = 0; c < C; ++c)
        vstore(to + c * kLanes, vfma(acc[r][c], b, vload(to + c * kLanes) * a));
    }
  }
}

// scores[r][t] = sum over d of q[r][d] * K[d][t] for P pages from `page`, fp32.
template <int R, int P>
void scores_f32(const char* query, int64_t query_stride, const Pages& pages, int page, int dim, float* scores, vf* top) {
  constexpr int kVectors = kPage / kLanes;
  vf acc[R][P * kVectors] = {};
  for (int d = 0; d < dim; ++d) {
    vf q[R];
    FORNO_UNROLL for (int r = 0; r < R; ++r) q[r] = vset(reinterpret_cast<const float*>(query + r * query_stride)[d]);
    FORNO_UNROLL for (int i = 0; i < P * kVectors; ++i) {
      const float* k = reinterpret_cast<const float*>(pages.k[page + i / kVectors]) + d * kPage;
      const vf x = vload(k + i % kVectors * kLanes);
      if (i * kLanes % 16 == 0)
        __builtin_prefetch(pages.during_scores[page + i / kVectors] + (d * kPage + i % kVectors * kLanes) * 4);
      FORNO_UNROLL for (int r = 0; r < R; ++r) acc[r][i] = vfma(q[r], x, acc[r][i]);
    }
  }
  store_scores<R, P * kVectors>(acc, page, scores, top);
}

// out[r][c] = sum over t of weights[r][t] * V[t][c], fp32, for C vectors of columns from `column`.
template <int R, int C>
void sums_f32(const char* weights, const Pages& pages, int v_stride, int column, float* out, int64_t out_stride,
              const Blend* blend) {
  const float* w = reinterpret_cast<const float*>(weights);
  vf acc[R][C] = {};
  for (int page = pages.first; page < pages.last; ++page) {
    const float* v = reinterpret_cast<const float*>(pages.v[page]) + column;
    const char* next = pages.during_sums[page] + column * 4;
    for (int t = page * kPage; t < (page + 1) * kPage; ++t, v += v_stride, next += v_stride * 4) {
      FORNO_UNROLL for (int c = 0; c < C; ++c) {
        const vf x = vload(v + c * kLanes);
        if (c * kLanes % 16 == 0) __builtin_prefetch(next + c * kLanes * 4);
        FORNO_UNROLL for (int r = 0; r < R; ++r) acc[r][c] = vfma(vset(w[r * kSegment + t]), x, acc[r][c]);
      }
    }
  }
  store_sums<R, C>(acc, out + column, out_stride, blend);
}

#if defined(FORNO_AVX512)
FORNO_INLINE __m512bh pairs(const void* p) { return (__m512bh)_mm512_loadu_si512(p); }
FORNO_INLINE __m512bh broadcast_pair(const void* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// The same products on bf16 pairs with vdpbf16ps: pairs of d for scores, pairs of tokens for sums.
template <int R, int P>
void scores_bf16(const char* query, int64_t query_stride, const Pages& pages, int page, int dim, float* scores, vf* top) {
  vf acc[R][2 * P] = {};
  for (int d = 0; d < dim; d += 2) {
    __m512bh k[2 * P];
    FORNO_UNROLL for (int i = 0; i < 2 * P; ++i) {
      const int64_t at = d * kPage * 2 + i % 2 * 64;
      k[i] = pairs(pages.k[page + i / 2] + at);
      __builtin_prefetch(pages.during_scores[page + i / 2] + at);
    }
    FORNO_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh q = broadcast_pair(query + r * query_stride + d * 2);
      FORNO_UNROLL for (int i = 0; i < 2 * P; ++i) acc[r][i] = _mm512_dpbf16_ps(acc[r][i], k[i], q);
    }
  }
  store_scores<R, 2 * P>(acc, page, scores, top);
}

// A query as two signed digits, q = unit * (128 * high + low), which keeps 15 bits where one digit would keep 8. Behind the
// digits [dim] and [dim] lie `unit` and an int32 for each group of dims: K is unsigned with 128 for zero, so the group's sum
// starts at -128 * (128 * sum(high) + sum(low)). It stays below 2^28.

// The dims of one group; adds its part of the scores to what is there, unless it is the first.
template <int R, bool kFirst>
FORNO_INLINE void scores_of_group(const char* query, int64_t query_stride, int dim, int d, int end, const char* k, const char* next,
                                  const uint16_t* k_scale, float* scores) {
  vi high[R][2], low[R][2];
  FORNO_UNROLL for (int r = 0; r < R; ++r) {
    int32_t start;
    std::memcpy(&start, query + r * query_stride + 2 * dim + 4 + d / kKvGroup * 4, 4);
    high[r][0] = high[r][1] = vi{};
    low[r][0] = low[r][1] = vset_words(start);
  }
  for (; d < end; d += 4, k += kPage * 4, next += kPage * 4) {
    __builtin_prefetch(next);
    __builtin_prefetch(next + 64);
    const __m512i k0 = _mm512_loadu_si512(k), k1 = _mm512_loadu_si512(k + 64);
    FORNO_UNROLL for (int r = 0; r < R; ++r) {
      const __m512i h = (__m512i)broadcast_pair(query + r * query_stride + d);
      const __m512i l = (__m512i)broadcast_pair(query + r * query_stride + dim + d);
      high[r][0] = (vi)_mm512_dpbusd_epi32((__m512i)high[r][0], k0, h);
      high[r][1] = (vi)_mm512_dpbusd_epi32((__m512i)high[r][1], k1, h);
      low[r][0] = (vi)_mm512_dpbusd_epi32((__m512i)low[r][0], k0, l);
      low[r][1] = (vi)_mm512_dpbusd_epi32((__m512i)low[r][1], k1, l);
    }
  }
  const vf scale[2] = {vload_bf16(k_scale), vload_bf16(k_scale + kLanes)};
  FORNO_UNROLL for (int r = 0; r < R; ++r) {
    float unit;
    std::memcpy(&unit, query + r * query_stride + 2 * dim, 4);
    FORNO_UNROLL for (int i = 0; i < 2; ++i) {
      float* to = scores + r * kSegment + i * kLanes;
      const vf part = vfloat((high[r][i] << 7) + low[r][i]) * vset(unit);
      vstore(to, kFirst ? part * scale[i] : vfma(part, scale[i], vload(to)));
    }
  }
}

template <int R>
void scores_int8(const char* query, int64_t query_stride, const Pages& pages, int page, int dim, float* scores, vf* top) {
  const char *k = pages.k[page], *next = pages.during_scores[page];
  const uint16_t* k_scale = pages.k_scale[page];
  scores += page * kPage;
  const int first_end = kKvGroup < dim ? kKvGroup : dim;
  scores_of_group<R, true>(query, query_stride, dim, 0, first_end, k, next, k_scale, scores);
  for (int d = kKvGroup; d < dim; d += kKvGroup) {
    const int end = d + kKvGroup < dim ? d + kKvGroup : dim;
    k_scale += kPage;
    scores_of_group<R, false>(query, query_stride, dim, d, end, k + d * kPage, next + d * kPage, k_scale, scores);
  }
  FORNO_UNROLL for (int r = 0; r < R; ++r)
    top[r] = vmax(vload(scores + r * kSegment + kLanes), vmax(vload(scores + r * kSegment), top[r]));
}

template <int R, int C, bool kGrouped>
void sums_bf16(const char* weights, const Pages& pages, int v_stride, int column, float* out, int64_t out_stride,
              const Blend* blend) {
  constexpr int kVectors = kGrouped ? kKvGroup / kLanes : C;  // vectors of columns that share weights
  vf acc[R][C] = {};
  for (int page = pages.first; page < pages.last; ++page) {
    const char *v = pages.v[page] + column * 4, *next = pages.during_sums[page] + column * 4;
    const char* w = weights + page * kPage * 2;
    for (int t = 0; t < kPage; t += 2, v += v_stride * 4, next += v_stride * 4, w += 4) {
      __m512bh x[C];
      FORNO_UNROLL for (int c = 0; c < C; ++c) {
        x[c] = pairs(v + c * 64);
        __builtin_prefetch(next + c * 64);
      }
      FORNO_UNROLL for (int r = 0; r < R; ++r) {
        FORNO_UNROLL for (int g = 0; g < C; g += kVectors) {
          const __m512bh p = broadcast_pair(w + r * kSegment * 2 + g / kVectors * kGroupWeights);
          for (int c = g; c < C && c < g + kVectors; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], x[c], p);
        }
      }
    }
  }
  store_sums<R, C>(acc, out + column, out_stride, blend);
}
#endif

// One entry per number of rows: the micro-kernels want it at compile time.
using ScoresFn = void (*)(const char*, int64_t, const Pages&, int, int, float*, vf*);
using SumsFn = void (*)(const char*, const Pages&, int, int, float*, int64_t, const Blend*);

template <KvDType kType, int R, int P>
constexpr ScoresFn scores_for() {
#if defined(FORNO_AVX512)
  if constexpr (kType == KvDType::BF16) return scores_bf16<R, P>;
  if constexpr (kType == KvDType::INT8) return scores_int8<R>;
#endif
  return scores_f32<R, P>;
}
template <KvDType kType, int R, int C>
constexpr SumsFn sums_for() {
#if defined(FORNO_AVX512)
  if constexpr (kPairs<kType>) return sums_bf16<R, C, kType == KvDType::INT8>;
#endif
  return sums_f32<R, C>;
}

#if defined(FORNO_AVX512)
#define FORNO_BY_ROWS(kernel, n) \
  {kernel<kType, 1, n>(), kernel<kType, 2, n>(), kernel<kType, 3, n>(), \
   kernel<kType, 4, n>(), kernel<kType, 5, n>(), kernel<kType, 6, n>()}
#elif defined(FORNO_AVX2)
#define FORNO_BY_ROWS(kernel, n) {kernel<kType, 1, n>(), kernel<kType, 2, n>(), kernel<kType, 3, n>()}
#else
#define FORNO_BY_ROWS(kernel, n) {kernel<kType, 1, n>()}
#endif

// Scores of all pages in use for `rows` rows, and into `top` the lane-wise maximum of them and what was there.
template <KvDType kType>
void scores(int rows, const char* query, int64_t query_stride, const Pages& pages, int dim, float* out, vf* top) {
  static constexpr ScoresFn table[kScorePages][kRows] = {
      FORNO_BY_ROWS(scores_for, 1),
#if defined(FORNO_AVX512)
      FORNO_BY_ROWS(scores_for, 2),
#endif
  };
  for (int page = pages.first; page < pages.last;) {
    const int most = kType == KvDType::INT8 ? 1 : kScorePages;  // two digits already fill the registers
    const int count = pages.last - page < most ? pages.last - page : most;
    table[count - 1][rows - 1](query, query_stride, pages, page, dim, out, top);
    page += count;
  }
}

// All `v_stride` (padded) columns of out for `rows` rows, blended into what is there unless `blend` is null.
template <KvDType kType>
void sums(int rows, const char* weights, const Pages& pages, int v_stride, float* out, const Blend* blend) {
  static constexpr SumsFn table[kColumns][kRows] = {
      FORNO_BY_ROWS(sums_for, 1), FORNO_BY_ROWS(sums_for, 2), FORNO_BY_ROWS(sums_for, 3), FORNO_BY_ROWS(sums_for, 4),
  };
  const int blocks = v_stride / kLanes;
  for (int block = 0; block < blocks;) {
    const int count = blocks - block < kColumns ? blocks - block : kColumns;
    const char* from = weights;
    if (kScaled<kType>) from += block * kLanes / kKvGroup * kGroupWeights;  // a pass begins with a group
    table[count - 1][rows - 1](from, pages, v_stride, block * kLanes, out, v_stride, blend);
    block += count;
  }
}
#undef FORNO_BY_ROWS

}  // namespace attention
}  // namespace
}  // namespace forno
