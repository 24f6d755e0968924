// Activations to int8 with an fp32 scale per group of 32 or per row, or to bfloat16. The row helpers are the epilogues of every
// op whose output a block-quantized linear reads, so one definition serves them all.
#pragma once
#include "../isa/simd.hpp"
#include "../work.hpp"
#include "quantize_row.hpp"

namespace forno {
namespace {

constexpr int32_t kGroup = 32;

// One S8 row, taken apart (layout: View in types.hpp).
struct S8Row {
  int8_t* q;
  float* scale;
  int32_t* sum;
};

FORNO_INLINE S8Row s8_row(const View& v, int64_t row) {
  char* p = v.data + row * v.stride;
  return {reinterpret_cast<int8_t*>(p), reinterpret_cast<float*>(p + v.width),
          reinterpret_cast<int32_t*>(p + v.width + v.width / kGroup * 4)};
}

// x[0..32) to q, scale and sum of q, by the rule of S8Scale.
FORNO_INLINE void quantize_group_s8(const float* x, int8_t* q, float* scale, int32_t* sum) {
  vi bits{}, total{};
  for (int i = 0; i < kGroup; i += kLanes) bits = vmax(bits, magnitude_bits(vload(x + i)));
  const S8Scale found(vmax_lane(bits));
  if (!found.usable) std::memset(q, 0, kGroup);
  else
    for (int i = 0; i < kGroup; i += kLanes) {
      const vi v = vround_words(vload(x + i) * found.inverse);
      vstore_s8(q + i, v);
      total += v;
    }
  *scale = found.scale;
  *sum = vsum(total);
}

// Bytes from one group's q, scale and sum to the next one's.
struct S8Steps {
  int64_t q, scale, sum;

  FORNO_INLINE S8Row at(const S8Row& first, int64_t i) const {
    return {first.q + i * q, reinterpret_cast<float*>(reinterpret_cast<char*>(first.scale) + i * scale),
            reinterpret_cast<int32_t*>(reinterpret_cast<char*>(first.sum) + i * sum)};
  }
};

// The same for up to kLanes groups, `pitch` floats apart; `out` is the first one's. What is one number per group, two divisions
// among them, is done for all at once.
inline void quantize_few_groups_s8(const float* x, int64_t pitch, int32_t count, const S8Row& out, const S8Steps& steps) {
  vi lanes[kLanes] = {};
  for (int32_t g = 0; g < count; ++g)
    for (int i = 0; i < kGroup; i += kLanes) lanes[g] = vmax(lanes[g], magnitude_bits(vload(x + g * pitch + i)));
  const vi top = vfold(lanes, [](vi a, vi b) { return vmax(a, b); });
  const vf amax = reinterpret_cast<vf>(top);
  const vi finite = top < 0x7f800000, nonzero = amax >= vset(0x1p-118f);
  alignas(64) float inverse[kLanes], scale[kLanes];
  alignas(64) int32_t sum[kLanes];
  vstore(inverse, vselect(nonzero, vset(127.0f) / amax, vf{}));
  vstore(scale, vselect(finite, vselect(nonzero, amax / vset(127.0f), vf{}), vset(__builtin_nanf(""))));
  const bool faults = vmax_lane(top) >= 0x7f800000;
  for (int32_t g = 0; g < count; ++g) {
    lanes[g] = vi{};
    int8_t* q = out.q + g * steps.q;
    if (faults && !finite[g]) {
      std::memset(q, 0, kGroup);
      continue;
    }
    for (int i = 0; i < kGroup; i += kLanes) {
      const vi v = vround_words(vload(x + g * pitch + i) * inverse[g]);
      vstore_s8(q + i, v);
      lanes[g] += v;
    }
  }
  vstore_words(sum, vfold(lanes, [](vi a, vi b) { return a + b; }));
  for (int32_t g = 0; g < count; ++g) {
    const S8Row group = steps.at(out, g);
    *group.scale = scale[g];
    *group.sum = sum[g];
  }
}

// The same for any number of groups.
inline void quantize_groups_s8(const float* x, int64_t pitch, int32_t count, const S8Row& out, const S8Steps& steps) {
  for (int32_t g = 0; g < count; g += kLanes) {
    const int32_t n = count - g < kLanes ? count - g : kLanes;
    const S8Row group = steps.at(out, g);
    if (n == 1) quantize_group_s8(x + g * pitch, group.q, group.scale, group.sum);
    else quantize_few_groups_s8(x + g * pitch, pitch, n, group, steps);
  }
}

// width % 32 == 0.
inline void quantize_row_s8(const float* x, int32_t width, const S8Row& out) {
  quantize_groups_s8(x, kGroup, width / kGroup, out, {kGroup, 4, 4});
}

// Any width.
FORNO_INLINE void round_row_bf16(const float* x, int32_t width, uint16_t* out) {
  int32_t i = 0;
  for (; i + kLanes <= width; i += kLanes) vstore_bf16(out + i, vload(x + i));
  if (i == width) return;
  float tail[kLanes] = {};
  uint16_t rounded[kLanes];
  std::memcpy(tail, x + i, sizeof(float) * size_t(width - i));
  vstore_bf16(rounded, vload(tail));
  std::memcpy(out + i, rounded, sizeof(uint16_t) * size_t(width - i));
}

// One row of any output dtype from its float values: what a producer with a fused quantization ends with.
inline void store_row(const View& out, int64_t row, const float* x) {
  char* p = out.data + row * out.stride;
  if (out.dtype == DType::S8)
    quantize_row_s8(x, out.width, s8_row(out, row));
  else if (out.dtype == DType::S8_ROW)
    quantize_whole_row(out, row, [&](int32_t i) { return vload(x + i); });
  else if (out.dtype == DType::BF16)
    round_row_bf16(x, out.width, reinterpret_cast<uint16_t*>(p));
  else if (reinterpret_cast<const char*>(x) != p)
    std::memcpy(p, x, sizeof(float) * size_t(out.width));
}

void quantize(const QuantizeArgs& args, int32_t rows, Worker& worker) {
  for_units(worker, rows, [&](int32_t r) {
    store_row(args.out, r, reinterpret_cast<const float*>(args.x.data + r * args.x.stride));
  });
}

}  // namespace
}  // namespace forno
