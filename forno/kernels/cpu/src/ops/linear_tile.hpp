// Tiles: R rows x up to 64 outputs of one panel, over a slice of K, added to float sums in memory.
//
// The invariant: what happens to the sum of one (row, output) is the same sequence of float operations whatever R, the
// columns, the slicing or the source of the codes (packed or expanded). For block formats, per group of weights:
//   sum = fma(dot, scale_w * scale_x, sum), and then, with minimums, sum = fma(min, float(sum_x) * scale_x, sum);
// for float formats, per weight: sum = fma(w, x, sum) in order of K (bf16 on AVX-512: per pair, by vdpbf16ps).
#pragma once
#include "linear_dot.hpp"
#include "quantize.hpp"

namespace forno {
namespace {

// One call's data. `weights` and `x` are at the slice's first weight.
struct TileArgs {
  const uint8_t* weights;
  const char* x;         // row 0: int8, bf16 or float values at the slice's first weight
  const char* x_scale;   // S8: row 0's scale of the slice's first group; its int32 sum is sum_offset bytes on
  int64_t sum_offset;
  int64_t stride;        // bytes between rows of x
  int32_t count;         // blocks of 32, or weights of a float format
  int32_t column, columns;
  float* sums;           // [R][64]
};
using TileFn = void (*)(const TileArgs&);

constexpr int32_t kSliceBlocks = 64;                     // blocks per slice: an expanded slice stays well inside L2
constexpr int32_t kSliceWeights = kSliceBlocks * kBlock;  // the same for float formats; even, so pairs stay whole

// How far ahead of the reads memory is asked for when a tile has so few rows that memory sets the pace.
constexpr int kPrefetchBytes = 2048;
constexpr int kPrefetchRows = 3;

FORNO_INLINE void prefetch_block(const uint8_t* p, int bytes) {
#pragma GCC unroll 40
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + kPrefetchBytes + i, 0, 3);
}

// Sums of the 16-weight groups, for formats that scale each by itself: S8 rows hold sums of 32.
template <int R>
FORNO_INLINE void sum_halves(const int8_t* q, int64_t stride, int32_t (&sums)[2][R]) {
  for (int m = 0; m < R; ++m)
    for (int h = 0; h < 2; ++h) {
      int32_t s = 0;
      for (int i = 0; i < 16; ++i) s += q[m * stride + h * 16 + i];
      sums[h][m] = s;
    }
}

template <class C, int R, int V>
void tile_blocks(const TileArgs& args) {
  const int8_t* q = reinterpret_cast<const int8_t*>(args.x);
  const char* scale = args.x_scale;
  const uint8_t* block = args.weights;
  const uint8_t* header = block;
  const int64_t stride = args.stride;
  for (int32_t b = 0; b < args.count; ++b, q += kBlock, scale += 4, block += C::kBlockBytes) {
    if (C::kHeaderBytes && b % kSuperBlocks == 0) {
      header = block;
      block += C::kHeaderBytes;
    }
    if constexpr (R <= kPrefetchRows) prefetch_block(block, C::kBlockBytes);
    int32_t halves[2][R];
    if constexpr (C::kGroup == 16) sum_halves<R>(q, stride, halves);
    const int32_t* sum[R];
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m) sum[m] = reinterpret_cast<const int32_t*>(scale + args.sum_offset + m * stride);
    for (int c = args.column; c < args.column + args.columns; c += V * kLanes) {
#pragma GCC unroll 2
      for (int part = 0; part < kBlock / C::kGroup; ++part) {
        if constexpr (C::kGroup == 16)
          for (int m = 0; m < R; ++m) sum[m] = &halves[part][m];
        vf dot[R][V];
        GroupDot<C, R, V>::run(block, part, c, q, stride, sum, dot);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) {
          const int column = c + j * kLanes;
          const vf w_scale = C::scale(block, header, part, column);
          vf minimum{};
          if constexpr (C::kMin) minimum = C::minimum(block, header, column);
#pragma GCC unroll 6
          for (int m = 0; m < R; ++m) {
            const float x_scale = *reinterpret_cast<const float*>(scale + m * stride);
            float* out = args.sums + m * kPanel + column;
            vf total = vfma(dot[m][j], w_scale * x_scale, vload(out));
            if constexpr (C::kMin) total = vfma(minimum, vset(float(*sum[m]) * x_scale), total);
            vstore(out, total);
          }
        }
      }
    }
  }
}

// Float formats. Sums stay in registers over the slice.
template <Format F, int R, int V>
void tile_floats(const TileArgs& args) {
  constexpr bool kPairs = F == Format::BF16;
  constexpr int kLine = F == Format::F16 ? 2 * kPanel : 4 * kPanel;  // bytes per weight, or pair of weights, of K
  const int32_t steps = kPairs ? (args.count + 1) / 2 : args.count;
  for (int c = args.column; c < args.column + args.columns; c += V * kLanes) {
    vf acc[R][V];
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc[m][j] = vload(args.sums + m * kPanel + c + j * kLanes);
    const uint8_t* w = args.weights + c * (kLine / kPanel);
    for (int32_t s = 0; s < steps; ++s, w += kLine) {
      if constexpr (R <= kPrefetchRows)
        for (int j = 0; j < V * kLanes * kLine / kPanel; j += 64) __builtin_prefetch(w + kPrefetchBytes + j, 0, 3);
      const bool last_odd = kPairs && 2 * s + 1 == args.count;  // the pair's second weight is padding; x has none
#pragma GCC unroll 6
      for (int m = 0; m < R; ++m) {
        const char* x = args.x + m * args.stride + 4 * s;  // 4 bytes: a float, or a pair of bf16
        uint32_t bits = 0;
        std::memcpy(&bits, x, last_odd ? 2 : 4);
        float first, second = 0;
        const uint32_t first_bits = kPairs ? bits << 16 : bits, second_bits = bits & 0xffff0000u;
        std::memcpy(&first, &first_bits, 4);
        if (kPairs) std::memcpy(&second, &second_bits, 4);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) {
          const uint8_t* p = w + j * kLanes * (kLine / kPanel);
          if constexpr (F == Format::F32) acc[m][j] = vfma(vload(reinterpret_cast<const float*>(p)), vset(first), acc[m][j]);
          if constexpr (F == Format::F16) acc[m][j] = vfma(vload_f16(p), vset(first), acc[m][j]);
          if constexpr (F == Format::BF16) {
            const vi pair = vload_words(p);
#if defined(FORNO_AVX512)
            acc[m][j] = _mm512_dpbf16_ps(acc[m][j], reinterpret_cast<__m512bh>(pair),
                                         reinterpret_cast<__m512bh>(vset_words(int32_t(bits))));
#else
            acc[m][j] = vfma(reinterpret_cast<vf>(pair << 16), vset(first), acc[m][j]);
            acc[m][j] = vfma(reinterpret_cast<vf>(pair & int32_t(0xffff0000u)), vset(second), acc[m][j]);
#endif
          }
        }
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) vstore(args.sums + m * kPanel + c + j * kLanes, acc[m][j]);
  }
}

// The tile functions of one codec or float format by number of rows; index 0 is unused.
template <class C, int V>
struct BlockTiles {
  static TileFn of(int rows) {
    static constexpr TileFn table[] = {nullptr,
                                       tile_blocks<C, 1, V>,
                                       tile_blocks<C, 2, V>,
                                       tile_blocks<C, 3, V>,
                                       tile_blocks<C, 4, V>,
#if defined(FORNO_AVX512)
                                       tile_blocks<C, 5, V>,
                                       tile_blocks<C, 6, V>
#endif
    };
    return table[rows];
  }
};
template <Format F, int V>
struct FloatTiles {
  static TileFn of(int rows) {
    static constexpr TileFn table[] = {nullptr,
                                       tile_floats<F, 1, V>,
                                       tile_floats<F, 2, V>,
                                       tile_floats<F, 3, V>,
                                       tile_floats<F, 4, V>,
#if defined(FORNO_AVX512)
                                       tile_floats<F, 5, V>,
                                       tile_floats<F, 6, V>
#endif
    };
    return table[rows];
  }
};

}  // namespace
}  // namespace forno
