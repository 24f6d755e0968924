// Elementwise ops, and the one way an fp32 row becomes an output row of any type. Rows are independent of each other.
#pragma once
#include "../isa/simd_attn.hpp"
#include "quantize.hpp"

namespace forno {
namespace {
namespace elementwise {

FORNO_INLINE const float* row_f32(const View& v, int64_t row) {
  return reinterpret_cast<const float*>(v.data + row * v.stride);
}

// out[row][column + i] = f(i, n) for i in 0, kLanes, ... < count, where f returns a vector of which n lanes are used.
// For S8 outputs column and count are multiples of 32; for S8_ROW they are the whole row, and f is asked twice.
template <class F>
FORNO_INLINE void write_columns(const View& out, int64_t row, int32_t column, int32_t count, F&& f) {
  char* base = out.data + row * out.stride;
  if (out.dtype == DType::S8) {
    const S8Row s8 = s8_row(out, row);
    for (int32_t i = 0; i < count; i += kGroup) {
      float x[kGroup];
      for (int32_t j = 0; j < kGroup; j += kLanes) vstore(x + j, f(i + j, kLanes));
      const int32_t group = (column + i) / kGroup;
      quantize_group_s8(x, s8.q + column + i, s8.scale + group, s8.sum + group);
    }
    return;
  }
  if (out.dtype == DType::S8_ROW) return quantize_whole_row(out, row, [&](int32_t i) { return f(i, kLanes); });
  for (int32_t i = 0; i < count; i += kLanes) {
    const int n = count - i < kLanes ? count - i : kLanes;
    const vf v = f(i, n);
    if (out.dtype == DType::BF16) vstore_bf16(reinterpret_cast<uint16_t*>(base) + column + i, v, n);
    else vstore(reinterpret_cast<float*>(base) + column + i, v, n);
  }
}

}  // namespace elementwise

inline void add(const AddArgs& args, int32_t rows, Worker& worker) {
  using namespace elementwise;
  for_units(worker, rows, [&](int32_t row) {
    const float *a = row_f32(args.a, row), *b = row_f32(args.b, row);
    write_columns(args.out, row, 0, args.out.width, [&](int32_t i, int n) { return vload(a + i, n) + vload(b + i, n); });
  });
}

inline void silu_mul(const SiluMulArgs& args, int32_t rows, Worker& worker) {
  using namespace elementwise;
  for_units(worker, rows, [&](int32_t row) {
    const float *gate = row_f32(args.gate, row), *up = row_f32(args.up, row);
    write_columns(args.out, row, 0, args.out.width, [&](int32_t i, int n) {
      return vsilu(vload(gate + i, n)) * vload(up + i, n);
    });
  });
}

}  // namespace
}  // namespace forno
