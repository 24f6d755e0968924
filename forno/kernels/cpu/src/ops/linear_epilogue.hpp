// What happens to a tile's sums while they are in L1: bias, silu(gate) * up or residual, and the output's dtype.
#pragma once
#include "quantize.hpp"

namespace forno {
namespace {

// 32 columns, of which `valid` exist; values beyond are computed on zeros and dropped, so that a tail's operations are
// those of a full group.
FORNO_INLINE void load_group(const float* source, int32_t valid, float* out) {
  std::memset(out, 0, kGroup * sizeof(float));
  std::memcpy(out, source, size_t(valid) * sizeof(float));
}

FORNO_INLINE void add_group(float* values, const float* source, int32_t valid) {
  float tail[kGroup];
  if (valid < kGroup) {
    load_group(source, valid, tail);
    source = tail;
  }
  for (int i = 0; i < kGroup; i += kLanes) vstore(values + i, vload(values + i) + vload(source + i));
}

FORNO_INLINE void store_group(const View& out, int64_t row, int32_t column, const float* values, int32_t valid) {
  if (out.dtype == DType::S8) {  // widths and columns are multiples of 32
    const S8Row s8 = s8_row(out, row);
    const int32_t g = column / kGroup;
    quantize_group_s8(values, s8.q + column, s8.scale + g, s8.sum + g);
    return;
  }
  char* p = out.data + row * out.stride;
  if (out.dtype == DType::BF16)
    round_row_bf16(values, valid, reinterpret_cast<uint16_t*>(p) + column);
  else
    std::memcpy(reinterpret_cast<float*>(p) + column, values, size_t(valid) * sizeof(float));
}

// sums [rows][64] hold columns [column, column + columns) of `panel`; `row0` is the first row in x.
void finish_tile(const LinearArgs& args, const LinearPart& part, int32_t panel, int32_t column, int32_t columns, int32_t row0,
                 int32_t rows, const float* sums) {
  const int32_t outputs = args.silu_mul ? part.weight->n / 2 : part.weight->n;
  for (int32_t m = 0; m < rows; ++m) {
    const int64_t row = row0 + m;
    for (int32_t c = column; c < column + columns; c += args.silu_mul ? kPanel : kGroup) {
      const int32_t local = args.silu_mul ? panel * kGroup : panel * kPanel + c;
      const int32_t valid = outputs - local < kGroup ? outputs - local : kGroup;
      if (valid <= 0) break;
      alignas(64) float values[kPanel];
      const int32_t width = args.silu_mul ? kPanel : kGroup;
      std::memcpy(values, sums + m * kPanel + c, size_t(width) * sizeof(float));
      if (part.bias) {
        add_group(values, part.bias + panel * kPanel + c, args.silu_mul ? kGroup : valid);
        if (args.silu_mul) add_group(values + kGroup, part.bias + panel * kPanel + kGroup, kGroup);
      }
      if (args.silu_mul)
        for (int i = 0; i < kGroup; i += kLanes) vstore(values + i, vsilu(vload(values + i)) * vload(values + kGroup + i));
      const int32_t out_column = part.column + local;
      if (args.residual.data)
        add_group(values, reinterpret_cast<const float*>(args.residual.data + row * args.residual.stride) + out_column, valid);
      store_group(args.out, row - args.row_begin, out_column, values, valid);
    }
  }
}

}  // namespace
}  // namespace forno
