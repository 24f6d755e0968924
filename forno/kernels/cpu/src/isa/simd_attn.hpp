// What attention and the row ops need of vectors beyond simd.hpp: partial loads and stores, masks, powers of two.
#pragma once
#include "simd.hpp"

namespace forno {
namespace {

// The first n lanes (none if n <= 0), zeros above; memory past them is not touched.
FORNO_INLINE vf vload(const float* p, int n) {
  if (n >= kLanes) return vload(p);
  if (n <= 0) return vf{};
#if defined(FORNO_AVX512)
  return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
#else
  vf v{};
  std::memcpy(&v, p, size_t(n) * 4);
  return v;
#endif
}
FORNO_INLINE void vstore(float* p, vf v, int n) {
  if (n >= kLanes) return vstore(p, v);
#if defined(FORNO_AVX512)
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), v);
#else
  std::memcpy(p, &v, size_t(n) * 4);
#endif
}
FORNO_INLINE void vstore_bf16(uint16_t* p, vf v, int n) {
  if (n >= kLanes) return vstore_bf16(p, v);
  uint16_t t[kLanes];
  vstore_bf16(t, v);
  std::memcpy(p, t, size_t(n) * 2);
}

// Lanes [lo, hi) of v, `fill` elsewhere; lo and hi may lie outside [0, kLanes).
FORNO_INLINE vf vkeep(vf v, int lo, int hi, float fill) {
  vi lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return vselect((lane >= lo) & (lane < hi), v, vset(fill));
}

// A dword of two bf16: the low one and the high one as floats.
FORNO_INLINE vf vlow_bf16(vi pair) { return reinterpret_cast<vf>(pair << 16); }
FORNO_INLINE vf vhigh_bf16(vi pair) { return reinterpret_cast<vf>(pair & vset_words(int32_t(0xffff0000u))); }

constexpr float kLog2e = 1.44269504f;

// The polynomial with these coefficients, the highest power's first, at each x[i]. Each step is taken for all
// vectors before the next one: dozens of dependent operations in a row fill the core's window, and it finds few that are ready.
template <int N, int K>
FORNO_INLINE void vpolynomial_each(const float (&coefficients)[K], const vf (&x)[N], vf (&out)[N]) {
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) out[i] = vset(coefficients[0]);
#pragma GCC unroll 8
  for (int k = 1; k < K; ++k)
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) out[i] = vfma(out[i], x[i], vset(coefficients[k]));
}

// x[i] = 2^(n[i] + x[i]) for x in [-1/2, 1/2] and whole n in [-200, 127]. The polynomial is our own least-maximum fit of 2^x
// there, the constant term held at 1.
template <int N>
FORNO_INLINE void vpower_each(const vf (&n)[N], vf (&x)[N]) {
  constexpr float kCoefficients[] = {0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f, 0x1.62e42ap-1f, 1.0f};
  vf p[N];
  vpolynomial_each(kCoefficients, x, p);
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
#if defined(FORNO_AVX512)
    x[i] = _mm512_scalef_ps(p[i], n[i]);
#else
    // Multiplying by 2^n keeps a NaN, which adding n to the exponent bits could turn into a number.
    const vf scale = reinterpret_cast<vf>((vround_words(n[i]) + 127) << 23);
    x[i] = vselect(n[i] < vset(-126.0f), vf{}, p[i] * scale);
#endif
  }
}

// To the nearest whole number, for |x| < 2^22.
FORNO_INLINE vf vnearest(vf x) {
#if defined(FORNO_AVX512)
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return vround(x);
#endif
}

// 2^x for x <= 127 with a relative error below 3e-7: exactly 1 at 0, exactly 0 below -150; NaN stays NaN. Above 127 it
// is at least 2^127. Softmax weights in powers of two need no range reduction by ln 2, and AVX-512 scales by a power in
// one instruction.
template <int N>
FORNO_INLINE void vexp2_each(vf (&x)[N]) {
  vf n[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
#if defined(FORNO_AVX512)
    x[i] = vmax(vset(-200.0f), x[i]);
#else
    x[i] = vmax(vset(-200.0f), vmin(vset(127.0f), x[i]));
#endif
    n[i] = vnearest(x[i]);
    x[i] -= n[i];
  }
  vpower_each(n, x);
}
FORNO_INLINE vf vexp2(vf x) {
  vf one[1] = {x};
  vexp2_each(one);
  return one[0];
}

#if defined(FORNO_AVX512)
// The same for results that are rounded to bfloat16 (2e-3): a relative error of 1e-4 will do, but still exactly 1 at 0. One
// instruction takes x - floor(x) (of minus infinity 0), and the power scales by 2^floor(x): nothing is left to clamp.
template <int N>
FORNO_INLINE void vexp2_short_each(vf (&x)[N]) {
  constexpr float kCoefficients[] = {0x1.3baaaap-4f, 0x1.d23788p-3f, 0x1.63e65ap-1f, 1.0f};  // our own fit over [0, 1]
  vf f[N], p[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) f[i] = _mm512_reduce_ps(x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  vpolynomial_each(kCoefficients, f, p);
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) x[i] = _mm512_scalef_ps(p[i], x[i]);
}
#endif

// x / (1 + e^-x) with a relative error below 2e-6 from -87 on; below, something closer to zero than 1e-34. NaN stays NaN and an
// infinity infinite, for they are errors to be seen, not limits to be taken.
template <int N>
FORNO_INLINE void vsilu_each(vf (&x)[N]) {
  vf n[N], e[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    e[i] = vmax(vset(-87.0f), vmin(vset(137.0f), x[i]));
    n[i] = vnearest(e[i] * -kLog2e);
#if defined(FORNO_AVX512) || defined(FORNO_AVX2)
    e[i] = vfma(e[i], vset(-kLog2e), -n[i]);
#else  // two roundings would be too many: what n ln 2 leaves of -x, ln 2 in two parts
    e[i] = (n[i] * 2.12194440e-4f + (n[i] * -0.693359375f - e[i])) * kLog2e;
#endif
  }
  vpower_each(n, e);
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) x[i] /= 1.0f + e[i];
}

FORNO_INLINE vf vsilu(vf x) {
  vf one[1] = {x};
  vsilu_each(one);
  return one[0];
}

}  // namespace
}  // namespace forno
