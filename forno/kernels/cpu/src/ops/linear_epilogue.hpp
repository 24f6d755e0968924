// What happens to a tile's sums while they are in L1: bias, silu(gate) * up or residual, and the output's dtype.
#pragma once
#include "../isa/simd_attn.hpp"
#include "../packed.hpp"
#include "quantize.hpp"

namespace forno {
namespace {

// 32 columns of a row in registers: the unit of every step here, since s8 groups have 32 columns.
struct Group {
  static constexpr int kVectors = kGroup / kLanes;
  vf v[kVectors];
};

FORNO_INLINE Group load_group(const float* p) {
  Group g;
#pragma GCC unroll 8
  for (int i = 0; i < Group::kVectors; ++i) g.v[i] = vload(p + i * kLanes);
  return g;
}

FORNO_INLINE void store_group(float* p, const Group& g) {
#pragma GCC unroll 8
  for (int i = 0; i < Group::kVectors; ++i) vstore(p + i * kLanes, g.v[i]);
}

// The first `valid` columns; zeros beyond, so that a tail goes through the operations of a full group.
FORNO_INLINE Group load_group(const float* p, int32_t valid) {
  if (valid == kGroup) return load_group(p);
  float padded[kGroup] = {};
  std::memcpy(padded, p, size_t(valid) * sizeof(float));
  return load_group(padded);
}

FORNO_INLINE Group add(const Group& a, const Group& b) {
  Group sum;
#pragma GCC unroll 8
  for (int i = 0; i < Group::kVectors; ++i) sum.v[i] = a.v[i] + b.v[i];
  return sum;
}

// 32 columns of gate and 32 of up in each of N rows of sums become 32 of silu(gate) * up, in place of gate.
template <int N>
FORNO_INLINE void silu_times_up(float* sums, const float* bias) {
  constexpr int kVectors = Group::kVectors;
  vf gate[N * kVectors];
#pragma GCC unroll 64
  for (int i = 0; i < N * kVectors; ++i) {
    const int column = i % kVectors * kLanes;
    gate[i] = vload(sums + i / kVectors * kPanel + column);
    if (bias) gate[i] += vload(bias + column);
  }
  vsilu_each(gate);
#pragma GCC unroll 64
  for (int i = 0; i < N * kVectors; ++i) {
    const int column = i % kVectors * kLanes;
    float* row = sums + i / kVectors * kPanel;
    vf up = vload(row + kGroup + column);
    if (bias) up += vload(bias + kGroup + column);
    vstore(row + column, gate[i] * up);
  }
}

FORNO_INLINE void write_group(const View& out, int64_t row, int32_t column, const Group& g, int32_t valid) {
  char* p = out.data + row * out.stride;
  if (out.dtype == DType::F32 && valid == kGroup) return store_group(reinterpret_cast<float*>(p) + column, g);
  alignas(64) float values[kGroup];
  store_group(values, g);
  if (out.dtype == DType::F32) {
    std::memcpy(reinterpret_cast<float*>(p) + column, values, size_t(valid) * sizeof(float));
  } else if (out.dtype == DType::BF16) {
    round_row_bf16(values, valid, reinterpret_cast<uint16_t*>(p) + column);
  } else {  // widths and columns are multiples of 32
    const S8Row s8 = s8_row(out, row);
    const int32_t group = column / kGroup;
    quantize_group_s8(values, s8.q + column, s8.scale + group, s8.sum + group);
  }
}

// Asks for a line in a state that can be written: another worker may have written it last.
FORNO_INLINE void fetch_to_write(const char* p) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(*p));
#else
  __builtin_prefetch(p, 1, 3);
#endif
}

// Asks for what finish_tile or finish_gate_up will write, while the tile is computed. (A residual is mostly the same.)
inline void fetch_outputs(const LinearArgs& args, const LinearPart& part, int32_t panel, int32_t column, int32_t columns,
                          int32_t row0, int32_t rows) {
  const int size = args.out.dtype == DType::F32 ? 4 : args.out.dtype == DType::BF16 ? 2 : 1;
  const int32_t first = part.column + (args.silu_mul ? panel * kGroup : panel * kPanel + column);
  int32_t width = args.silu_mul ? kGroup : columns;
  if (width > args.out.width - first) width = args.out.width - first;
  for (int32_t m = 0; m < rows; ++m) {
    const char* p = args.out.data + (row0 + m - args.row_begin) * args.out.stride;
    for (int32_t i = first * size; i < (first + width) * size; i += 64) fetch_to_write(p + i);
  }
}

// The common case of finish_tile: 32 columns of an fp32 output, all of them there.
FORNO_INLINE void finish_f32_group(const LinearArgs& args, int32_t column, int32_t row0, int32_t rows, const Group* bias,
                                   const float* sums) {
  const int64_t out_stride = args.out.stride, residual_stride = args.residual.stride;
  char* out = args.out.data + (row0 - args.row_begin) * out_stride + column * 4;
  const char* residual = args.residual.data ? args.residual.data + row0 * residual_stride + column * 4 : nullptr;
  for (int32_t m = 0; m < rows; ++m, sums += kPanel, out += out_stride) {
    Group g = load_group(sums);
    if (bias) g = add(g, *bias);
    if (residual) {
      g = add(g, load_group(reinterpret_cast<const float*>(residual)));
      residual += residual_stride;
    }
    store_group(reinterpret_cast<float*>(out), g);
  }
}

// Columns of a panel in groups of 32. sums [rows][64] belong to rows row0, row0 + 1, ... of x.
void finish_tile(const LinearArgs& args, const LinearPart& part, int32_t panel, int32_t column, int32_t columns, int32_t row0,
                 int32_t rows, const float* sums) {
  for (int32_t c = column; c < column + columns; c += kGroup) {
    const int32_t local = panel * kPanel + c;
    const int32_t valid = part.weight->n - local < kGroup ? part.weight->n - local : kGroup;
    if (valid <= 0) return;
    const int32_t out_column = part.column + local;
    const Group bias = part.bias ? load_group(part.bias + local, valid) : Group{};
    if (args.out.dtype == DType::F32 && valid == kGroup) {
      finish_f32_group(args, out_column, row0, rows, part.bias ? &bias : nullptr, sums + c);
      continue;
    }
    for (int32_t m = 0; m < rows; ++m) {
      const int64_t row = row0 + m;
      Group g = load_group(sums + m * kPanel + c);
      if (part.bias) g = add(g, bias);
      if (args.residual.data) {
        const char* residual = args.residual.data + row * args.residual.stride;
        g = add(g, load_group(reinterpret_cast<const float*>(residual) + out_column, valid));
      }
      write_group(args.out, row - args.row_begin, out_column, g, valid);
    }
  }
}

// A whole interleaved panel: 32 columns of gate, 32 of up; so is its bias, padded.
void finish_gate_up(const LinearArgs& args, const LinearPart& part, int32_t panel, int32_t row0, int32_t rows, float* sums) {
  const int32_t local = panel * kGroup, outputs = part.weight->n / 2;
  const int32_t valid = outputs - local < kGroup ? outputs - local : kGroup;
  const float* bias = part.bias ? part.bias + panel * kPanel : nullptr;
  constexpr int kTogether = 8 / Group::kVectors > 1 ? 8 / Group::kVectors : 1;  // rows: 8 vectors, if a row has fewer
  int32_t done = 0;
  for (; done + kTogether <= rows; done += kTogether) silu_times_up<kTogether>(sums + done * kPanel, bias);
  for (; done < rows; ++done) silu_times_up<1>(sums + done * kPanel, bias);
  if (args.out.dtype == DType::S8 && !args.residual.data) {
    const S8Row first = s8_row(args.out, row0 - args.row_begin);
    const int32_t column = part.column + local, group = column / kGroup;
    const int64_t stride = args.out.stride;
    return quantize_groups_s8(sums, kPanel, rows, {first.q + column, first.scale + group, first.sum + group}, {stride, stride, stride});
  }
  for (int32_t m = 0; m < rows; ++m) {
    const int64_t row = row0 + m;
    Group g = load_group(sums + m * kPanel);
    if (args.residual.data) {
      const char* residual = args.residual.data + row * args.residual.stride;
      g = add(g, load_group(reinterpret_cast<const float*>(residual) + part.column + local, valid));
    }
    write_group(args.out, row - args.row_begin, part.column + local, g, valid);
  }
}

}  // namespace
}  // namespace forno
