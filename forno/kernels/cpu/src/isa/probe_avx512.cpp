// Peak loops for AVX-512 with VNNI and BF16: 24 independent accumulators, as many as the kernels' tiles have.
#include "../probe_loops.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace forno {
namespace {

constexpr int kAccumulators = 24;

float int8(int64_t rounds) {
  __m512i acc[kAccumulators];
  for (auto& a : acc) a = _mm512_setzero_si512();
  __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(1);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], x, y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m512i total = acc[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm512_add_epi32(total, acc[i]);
  return float(_mm512_reduce_add_epi32(total));
}

float bf16(int64_t rounds) {
  __m512 acc[kAccumulators];
  for (auto& a : acc) a = _mm512_setzero_ps();
  const __m512 half = _mm512_set1_ps(0.5f);
  __m512bh x = _mm512_cvtne2ps_pbh(half, half), y = x;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], x, y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m512 total = acc[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm512_add_ps(total, acc[i]);
  return _mm512_reduce_add_ps(total);
}

float fp32(int64_t rounds) {
  __m512 acc[kAccumulators];
  for (auto& a : acc) a = _mm512_setzero_ps();
  __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_fmadd_ps(x, y, acc[i]);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m512 total = acc[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm512_add_ps(total, acc[i]);
  return _mm512_reduce_add_ps(total);
}

}  // namespace

const ProbeLoops* probe_loops_avx512() {
  static constexpr ProbeLoops loops{"avx512", int8, bf16, fp32, kAccumulators * 128, kAccumulators * 64, kAccumulators * 32};
  return &loops;
}

}  // namespace forno
#else
namespace forno {
const ProbeLoops* probe_loops_avx512() { return nullptr; }
}  // namespace forno
#endif
