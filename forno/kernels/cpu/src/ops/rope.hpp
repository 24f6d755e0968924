// Rotary position embedding: pairs (i, i + rope_dim / 2) of each head turn by their position's angles.
#pragma once
#include "elementwise.hpp"

namespace forno {
namespace {
namespace rotary {

// One head; `out` may be `x`. Columns past rope_dim are copied.
FORNO_INLINE void rotate_head(const float* x, float* out, int32_t head_dim, int32_t rope_dim, const float* cos_sin) {
  const int32_t half = rope_dim / 2;
  for (int32_t i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? half - i : kLanes;
    const vf c = vload(cos_sin + i, n), s = vload(cos_sin + half + i, n);
    const vf a = vload(x + i, n), b = vload(x + half + i, n);
    vstore(out + i, a * c - b * s, n);
    vstore(out + half + i, b * c + a * s, n);
  }
  if (out != x && rope_dim < head_dim)
    __builtin_memcpy(out + rope_dim, x + rope_dim, size_t(head_dim - rope_dim) * 4);
}

}  // namespace rotary

inline void rope(const RopeArgs& args, const Step& step, Worker& worker) {
  for_units(worker, step.num_rows, [&](int32_t row) {
    const float* angles = args.cos_sin + int64_t(step.positions[row]) * args.rope_dim;
    const float* x = elementwise::row_f32(args.x, row);
    float* out = reinterpret_cast<float*>(args.out.data + row * args.out.stride);
    for (int32_t h = 0; h < args.heads; ++h)
      rotary::rotate_head(x + h * args.head_dim, out + h * args.head_dim, args.head_dim, args.rope_dim, angles);
  });
}

}  // namespace
}  // namespace forno
