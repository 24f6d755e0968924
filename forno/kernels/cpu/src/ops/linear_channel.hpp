// Tiles of w8a8: int8 weights with a scale per output, int8 activations with a scale per row. Nothing is scaled along K, so a
// tile's sums stay integers from the first weight to the last, exact whatever the order:
//   sum = float(dot) * (scale_w * scale_x).
#pragma once
#include "linear_tile.hpp"

namespace forno {
namespace {

// acc[m][j] += sum over a block's weights of (code - kOffset) * x[m], for vectors of outputs from `block` on. Instruction
// sets that multiply the unsigned codes as they are leave an offset, which the sums start with.
template <int R, int V>
struct ChannelDot {
  using Sums = vi[R][V];
  static constexpr int kSteps = kBlock / 4;

#if defined(FORNO_AVX512)
  static constexpr int kOffset = 0;

  static FORNO_INLINE void add(const uint8_t* block, const int8_t* q, int64_t stride, Sums& acc) {
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      __m512i w[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) w[j] = _mm512_loadu_si512(block + s * 256 + j * 64);
#pragma GCC unroll 6
      for (int m = 0; m < R; ++m) {
        const __m512i x = reinterpret_cast<__m512i>(broadcast_word(q + m * stride + s * 4));
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j)
          acc[m][j] = reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc[m][j]), w[j], x));
      }
    }
  }

#elif defined(FORNO_AVX2)
  static constexpr int kOffset = 128;

  // Codes lose their offset and lend their sign to x, since vpmaddubsw wants one unsigned factor: |w| * |x| <= 128 * 127,
  // two of which fit int16.
  static FORNO_INLINE void add(const uint8_t* block, const int8_t* q, int64_t stride, Sums& acc) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 1
    for (int s = 0; s < kSteps; ++s)
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j) {
        const __m256i codes = reinterpret_cast<__m256i>(vload_words(block + s * 256 + j * kLanes * 4));
        const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 4
        for (int m = 0; m < R; ++m) {
          const __m256i x = _mm256_sign_epi8(reinterpret_cast<__m256i>(broadcast_word(q + m * stride + s * 4)), w);
          acc[m][j] += reinterpret_cast<vi>(_mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, x), ones));
        }
      }
  }

#else
  static constexpr int kOffset = 128;

  // Float products of small integers, exact while they sum to less than 2^24, as those of a block do.
  static FORNO_INLINE void add(const uint8_t* block, const int8_t* q, int64_t stride, Sums& acc) {
    vf dot[R][V] = {};
    for (int s = 0; s < kSteps; ++s) {
      vi w[V];
      for (int j = 0; j < V; ++j) w[j] = vload_words(block + s * 256 + j * kLanes * 4);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < V; ++j) {
          const vf weight = vfloat((w[j] >> 8 * i & 255) - kOffset);
          for (int m = 0; m < R; ++m) dot[m][j] += weight * float(q[m * stride + s * 4 + i]);
        }
    }
    for (int m = 0; m < R; ++m)
      for (int j = 0; j < V; ++j) acc[m][j] += __builtin_convertvector(dot[m][j], vi);
  }
#endif
};

// Asks for what a tile can hide the wait for: the lines of its own stream some blocks on, if it is the first to touch them, and
// its share of what comes later.
struct ChannelFetch {
  static constexpr int kBlockBytes = LayoutW8A8::kBlockBytes;
  const TileArgs& args;
  StepFetch ahead, rows, pages;

  FORNO_INLINE ChannelFetch(const TileArgs& a, int64_t steps)
      : args(a), ahead(a.ahead, steps), rows(a.rows, steps), pages(a.pages, steps) {}

  FORNO_INLINE void step(int32_t b, int column, int columns) {
    ahead.step<3>();
    rows.step<3>();
    pages.step<kPageLocality>();
    if (!args.prefetch) return;
    const int32_t beyond = b + kPrefetchBlocks - args.count;
    if (beyond < 0) fetch_block(args.weights + (b + kPrefetchBlocks) * kBlockBytes, column, columns);
    else if (args.next) fetch_block(args.next + beyond * kBlockBytes, args.next_column, columns);
  }

  static FORNO_INLINE void fetch_block(const uint8_t* block, int column, int columns) {
#pragma GCC unroll 1
    for (int s = 0; s < kBlock / 4; ++s)
#pragma GCC unroll 4
      for (int c = column; c < column + columns; c += 16) __builtin_prefetch(block + s * 256 + c * 4, 0, 3);
  }
};

// `count` is all of K here: there are no slices.
template <int R, int V>
void tile_channels(const TileArgs& args) {
  using Dot = ChannelDot<R, V>;
  constexpr int kZero = 128 - Dot::kOffset;
  const float* w_scale = reinterpret_cast<const float*>(args.weights + int64_t(args.count) * LayoutW8A8::kBlockBytes);
  ChannelFetch fetch(args, int64_t(args.columns / (V * kLanes)) * args.count);
  for (int c = args.column; c < args.column + args.columns; c += V * kLanes) {
    vi acc[R][V];
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc[m][j] = kZero ? broadcast_word(args.x_scale + m * args.stride + sizeof(float)) * -kZero : vi{};
    const uint8_t* block = args.weights + c * 4;
    const int8_t* q = reinterpret_cast<const int8_t*>(args.x);
    for (int32_t b = 0; b < args.count; ++b, block += LayoutW8A8::kBlockBytes, q += kBlock) {
      fetch.step(b, c, V * kLanes);
      Dot::add(block, q, args.stride, acc);
    }
#pragma GCC unroll 6
    for (int m = 0; m < R; ++m) {
      const vf x_scale = reinterpret_cast<vf>(broadcast_word(args.x_scale + m * args.stride));
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j)
        vstore(args.sums + m * kPanel + c + j * kLanes, vfloat(acc[m][j]) * (vload(w_scale + c + j * kLanes) * x_scale));
    }
  }
}

template <int V>
struct ChannelTiles {
  template <int R>
  static constexpr TileFn tile = tile_channels<R, V>;
  static TileFn of(int rows) { return tile_of<ChannelTiles>(rows); }
};

}  // namespace
}  // namespace forno
