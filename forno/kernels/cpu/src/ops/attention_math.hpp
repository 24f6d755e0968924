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

// Rows per call and vectors of columns per pass, by the number of registers.
#if defined(FORNO_AVX512)
constexpr int kRows = 6, kColumns = 4;
constexpr bool kHasBf16 = true;
#elif defined(FORNO_AVX2)
constexpr int kRows = 3, kColumns = 2;
constexpr bool kHasBf16 = false;
#else
constexpr int kRows = 1, kColumns = 4;
constexpr bool kHasBf16 = false;
#endif
static_assert(kRows <= attention_plan::kBlockRows, "scratch holds the scores of kBlockRows rows");

// K and V of a segment in the type that is computed with; [first, last) are the pages in use.
struct Pages {
  const char* k[kSegmentPages];
  const char* v[kSegmentPages];
  const float* k_scale[kSegmentPages];  // per token, or null
  const float* v_scale[kSegmentPages];
  int first, last;
};

// scores[r][t] = sum over d of q[r][d] * K[d][t], fp32.
template <int R>
void scores_f32(const char* query, int64_t query_stride, const char* page, int dim, float* scores) {
  const float* k = reinterpret_cast<const float*>(page);
  constexpr int kVectors = kPage / kLanes;
  vf acc[R][kVectors] = {};
  for (int d = 0; d < dim; ++d, k += kPage) {
    vf q[R];
    for (int r = 0; r < R; ++r) q[r] = vset(reinterpret_cast<const float*>(query + r * query_stride)[d]);
    for (int i = 0; i < kVectors; ++i) {
      const vf x = vload(k + i * kLanes);
      for (int r = 0; r < R; ++r) acc[r][i] = vfma(q[r], x, acc[r][i]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < kVectors; ++i) vstore(scores + r * kSegment + i * kLanes, acc[r][i]);
}

// out[r][c] = sum over t of weights[r][t] * V[t][c], fp32, for C vectors of columns from `column`.
template <int R, int C>
void sums_f32(const char* weights, const Pages& pages, int v_stride, int column, float* out, int64_t out_stride) {
  const float* w = reinterpret_cast<const float*>(weights);
  vf acc[R][C] = {};
  for (int page = pages.first; page < pages.last; ++page) {
    const float* v = reinterpret_cast<const float*>(pages.v[page]) + column;
    for (int t = page * kPage; t < (page + 1) * kPage; ++t, v += v_stride) {
      for (int c = 0; c < C; ++c) {
        const vf x = vload(v + c * kLanes);
        for (int r = 0; r < R; ++r) acc[r][c] = vfma(vset(w[r * kSegment + t]), x, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) vstore(out + r * out_stride + column + c * kLanes, acc[r][c]);
}

#if defined(FORNO_AVX512)
FORNO_INLINE __m512bh pairs(const void* p) { return (__m512bh)_mm512_loadu_si512(p); }
FORNO_INLINE __m512bh broadcast_pair(const void* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// The same products on bf16 pairs with vdpbf16ps: pairs of d for scores, pairs of tokens for sums.
template <int R>
void scores_bf16(const char* query, int64_t query_stride, const char* page, int dim, float* scores) {
  __m512 acc[R][2];
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  for (int d = 0; d < dim; d += 2, page += kPage * 4) {
    const __m512bh k0 = pairs(page), k1 = pairs(page + 64);
    for (int r = 0; r < R; ++r) {
      const __m512bh q = broadcast_pair(query + r * query_stride + d * 2);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], k0, q);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], k1, q);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(scores + r * kSegment, acc[r][0]);
    _mm512_storeu_ps(scores + r * kSegment + kLanes, acc[r][1]);
  }
}

template <int R, int C>
void sums_bf16(const char* weights, const Pages& pages, int v_stride, int column, float* out, int64_t out_stride) {
  __m512 acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = _mm512_setzero_ps();
  for (int page = pages.first; page < pages.last; ++page) {
    const char* v = pages.v[page] + column * 4;
    const char* w = weights + page * kPage * 2;
    for (int t = 0; t < kPage; t += 2, v += v_stride * 4, w += 4) {
      __m512bh x[C];
      for (int c = 0; c < C; ++c) x[c] = pairs(v + c * 64);
      for (int r = 0; r < R; ++r) {
        const __m512bh p = broadcast_pair(w + r * kSegment * 2);
        for (int c = 0; c < C; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], x[c], p);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(out + r * out_stride + column + c * kLanes, acc[r][c]);
}
#endif

// One entry per number of rows: the micro-kernels want it at compile time.
using ScoresFn = void (*)(const char*, int64_t, const char*, int, float*);
using SumsFn = void (*)(const char*, const Pages&, int, int, float*, int64_t);

template <bool kBf16, int R>
constexpr ScoresFn scores_for() {
#if defined(FORNO_AVX512)
  if constexpr (kBf16) return scores_bf16<R>;
#endif
  return scores_f32<R>;
}
template <bool kBf16, int R, int C>
constexpr SumsFn sums_for() {
#if defined(FORNO_AVX512)
  if constexpr (kBf16) return sums_bf16<R, C>;
#endif
  return sums_f32<R, C>;
}

template <bool kBf16>
void scores(int rows, const char* query, int64_t query_stride, const char* page, int dim, float* out) {
  static constexpr ScoresFn table[] = {
      scores_for<kBf16, 1>(),
#if defined(FORNO_AVX512) || defined(FORNO_AVX2)
      scores_for<kBf16, 2>(), scores_for<kBf16, 3>(),
#endif
#if defined(FORNO_AVX512)
      scores_for<kBf16, 4>(), scores_for<kBf16, 5>(), scores_for<kBf16, 6>(),
#endif
  };
  table[rows - 1](query, query_stride, page, dim, out);
}

template <bool kBf16, int C>
SumsFn sums_of_columns(int rows) {
  static constexpr SumsFn table[] = {
      sums_for<kBf16, 1, C>(),
#if defined(FORNO_AVX512) || defined(FORNO_AVX2)
      sums_for<kBf16, 2, C>(), sums_for<kBf16, 3, C>(),
#endif
#if defined(FORNO_AVX512)
      sums_for<kBf16, 4, C>(), sums_for<kBf16, 5, C>(), sums_for<kBf16, 6, C>(),
#endif
  };
  return table[rows - 1];
}

template <bool kBf16>
SumsFn sums_function(int rows, int columns) {
#if !defined(FORNO_AVX2)
  if (columns == 4) return sums_of_columns<kBf16, 4>(rows);
  if (columns == 3) return sums_of_columns<kBf16, 3>(rows);
#endif
  return columns == 2 ? sums_of_columns<kBf16, 2>(rows) : sums_of_columns<kBf16, 1>(rows);
}

// All `v_stride` (padded) columns of out for `rows` rows.
template <bool kBf16>
void sums(int rows, const char* weights, const Pages& pages, int v_stride, float* out) {
  for (int column = 0; column < v_stride; column += kColumns * kLanes) {
    const int left = (v_stride - column) / kLanes;
    sums_function<kBf16>(rows, left < kColumns ? left : kColumns)(weights, pages, v_stride, column, out, v_stride);
  }
}

}  // namespace attention
}  // namespace
}  // namespace forno
