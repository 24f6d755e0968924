// Peak loops for AVX2 with FMA: 12 independent accumulators. Bytes are multiplied in pairs, then widened, as the kernels do.
#include "../probe_loops.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace forno {
namespace {

constexpr int kAccumulators = 12;

float int8(int64_t rounds) {
  __m256i acc[kAccumulators];
  for (auto& a : acc) a = _mm256_setzero_si256();
  __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) {
      asm volatile("" : "+v"(x), "+v"(y));  // each product is computed anew
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    }
  }
  __m256i total = acc[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm256_add_epi32(total, acc[i]);
  return float(_mm_cvtsi128_si32(_mm256_castsi256_si128(total)));
}

float fp32(int64_t rounds) {
  __m256 acc[kAccumulators];
  for (auto& a : acc) a = _mm256_setzero_ps();
  __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_fmadd_ps(x, y, acc[i]);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m256 total = acc[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm256_add_ps(total, acc[i]);
  return _mm256_cvtss_f32(total);
}

}  // namespace

const ProbeLoops* probe_loops_avx2() {
  static constexpr ProbeLoops loops{"avx2", int8, nullptr, fp32, kAccumulators * 64, 0, kAccumulators * 16};
  return &loops;
}

}  // namespace forno
#else
namespace forno {
const ProbeLoops* probe_loops_avx2() { return nullptr; }
}  // namespace forno
#endif
