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

// 2^x for x <= 127 with a relative error below 3e-7: exactly 1 at 0, exactly 0 below -150; NaN stays NaN. Above 127 it
// is at least 2^127. Softmax weights in powers of two need no range reduction by ln 2, and AVX-512 scales by a power in
// one instruction. The polynomial is our own least-maximum fit of 2^r on [-1/2, 1/2], the constant term held at 1.
// kForBf16: for weights that are rounded to bfloat16 (2e-3), an error of 1e-4 will do.
template <bool kForBf16 = false>
FORNO_INLINE vf vexp2(vf x) {
#if defined(FORNO_AVX512)
  x = vmax(vset(-200.0f), x);
  const vf n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = vmax(vset(-200.0f), vmin(vset(127.0f), x));
  const vf n = vround(x);
#endif
  const vf r = x - n;
  vf p;
  if constexpr (kForBf16) {
    p = vfma(vset(0x1.c2a25cp-5f), r, vset(0x1.f00c4ep-3f));
    p = vfma(p, r, vset(0x1.62f5fap-1f));
  } else {
    p = vfma(vset(0x1.5bba14p-10f), r, vset(0x1.3cea88p-7f));
    p = vfma(p, r, vset(0x1.c6b752p-5f));
    p = vfma(p, r, vset(0x1.ebf9bcp-3f));
    p = vfma(p, r, vset(0x1.62e42ap-1f));
  }
  p = vfma(p, r, vset(1.0f));
#if defined(FORNO_AVX512)
  return _mm512_scalef_ps(p, n);
#else
  // Multiplying by 2^n keeps a NaN, which adding n to the exponent bits could turn into a number.
  const vf scale = reinterpret_cast<vf>((vround_words(n) + 127) << 23);
  return vselect(n < vset(-126.0f), vf{}, p * scale);
#endif
}

}  // namespace
}  // namespace forno
