// Fetching the pages of the next attention while a linear computes. With many rows a linear is bound by arithmetic and
// leaves memory idle, whereas attention of many sequences does nothing but wait for it.
//
// A hint only: no result depends on what was fetched, by whom, or whether at all.
#pragma once
#include "../types.hpp"

namespace forno {
namespace {

// A piece of memory, in lines of 64 bytes.
struct Range {
  const uint8_t* begin;
  const uint8_t* end;

  int64_t lines() const { return (end - begin) / 64; }
  // The share of units [first, first + count) of `total`.
  Range part(int64_t first, int64_t count, int64_t total) const {
    return {begin + lines() * first / total * 64, begin + lines() * (first + count) / total * 64};
  }
};

// Spreads the lines that one op fetches evenly over a worker's tiles: a burst would fill the queue of misses, and the
// tile's own loads would wait behind it.
struct PagePace {
  PageFetch* pages;
  int64_t end;    // line to have reached after the last tile
  int32_t tiles;  // to come

  // The lines to fetch during the next tile. Never across blocks: what is left out comes with later tiles.
  Range next_tile() {
    PageFetch& p = *pages;
    if (p.next >= end) return {};
    const int64_t wanted = tiles > 1 ? (end - p.next + tiles - 1) / tiles : end - p.next;
    tiles -= tiles > 1;
    const int64_t within = p.next % p.block_lines, left = p.block_lines - within, count = wanted < left ? wanted : left;
    const uint8_t* begin = p.base + p.blocks[p.next / p.block_lines] * p.block_stride + within * 64;
    p.next += count;
    return {begin, begin + count * 64};
  }
};

constexpr int kPageLocality = 2;  // into L2: more than L1 holds comes before it is read

// Inside a tile: some lines of a range at each of `steps` steps, in pairs, so that an odd last one brings its neighbour.
struct StepFetch {
  const uint8_t *at, *end;
  int64_t stride;

  FORNO_INLINE StepFetch(Range range, int64_t steps)
      : at(range.begin), end(range.end), stride((range.lines() + steps - 1) / steps * 64) {}

  template <int kLocality>
  FORNO_INLINE void step() {
    const uint8_t* stop = at + stride < end ? at + stride : end;
#pragma GCC unroll 1
    for (; at < stop; at += 128) {
      __builtin_prefetch(at, 0, kLocality);
      __builtin_prefetch(at + 64, 0, kLocality);
    }
  }
};

}  // namespace
}  // namespace forno
