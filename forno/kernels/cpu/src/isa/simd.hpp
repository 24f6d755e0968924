// Vectors of floats, `vf`, and of 32-bit integers, `vi`: 16, 8 or 4 lanes, by instruction set. The types are the
// compiler's vector extensions, so + - * / < & | >> and casts between them (bits kept) just work; this file adds what
// operators cannot say. Everything has internal linkage: no build unit shares code with another.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(FORNO_AVX512) || defined(FORNO_AVX2)
#include <immintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // these two: false alarms inside GCC's own intrinsics (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define FORNO_INLINE inline __attribute__((always_inline))

namespace forno {
namespace {

#if defined(FORNO_AVX512)
constexpr int kLanes = 16;
#elif defined(FORNO_AVX2)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes)));
typedef float vf_memory __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t vi_memory __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));

FORNO_INLINE vf vload(const float* p) { return *reinterpret_cast<const vf_memory*>(p); }
FORNO_INLINE void vstore(float* p, vf x) { *reinterpret_cast<vf_memory*>(p) = x; }
FORNO_INLINE vi vload_words(const void* p) { return *reinterpret_cast<const vi_memory*>(p); }
// The first `count` words; zeros beyond, which are not read.
FORNO_INLINE vi vload_words(const void* p, int32_t count) {
  if (count >= kLanes) return vload_words(p);
#if defined(FORNO_AVX512)
  return reinterpret_cast<vi>(_mm512_maskz_loadu_epi32(__mmask16((1u << count) - 1), p));
#else
  vi x{};
  std::memcpy(&x, p, size_t(count) * 4);
  return x;
#endif
}
FORNO_INLINE void vstore_words(void* p, vi x) { *reinterpret_cast<vi_memory*>(p) = x; }
FORNO_INLINE vf vset(float x) { return x - vf{}; }
FORNO_INLINE vi vset_words(int32_t x) { return x - vi{}; }

// Lane-wise choice. vmax and vmin return the second argument where either is NaN, as x86 does.
FORNO_INLINE vf vselect(vi mask, vf yes, vf no) { return mask ? yes : no; }
// (Spelt out for the vectors GCC would compare and then blend.)
FORNO_INLINE vf vmax(vf a, vf b) {
#if defined(FORNO_AVX512)
  return _mm512_max_ps(a, b);
#elif defined(FORNO_AVX2)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
FORNO_INLINE vf vmin(vf a, vf b) {
#if defined(FORNO_AVX512)
  return _mm512_min_ps(a, b);
#elif defined(FORNO_AVX2)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
FORNO_INLINE vi vmax(vi a, vi b) { return a > b ? a : b; }
FORNO_INLINE vf vabs(vf a) { return reinterpret_cast<vf>(reinterpret_cast<vi>(a) & 0x7fffffff); }
FORNO_INLINE vf vfloat(vi a) { return __builtin_convertvector(a, vf); }

// a * b + c: one rounding where the machine has FMA, two in the portable build (a software fma would be far slower).
FORNO_INLINE vf vfma(vf a, vf b, vf c) {
#if defined(FORNO_AVX512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(FORNO_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// Sum and maximum over the lanes, always as the same tree: halves onto halves.
template <class V, class T, class F>
FORNO_INLINE T vreduce(V x, F combine) {
  T lane[kLanes];
  std::memcpy(lane, &x, sizeof x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = combine(lane[i], lane[i + half]);
  return lane[0];
}
FORNO_INLINE float vsum(vf x) {
#if defined(FORNO_AVX512)
  return _mm512_reduce_add_ps(x);
#else
  return vreduce<vf, float>(x, [](float a, float b) { return a + b; });
#endif
}
FORNO_INLINE int32_t vsum(vi x) {
#if defined(FORNO_AVX512)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x));
#else
  return vreduce<vi, int32_t>(x, [](int32_t a, int32_t b) { return a + b; });
#endif
}
FORNO_INLINE float vmax_lane(vf x) {
#if defined(FORNO_AVX512)
  return _mm512_reduce_max_ps(x);
#else
  return vreduce<vf, float>(x, [](float a, float b) { return a > b ? a : b; });
#endif
}
FORNO_INLINE int32_t vmax_lane(vi x) {
#if defined(FORNO_AVX512)
  return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(x));
#else
  return vreduce<vi, int32_t>(x, [](int32_t a, int32_t b) { return a > b ? a : b; });
#endif
}

// Round to nearest even for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
constexpr float kRound = 12582912.0f;
FORNO_INLINE vf vround(vf x) { return (x + kRound) - kRound; }
FORNO_INLINE vi vround_words(vf x) { return reinterpret_cast<vi>(x + kRound) - 0x4b400000; }

// The low bytes of the lanes: lanes hold values in [-128, 127].
FORNO_INLINE void vstore_s8(int8_t* p, vi x) {
#if defined(FORNO_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
#else
  typedef int8_t bytes __attribute__((vector_size(kLanes)));
  const bytes b = __builtin_convertvector(x, bytes);
  std::memcpy(p, &b, sizeof b);
#endif
}
FORNO_INLINE vi vload_s8(const int8_t* p) {
#if defined(FORNO_AVX512)
  return reinterpret_cast<vi>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(FORNO_AVX2)
  return reinterpret_cast<vi>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return vi{p[0], p[1], p[2], p[3]};
#endif
}
FORNO_INLINE vi vload_u8(const uint8_t* p) { return vload_s8(reinterpret_cast<const int8_t*>(p)) & 255; }

// a0 b0 a1 b1 ... of the lower halves, and of the upper halves.
#if defined(FORNO_AVX512)
FORNO_INLINE vi vinterleave_low(vi a, vi b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
FORNO_INLINE vi vinterleave_high(vi a, vi b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(FORNO_AVX2)
FORNO_INLINE vi vinterleave_low(vi a, vi b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
FORNO_INLINE vi vinterleave_high(vi a, vi b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
FORNO_INLINE vi vinterleave_low(vi a, vi b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
FORNO_INLINE vi vinterleave_high(vi a, vi b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// Lane i becomes f folded over the lanes of x[i]; f is associative and commutative. A third of the instructions of
// folding them one by one, and no chain of them. `x` is used up.
template <class F>
FORNO_INLINE vi vfold(vi (&x)[kLanes], F f) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) x[i] = f(vinterleave_low(x[i], x[i + half]), vinterleave_high(x[i], x[i + half]));
  return x[0];
}

// Lane j of x[i] and lane i of x[j] change places.
FORNO_INLINE void vtranspose(vi (&x)[kLanes]) {
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    vi y[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      y[2 * i] = vinterleave_low(x[i], x[i + kLanes / 2]);
      y[2 * i + 1] = vinterleave_high(x[i], x[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }
}

// bfloat16, rounded to nearest even; NaN stays NaN.
FORNO_INLINE vi vbf16_bits(vf x) {
  const vu u = reinterpret_cast<vu>(x);
  const vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const vi nan = (reinterpret_cast<vi>(u) & 0x7fffffff) > 0x7f800000;
  return (nan & reinterpret_cast<vi>((u >> 16) | 0x40)) | (~nan & reinterpret_cast<vi>(rounded));
}
FORNO_INLINE void vstore_bf16(uint16_t* p, vf x) {
  const vi bits = vbf16_bits(x);
#if defined(FORNO_AVX512)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(bits)));
#else
  typedef uint16_t halves __attribute__((vector_size(2 * kLanes)));
  const halves h = __builtin_convertvector(bits, halves);
  std::memcpy(p, &h, sizeof h);
#endif
}
FORNO_INLINE vf vload_bf16(const uint16_t* p) {
#if defined(FORNO_AVX512)
  return reinterpret_cast<vf>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
#elif defined(FORNO_AVX2)
  return reinterpret_cast<vf>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
#else
  return reinterpret_cast<vf>(vi{p[0], p[1], p[2], p[3]} << 16);
#endif
}

// IEEE half to float by integer arithmetic alone, so that subnormal halves survive DAZ (see also packed.cpp).
FORNO_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 0) {
    const float small = float(int32_t(mantissa)) * 0x1p-24f;
    std::memcpy(&bits, &small, 4);
  } else {
    bits = (exponent == 31 ? 0xffu << 23 : (exponent + 112) << 23) | mantissa << 13;
  }
  bits |= sign;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
FORNO_INLINE vf vload_f16(const void* p) {
#if defined(FORNO_AVX512)
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#elif defined(FORNO_AVX2)
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#else
  uint16_t h[kLanes];
  std::memcpy(h, p, sizeof h);
  return vf{half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
#endif
}

}  // namespace
}  // namespace forno
