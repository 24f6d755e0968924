// The integer part of a block-quantized linear: for a tile of rows x vectors of outputs, the dot products over one
// group of weights, exact, as floats. This is where the instruction sets differ; whatever they do, the result is the
// same integer, so the float operations that follow (linear_tile.hpp) are all that rounding depends on.
#pragma once
#include "linear_codec.hpp"

namespace forno {
namespace {

// Tiles: rows x vectors of kLanes outputs, by what the registers hold. A block format's tile keeps an integer and a
// float sum per row and vector (in memory, the float sums would alias with the stream of weights); a float format's
// tile only the latter.
#if defined(FORNO_AVX512)
constexpr int kTileRows = 6, kFloatVectors = 4;
constexpr int block_vectors(int rows, int parts) { return rows <= 3 ? 4 / parts : 2 / parts; }  // 24 sums of 32 registers
#else
constexpr int kTileRows = 4, kFloatVectors = 2;
constexpr int block_vectors(int rows, int) { return rows <= 2 ? 2 : 1; }  // 8 sums of 16 registers, the rest for products
#endif

FORNO_INLINE vi broadcast_word(const void* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return vset_words(word);
}

// Sums of kLanes / 4 groups of 16 bytes.
FORNO_INLINE void sum_groups_of_16(const int8_t* q, int32_t* out) {
#if defined(FORNO_AVX512)
  __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(q));
  s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_CDAB));
  s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_BADC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, s)));
#else
  for (int g = 0; g < kLanes / 4; ++g) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += q[16 * g + i];
    out[g] = sum;
  }
#endif
}

// dot[m][j] = sum over the group's weights of (code - zero) * x[m].
// `part` is the group's index in its block; q is row 0's int8 of this block, other rows `stride` bytes apart;
// start[m * pitch] is -zero * the sum of x[m] over the group.
template <class C, int R, int V>
struct GroupDot {
  static constexpr int kSteps = C::kGroup / 4;
  using Result = vf[R][V];

#if defined(FORNO_AVX512)
  // vpdpbusd: u8 codes x s8 activations into int32. Starting at -zero * sum makes the codes' offset free.
  static FORNO_INLINE void run(const uint8_t* block, int part, int column, const int8_t* q, int64_t stride,
                               const int32_t* start, int pitch, Result& dot) {
    __m512i acc[R][V];
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m) {
      const vi first = C::kZero ? broadcast_word(start + m * pitch) : vi{};
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc[m][j] = reinterpret_cast<__m512i>(first);
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      const int step = part * kSteps + s;
      __m512i w[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) w[j] = reinterpret_cast<__m512i>(C::codes(block, step, column + j * kLanes));
#pragma GCC unroll 6
      for (int m = 0; m < R; ++m) {
        const __m512i x = reinterpret_cast<__m512i>(broadcast_word(q + m * stride + step * 4));
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) acc[m][j] = _mm512_dpbusd_epi32(acc[m][j], w[j], x);
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) dot[m][j] = vfloat(reinterpret_cast<vi>(acc[m][j]));
  }

#elif defined(FORNO_AVX2)
  // vpmaddubsw adds two u8 x s8 products in int16. Codes below 64 fit several times: 15 * 127 * 2 eight times,
  // 31 * 127 * 2 four times, 63 * 127 * 2 twice. 8-bit codes lose their offset and lend their sign to x instead:
  // |w| <= 128 and 128 * 127 * 2 fits once.
  static constexpr bool kSigned = C::kBits == 8 || C::kLookup;
  static constexpr int kSafeSteps = kSigned ? 1 : C::kBits == 4 ? 8 : C::kBits == 5 ? 4 : 2;

  static FORNO_INLINE void run(const uint8_t* block, int part, int column, const int8_t* q, int64_t stride,
                               const int32_t* start, int pitch, Result& dot) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i acc[R][V];
#pragma GCC unroll 4
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j)
        acc[m][j] = kSigned || !C::kZero ? _mm256_setzero_si256() : reinterpret_cast<__m256i>(broadcast_word(start + m * pitch));
#pragma GCC unroll 1
    for (int s = 0; s < kSteps; s += kSafeSteps) {
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j) {
        __m256i pairs[R];
#pragma GCC unroll 8
        for (int t = 0; t < (kSafeSteps < kSteps ? kSafeSteps : kSteps); ++t) {
          const int step = part * kSteps + s + t;
          __m256i w = reinterpret_cast<__m256i>(C::codes(block, step, column + j * kLanes));
          if constexpr (kSigned) w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
          const __m256i magnitude = kSigned ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 4
          for (int m = 0; m < R; ++m) {
            __m256i x = reinterpret_cast<__m256i>(broadcast_word(q + m * stride + step * 4));
            if constexpr (kSigned) x = _mm256_sign_epi8(x, w);
            const __m256i product = _mm256_maddubs_epi16(magnitude, x);
            pairs[m] = t == 0 ? product : _mm256_add_epi16(pairs[m], product);
          }
        }
#pragma GCC unroll 4
        for (int m = 0; m < R; ++m) acc[m][j] = _mm256_add_epi32(acc[m][j], _mm256_madd_epi16(pairs[m], ones));
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j) dot[m][j] = vfloat(reinterpret_cast<vi>(acc[m][j]));
  }

#else
  // Float products of small integers: every partial sum is below 2^24, so they are exact.
  static FORNO_INLINE void run(const uint8_t* block, int part, int column, const int8_t* q, int64_t stride,
                               const int32_t*, int, Result& dot) {
    for (int m = 0; m < R; ++m)
      for (int j = 0; j < V; ++j) dot[m][j] = vf{};
    for (int s = 0; s < kSteps; ++s) {
      const int step = part * kSteps + s;
      vi w[V];
      for (int j = 0; j < V; ++j) w[j] = C::codes(block, step, column + j * kLanes);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < V; ++j) {
          const vf weight = vfloat((w[j] >> 8 * i & 255) - C::kZero);
          for (int m = 0; m < R; ++m) dot[m][j] += weight * float(q[m * stride + step * 4 + i]);
        }
    }
  }
#endif
};

}  // namespace
}  // namespace forno
