// Tiles: R rows x up to 64 outputs of one panel, over a slice of K, added to float sums in memory.
//
// The invariant: what happens to the sum of one (row, output) is the same sequence of float operations whatever R, the
// columns, the slicing or the source of the codes (packed or expanded). For block formats, per block of weights:
//   sum = fma(dot, scale_w * scale_x, sum), and then, with minimums, sum = fma(min, float(sum_x) * scale_x, sum);
//   with a scale for each half, sum = fma(fma(dot_1, scale_w1, dot_0 * scale_w0), scale_x, sum);
// for float formats, per weight: sum = fma(w, x, sum) in order of K (bf16 on AVX-512: per pair, by vdpbf16ps).
#pragma once
#include "linear_dot.hpp"
#include "page_fetch.hpp"
#include "quantize.hpp"

namespace forno {
namespace {

// One call's data. `weights` and `x` are at the slice's first weight.
struct TileArgs {
  const uint8_t* weights;
  const char* x;         // row 0: int8, bf16 or float values at the slice's first weight
  const char* x_scale;   // S8: row 0's scale of the slice's first group
  int64_t stride;        // bytes between rows of x
  const int32_t* terms;  // S8: row 0's RowTerms
  int32_t count;         // blocks of 32, or weights of a float format
  int32_t column, columns;
  bool prefetch;         // the first tile of a unit: its weights are likely in memory, for later ones in cache
  const uint8_t* next;   // what this worker reads after the slice, from next_column on; null: nothing to fetch
  int32_t next_column;
  Range ahead;           // of that, a part to fetch meanwhile, instead
  Range rows;            // of x, to fetch meanwhile as well
  Range pages;           // of the next attention, to be fetched meanwhile
  bool first;            // slice: sums start at zero
  float* sums;           // [R][64]
};
using TileFn = void (*)(const TileArgs&);

constexpr int32_t kSliceBlocks = 64;                     // blocks per slice: an expanded slice stays well inside L2
constexpr int32_t kSliceWeights = kSliceBlocks * kBlock;  // the same for float formats; even, so pairs stay whole

// How far ahead of its reads a tile asks for memory, when it is the first to touch its weights.
constexpr int kPrefetchBlocks = 16;
constexpr int kPrefetchWeights = 16;  // the same for float formats: weights, or pairs of bf16

// The codes of `columns` columns of a block, and its scales.
template <class C>
FORNO_INLINE void prefetch_block(const uint8_t* block, int column, int columns) {
  if (columns == kPanel) {
#pragma GCC unroll 1  // all of them in one burst hold up the loads between them: 0.7 of the bandwidth for 8-bit codes
    for (int i = 0; i < C::kBlockBytes; i += 64) __builtin_prefetch(block + i, 0, 3);
    return;
  }
  constexpr int kCodeLines = C::kBits == 8 ? 8 : 4;
#pragma GCC unroll 8
  for (int s = 0; s < kCodeLines; ++s)
    for (int c = column; c < column + columns; c += 16) __builtin_prefetch(block + s * 256 + c * 4, 0, 3);
  if (column) return;  // the rest is small and shared by all columns
#pragma GCC unroll 12
  for (int i = kCodeLines * 256; i < C::kBlockBytes; i += 64) __builtin_prefetch(block + i, 0, 3);
}

// What a tile needs per row and block besides what the row holds: where the integer sums start, -zero * sum_x, as int32
// (by half block if the format's scales go by half blocks); or, for formats with minimums, sum_x * scale_x as float.
template <class C>
struct RowTerms {
  static_assert(!C::kMin || (C::kParts == 1 && C::kZero == 0));
  static constexpr int kPitch = kSliceBlocks * C::kParts;  // words between rows

  // One row of a slice of `count` blocks.
  static FORNO_INLINE void fill(const int8_t* q, const char* scales, const char* sums, int32_t count, int32_t* out) {
    if constexpr (C::kParts == 2) {  // rows hold sums of 32; `count` is a multiple of 8
      for (int32_t i = 0; i < 2 * count; i += kLanes / 4) sum_groups_of_16(q + 16 * i, out + i);
      for (int32_t i = 0; i < 2 * count; i += kLanes) vstore_words(out + i, vload_words(out + i) * -C::kZero);
    } else {
      for (int32_t b = 0; b < count; b += kLanes) {
        const vi sum = vload_words(sums + 4 * b, count - b);
        if constexpr (C::kMin)
          vstore(reinterpret_cast<float*>(out + b), vfloat(sum) * reinterpret_cast<vf>(vload_words(scales + 4 * b, count - b)));
        else
          vstore_words(out + b, sum * -C::kZero);
      }
    }
  }
};

FORNO_INLINE float load_float(const void* p) {
  float x;
  std::memcpy(&x, p, 4);
  return x;
}

template <class C, int R, int V>
void tile_blocks(const TileArgs& args) {
  using Dot = GroupDot<C, R, V>;
  constexpr int kPitch = RowTerms<C>::kPitch;
  const int64_t steps = int64_t(args.columns / (V * kLanes)) * args.count;
  StepFetch ahead(args.ahead, steps), rows(args.rows, steps), pages(args.pages, steps);
  for (int c = args.column; c < args.column + args.columns; c += V * kLanes) {
    const int8_t* q = reinterpret_cast<const int8_t*>(args.x);
    const uint8_t* block = args.weights;
    const uint8_t* header = block;
    const char* x_scale = args.x_scale;
    const int32_t* terms = args.terms;
    vf total[R][V];
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) total[m][j] = args.first ? vf{} : vload(args.sums + m * kPanel + c + j * kLanes);
    for (int32_t b = 0; b < args.count; ++b, q += kBlock, block += C::kBlockBytes, x_scale += 4, terms += C::kParts) {
      if (C::kHeaderBytes && b % kSuperBlocks == 0) {
        header = block;
        block += C::kHeaderBytes;
      }
      if constexpr (R > 2) {  // fewer rows are a unit's only tile, which fetches by itself
        ahead.step<3>();
        rows.step<3>();
        pages.step<kPageLocality>();
      }
      if (args.prefetch) {
        // Near the end of a pass: the other columns of this slice, or what comes after it.
        const int32_t beyond = b + kPrefetchBlocks - args.count;
        if (beyond < 0)
          prefetch_block<C>(block + kPrefetchBlocks * C::kBlockBytes, c, V * kLanes);
        else if (c + V * kLanes < args.column + args.columns)
          prefetch_block<C>(args.weights + beyond * C::kBlockBytes, c + V * kLanes, V * kLanes);
        else if (args.next)
          prefetch_block<C>(args.next + beyond * C::kBlockBytes, args.next_column, V * kLanes);
      }
      vf dot[C::kParts][R][V];
#pragma GCC unroll 2
      for (int part = 0; part < C::kParts; ++part)
        Dot::run(block, part, c, q, args.stride, terms + part, kPitch, dot[part]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        const int column = c + j * kLanes;
        const vf w_scale = C::scale(block, header, 0, column);
        vf second{}, minimum{};
        if constexpr (C::kParts == 2) second = C::scale(block, header, 1, column);
        if constexpr (C::kMin) minimum = C::minimum(block, header, column);
#pragma GCC unroll 6
        for (int m = 0; m < R; ++m) {
          const float scale = load_float(x_scale + m * args.stride);
          if constexpr (C::kParts == 2)
            total[m][j] = vfma(vfma(dot[1][m][j], second, dot[0][m][j] * w_scale), vset(scale), total[m][j]);
          else
            total[m][j] = vfma(dot[0][m][j], w_scale * scale, total[m][j]);
          if constexpr (C::kMin) total[m][j] = vfma(minimum, vset(load_float(terms + m * kPitch)), total[m][j]);
        }
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) vstore(args.sums + m * kPanel + c + j * kLanes, total[m][j]);
  }
}

// One weight of K, or one pair for bf16: adds w[columns] * x to the tile. `x` holds the row's float, or pair of bf16.
template <Format F, int R, int V>
FORNO_INLINE void add_products(const uint8_t* w, const uint32_t (&x)[R], vf (&acc)[R][V]) {
  constexpr int kLaneBytes = F == Format::F16 ? 2 : 4;
#pragma GCC unroll 4
  for (int j = 0; j < V; ++j) {
    const uint8_t* p = w + j * kLanes * kLaneBytes;
    if constexpr (F == Format::BF16) {
      const vi pair = vload_words(p);
#pragma GCC unroll 6
      for (int m = 0; m < R; ++m) {
#if defined(FORNO_AVX512)
        acc[m][j] = _mm512_dpbf16_ps(acc[m][j], reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(vset_words(int32_t(x[m]))));
#else
        acc[m][j] = vfma(reinterpret_cast<vf>(pair << 16), reinterpret_cast<vf>(vset_words(int32_t(x[m] << 16))), acc[m][j]);
        acc[m][j] = vfma(reinterpret_cast<vf>(pair & int32_t(0xffff0000u)),
                         reinterpret_cast<vf>(vset_words(int32_t(x[m] & 0xffff0000u))), acc[m][j]);
#endif
      }
    } else {
      vf weight;
      if constexpr (F == Format::F16) weight = vload_f16(p);
      else weight = vload(reinterpret_cast<const float*>(p));
#pragma GCC unroll 6
      for (int m = 0; m < R; ++m) acc[m][j] = vfma(weight, reinterpret_cast<vf>(vset_words(int32_t(x[m]))), acc[m][j]);
    }
  }
}

// Float formats. Sums stay in registers over the slice.
template <Format F, int R, int V>
void tile_floats(const TileArgs& args) {
  constexpr bool kPairs = F == Format::BF16;
  constexpr int kLaneBytes = F == Format::F16 ? 2 : 4, kLine = kLaneBytes * kPanel;  // per weight, or pair of weights, of K
  constexpr int32_t kFetchEvery = 8;  // steps along K: looking for something to fetch takes as long as a product
  const int64_t steps = int64_t(args.columns / (V * kLanes)) * ((kPairs ? args.count / 2 : args.count) / kFetchEvery + 1);
  StepFetch ahead(args.ahead, steps), pages(args.pages, steps);
  for (int c = args.column; c < args.column + args.columns; c += V * kLanes) {
    vf acc[R][V];
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc[m][j] = args.first ? vf{} : vload(args.sums + m * kPanel + c + j * kLanes);
    const uint8_t* w = args.weights + c * kLaneBytes;
    const char* x = args.x;
    uint32_t values[R];
    for (int32_t s = kPairs ? args.count / 2 : args.count; s > 0; --s, w += kLine, x += 4) {
      if (R > 2 && s % kFetchEvery == 0) {
        ahead.step<3>();
        pages.step<kPageLocality>();
      }
      if (args.prefetch)
        for (int j = 0; j < V * kLanes * kLaneBytes; j += 64) __builtin_prefetch(w + kPrefetchWeights * kLine + j, 0, 3);
#pragma GCC unroll 6
      for (int m = 0; m < R; ++m) std::memcpy(&values[m], x + m * args.stride, 4);
      add_products<F, R, V>(w, values, acc);
    }
    if (kPairs && args.count % 2) {  // the last pair's second weight is padding, and x has no second value
      for (int m = 0; m < R; ++m) {
        uint16_t last;
        std::memcpy(&last, x + m * args.stride, 2);
        values[m] = last;
      }
      add_products<F, R, V>(w, values, acc);
    }
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) vstore(args.sums + m * kPanel + c + j * kLanes, acc[m][j]);
  }
}

// One of the tile functions of a codec or float format, by number of rows.
template <class Tiles>
TileFn tile_of(int rows) {
#if defined(FORNO_AVX512)
  static constexpr TileFn table[] = {Tiles::template tile<1>, Tiles::template tile<2>, Tiles::template tile<3>,
                                     Tiles::template tile<4>, Tiles::template tile<5>, Tiles::template tile<6>};
#else
  static constexpr TileFn table[] = {Tiles::template tile<1>, Tiles::template tile<2>, Tiles::template tile<3>, Tiles::template tile<4>};
#endif
  return table[rows - 1];
}

// The tile functions of one codec or float format; V limits the vectors, for half panels.
template <class C, int V>
struct BlockTiles {
  template <int R>
  static constexpr TileFn tile = tile_blocks<C, R, (block_vectors(R, C::kParts) < V ? block_vectors(R, C::kParts) : V)>;
  static TileFn of(int rows) { return tile_of<BlockTiles>(rows); }
};

template <Format F, int V>
struct FloatTiles {
  template <int R>
  static constexpr TileFn tile = tile_floats<F, R, V>;
  static TileFn of(int rows) { return tile_of<FloatTiles>(rows); }
};

}  // namespace
}  // namespace forno
