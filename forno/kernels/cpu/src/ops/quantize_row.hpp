// Activations to int8 with one fp32 scale per row, what w8a8 weights read (S8_ROW of View in types.hpp).
#pragma once
#include "../isa/simd.hpp"
#include "../types.hpp"

namespace forno {
namespace {

// What the largest |x| of a row or group, given as its bits, makes of it: q = round_to_even(x * inverse), x ~= q * scale.
// A NaN or infinity makes the scale NaN, so that it reaches the logits instead of becoming a silent zero: as integers,
// the bits of |NaN| exceed those of infinity, which exceed every finite number's. What is below 2^-118 becomes zero,
// since 127 / amax would overflow or the scale be subnormal. Where it is not usable, all of q is 0.
struct S8Scale {
  float scale = 0.0f, inverse = 0.0f;
  bool usable = false;

  explicit FORNO_INLINE S8Scale(int32_t top) {
    float amax;
    std::memcpy(&amax, &top, 4);
    if (top >= 0x7f800000 || amax < 0x1p-118f) {
      if (top >= 0x7f800000) scale = __builtin_nanf("");
      return;
    }
    scale = amax / 127.0f;
    inverse = 127.0f / amax;
    usable = true;
  }
};

// Bits of |x|, to compare as integers.
FORNO_INLINE vi magnitude_bits(vf x) { return reinterpret_cast<vi>(vabs(x)); }

// A whole S8_ROW row; x(i) is the vector of columns from i on, asked for twice. width % 32 == 0.
template <class X>
FORNO_INLINE void quantize_whole_row(const View& out, int64_t row, X&& x) {
  char* p = out.data + row * out.stride;
  int8_t* q = reinterpret_cast<int8_t*>(p);
  vi bits{}, total{};
  for (int32_t i = 0; i < out.width; i += kLanes) bits = vmax(bits, magnitude_bits(x(i)));
  const S8Scale found(vmax_lane(bits));
  if (!found.usable) std::memset(q, 0, size_t(out.width));
  else
    for (int32_t i = 0; i < out.width; i += kLanes) {
      const vi v = vround_words(x(i) * found.inverse);
      vstore_s8(q + i, v);
      total += v;
    }
  const int32_t sum = vsum(total);
  std::memcpy(p + out.width, &found.scale, 4);
  std::memcpy(p + out.width + 4, &sum, 4);
}

}  // namespace
}  // namespace forno
