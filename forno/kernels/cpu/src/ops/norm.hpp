// RMS norm over whole rows or over groups of columns (a head each).
#pragma once
#include "elementwise.hpp"

namespace forno {
namespace {
namespace norm {

// 1 / sqrt(mean(x^2) + eps). Four running sums, folded in a fixed order.
FORNO_INLINE float inverse_rms(const float* x, int32_t n, float eps) {
  vf sum[4] = {};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const vf v = vload(x + i + j * kLanes);
      sum[j] = sum[j] + v * v;
    }
  for (; i < n; i += kLanes) {
    const vf v = vload(x + i, n - i);
    sum[0] = sum[0] + v * v;
  }
  const float total = vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  return 1.0f / __builtin_sqrtf(total / float(n) + eps);
}

FORNO_INLINE vf scaled(const float* x, const float* weight, vf inverse, int n) {
  return vload(x, n) * inverse * vload(weight, n);
}

}  // namespace norm

inline void rms_norm(const RmsNormArgs& args, int32_t rows, Worker& worker) {
  using namespace norm;
  const int32_t group = args.group ? args.group : args.x.width;
  for_units(worker, rows, [&](int32_t row) {
    for (int32_t column = 0; column < args.x.width; column += group) {
      const float* x = elementwise::row_f32(args.x, row) + column;
      const vf inverse = vset(inverse_rms(x, group, args.eps));
      elementwise::write_columns(args.out, row, column, group,
                                 [&](int32_t i, int n) { return scaled(x + i, args.weight + i, inverse, n); });
    }
  });
}

}  // namespace
}  // namespace forno
