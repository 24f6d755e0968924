// The ceiling that kernels are held against: independent multiply-adds on registers, nothing else.
#pragma once
#include "../isa/simd.hpp"
#include "../types.hpp"

namespace forno {
namespace {

// Enough independent accumulators to hide latency, few enough to stay in registers.
#if defined(FORNO_AVX512)
constexpr int kChains = 24;
#else
constexpr int kChains = 12;
#endif

// Runs `step` on each accumulator, `rounds` times.
template <class V, class F>
FORNO_INLINE void run_chains(int64_t rounds, V start, F&& step) {
  V acc[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) acc[c] = start;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      acc[c] = step(acc[c]);
      __asm__ volatile("" : "+v"(acc[c]));  // keeps every step, in a register
    }
  }
}

int64_t peak(PeakUnit unit, int64_t rounds) {
  constexpr int64_t kLanesPerRound = int64_t(kChains) * kLanes;
#if defined(__x86_64__)  // the loop needs to name a register class
  if (unit == PeakUnit::FP32) {
    run_chains(rounds, vset(1.0f), [](vf a) { return vfma(a, vset(0.5f), vset(0.5f)); });
    return rounds * kLanesPerRound * 2;
  }
#endif
#if defined(FORNO_AVX512)
  if (unit == PeakUnit::BF16) {
    const __m512bh half = reinterpret_cast<__m512bh>(vset_words(0x3f003f00));
    run_chains(rounds, vset(0.0f), [&](vf a) { return vf(_mm512_dpbf16_ps(a, half, half)); });
    return rounds * kLanesPerRound * 4;
  }
  const __m512i ones = _mm512_set1_epi8(1);
  run_chains(rounds, _mm512_setzero_si512(), [&](__m512i a) { return _mm512_dpbusd_epi32(a, ones, ones); });
  return rounds * kLanesPerRound * 8;
#elif defined(FORNO_AVX2)
  if (unit == PeakUnit::BF16) return 0;
  const __m256i bytes = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1);
  run_chains(rounds, _mm256_setzero_si256(), [&](__m256i a) {
    __m256i product = _mm256_maddubs_epi16(bytes, bytes);
    __asm__ volatile("" : "+v"(product));
    return _mm256_add_epi32(a, _mm256_madd_epi16(product, pairs));
  });
  return rounds * kLanesPerRound * 8;
#else
  return 0;
#endif
}

}  // namespace
}  // namespace forno
