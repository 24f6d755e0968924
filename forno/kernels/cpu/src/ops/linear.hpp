// out = x @ W.T (+ bias)(+ residual), or silu(gate) * up, for packed weights: who computes which part, and in what
// order. A unit of work is a panel (or half of one) times a block of rows. Its rows go through in tiles; with many
// rows the panel's codes are first expanded to bytes in scratch, one slice of K at a time. No result bit depends on
// any of that (see linear_tile.hpp).
#pragma once
#include "linear_channel.hpp"
#include "linear_epilogue.hpp"
#include "linear_tile.hpp"

namespace forno {
namespace {

constexpr int32_t kRowBlock = 96;     // rows per unit, at most: their slice of x and the panel's share L2
constexpr int32_t kMinRowBlock = 12;  // rows are not split finer than this to feed idle workers

// Rows from which on a panel's slice is expanded once, rather than unpacked by every tile; 0: never. Unpacking nibbles
// hides behind the products at any number of rows; two-level scales do not, nor, without AVX-512's masks, fifth bits.
template <class L>
constexpr int32_t kExpandRows =
#if defined(FORNO_AVX512)
    L::kTwoLevel ? 36 : 0;
#elif defined(FORNO_AVX2)
    L::kTwoLevel || L::kBits == 5 ? 24 : 0;
#else
    L::kBits == 8 ? 0 : 24;
#endif

struct Unit {
  const LinearPart* part;
  int32_t panel, column, columns;
  int32_t row0, row1;
  Range next;           // weights of the worker's likely next unit, if they are others; null: none
  int32_t next_column;

  const uint8_t* weights() const { return part->weight->data + panel * part->weight->panel_bytes; }
};

// How the work is cut. All workers compute the same plan.
struct LinearPlan {
  int32_t row_begin, row_end;
  int32_t row_blocks, block_rows;
  int32_t whole;                    // panels computed whole; the rest are cut in halves
  int32_t panels[kMaxParts];
  int32_t units;
};

LinearPlan plan_linear(const LinearArgs& args, int32_t rows, int32_t workers) {
  LinearPlan plan{};
  plan.row_begin = args.row_end > 0 ? args.row_begin : 0;
  plan.row_end = args.row_end > 0 ? args.row_end : rows;
  const int32_t count = plan.row_end - plan.row_begin;
  int32_t panels = 0;
  for (int32_t i = 0; i < args.num_parts; ++i) panels += plan.panels[i] = args.parts[i].weight->panels;
  int32_t blocks = (count + kRowBlock - 1) / kRowBlock;
  // Few units make one worker wait for another: 9 panels on 2 workers are 5 to 4, 8 panels and 2 halves are even. Only the
  // last panels are cut, since whole ones are read faster.
  plan.whole = panels * blocks < 8 * workers && workers > 1 && !args.silu_mul ? (panels - 1) / workers * workers : panels;
  const int32_t columns = 2 * panels - plan.whole, wanted = workers == 1 ? 1 : 4 * workers;
  while (columns * blocks < wanted && count / (blocks + 1) >= kMinRowBlock) ++blocks;
  const int32_t per_block = blocks ? (count + blocks - 1) / blocks : 0;
  plan.block_rows = (per_block + kTileRows - 1) / kTileRows * kTileRows;
  plan.row_blocks = plan.block_rows ? (count + plan.block_rows - 1) / plan.block_rows : 0;
  plan.units = columns * plan.row_blocks;
  return plan;
}

Unit unit_of(const LinearArgs& args, const LinearPlan& plan, int32_t index) {
  Unit u{};
  u.row0 = plan.row_begin + index % plan.row_blocks * plan.block_rows;
  u.row1 = u.row0 + plan.block_rows < plan.row_end ? u.row0 + plan.block_rows : plan.row_end;
  index /= plan.row_blocks;
  const int32_t half = index - plan.whole;
  u.columns = half < 0 ? kPanel : kPanel / 2;
  u.column = half < 0 ? 0 : half % 2 * u.columns;
  if (half >= 0) index = plan.whole + half / 2;
  int32_t part = 0;
  while (index >= plan.panels[part]) index -= plan.panels[part++];
  u.part = &args.parts[part];
  u.panel = index;
  return u;
}

// What this worker will likely compute after unit `index`, be it of the linear that follows; part null: nothing known.
Unit next_unit(const LinearArgs& args, const LinearPlan& plan, int32_t rows, const Worker& worker, int32_t index) {
  const int32_t after = likely_next(worker, plan.units, index);
  if (after < plan.units) return unit_of(args, plan, after);
  if (!args.next) return Unit{};
  const LinearPlan following = plan_linear(*args.next, rows, worker.count);
  const int32_t first = first_unit(worker, following.units);
  return first < following.units ? unit_of(*args.next, following, first) : Unit{};
}

// As much of a unit's weights as is worth having in cache before it starts: a slice or, where K is not cut into slices, all.
Range fetched_of(const Unit& u) {
  const int64_t most = (u.part->weight->format == Format::W8A8 ? 384 : 128) << 10;
  const int64_t bytes = u.part->weight->panel_bytes;
  return {u.weights(), u.weights() + (bytes < most ? bytes : most)};
}

struct Scratch {
  float* sums;         // [kRowBlock][64]
  uint8_t* expanded;   // one slice
};

// With several tiles per unit each of them fetches a part of the next unit's weights, so that memory works all the time;
// a single one fetches ahead of itself.
bool spreads_fetching(const Unit& u) { return u.row1 - u.row0 > kTileRows; }

// Rows [row0, row1) in tiles of nearly equal height, at one slice of K; `tile` points at it. After the last slice each
// tile is finished while its sums are in L1.
template <class Tiles>
void run_tiles(const LinearArgs& args, const Unit& u, TileArgs tile, const Scratch& scratch, bool last) {
  const Range ahead = tile.ahead;
  const int32_t rows = u.row1 - u.row0;
  const char* x0 = tile.x;
  const char* scale0 = tile.x_scale;
  for (int32_t row = u.row0; row < u.row1;) {
    const int32_t left = u.row1 - row, tiles = (left + kTileRows - 1) / kTileRows;
    const int32_t height = (left + tiles - 1) / tiles;
    tile.x = x0 + row * tile.stride;
    tile.x_scale = scale0 + row * tile.stride;
    tile.sums = scratch.sums + (row - u.row0) * kPanel;
    tile.prefetch = row == u.row0 && tile.weights != scratch.expanded && !ahead.begin;
    tile.ahead = ahead.part(row - u.row0, height, rows);
    if (last) fetch_outputs(args, *u.part, u.panel, u.column, u.columns, row, height);
    Tiles::of(height)(tile);
    if (last && args.silu_mul) finish_gate_up(args, *u.part, u.panel, row, height, tile.sums);
    if (last && !args.silu_mul) finish_tile(args, *u.part, u.panel, u.column, u.columns, row, height, tile.sums);
    row += height;
  }
}

TileArgs tile_args(const LinearArgs& args, const Unit& u) {
  TileArgs tile{};
  tile.stride = args.x.stride;
  tile.column = u.column;
  tile.columns = u.columns;
  tile.next = u.next.begin;
  tile.next_column = u.next_column;
  return tile;
}

template <class L, int V>
void run_blocks(const LinearArgs& args, const Unit& u, const Scratch& scratch) {
  const PackedMatrix& w = *u.part->weight;
  const uint8_t* panel = u.weights();
  const int32_t blocks = w.k / kBlock;
  const bool expanding = kExpandRows<L> && u.row1 - u.row0 >= kExpandRows<L>;
  TileArgs tile = tile_args(args, u);
  tile.sum_offset = w.k / kGroup * 4;
  for (int32_t b = 0; b < blocks; b += kSliceBlocks) {
    tile.count = blocks - b < kSliceBlocks ? blocks - b : kSliceBlocks;
    tile.first = b == 0;
    tile.x = args.x.data + b * kBlock;
    tile.x_scale = args.x.data + w.k + b * 4;
    tile.weights = panel + L::header(b);  // equals the block's own offset where there are no headers
    const bool last = b + tile.count == blocks;
    tile.next = last ? u.next.begin : panel + L::header(b + tile.count);
    tile.next_column = last ? u.next_column : u.column;
    tile.ahead = last && spreads_fetching(u) ? u.next : Range{};
    if constexpr (kExpandRows<L> != 0) {
      if (expanding) {
        expand<L>(tile.weights, tile.count, u.column, u.columns, scratch.expanded);
        tile.weights = scratch.expanded;
        run_tiles<BlockTiles<Expanded<L>, V>>(args, u, tile, scratch, last);
        continue;
      }
    }
    run_tiles<BlockTiles<Packed<L>, V>>(args, u, tile, scratch, last);
  }
}

template <int V>
void run_channels(const LinearArgs& args, const Unit& u, const Scratch& scratch) {
  TileArgs tile = tile_args(args, u);
  tile.count = u.part->weight->k / kBlock;
  tile.x = args.x.data;
  tile.x_scale = args.x.data + u.part->weight->k;
  tile.sum_offset = sizeof(float);
  tile.weights = u.weights();
  if (spreads_fetching(u)) tile.ahead = u.next;
  run_tiles<ChannelTiles<V>>(args, u, tile, scratch, true);
}

template <Format F, int V>
void run_floats(const LinearArgs& args, const Unit& u, const Scratch& scratch) {
  const PackedMatrix& w = *u.part->weight;
  constexpr int kWeightBytes = F == Format::F32 ? 4 : 2, kXBytes = F == Format::BF16 ? 2 : 4;
  TileArgs tile = tile_args(args, u);
  for (int32_t k = 0; k < w.k; k += kSliceWeights) {
    tile.count = w.k - k < kSliceWeights ? w.k - k : kSliceWeights;
    tile.first = k == 0;
    tile.x = args.x.data + int64_t(k) * kXBytes;
    tile.weights = u.weights() + int64_t(k) * kPanel * kWeightBytes;
    run_tiles<FloatTiles<F, V>>(args, u, tile, scratch, k + tile.count == w.k);
  }
}

template <int V>
void run_unit(const LinearArgs& args, const Unit& u, const Scratch& scratch) {
  const Format format = u.part->weight->format;
  if (format == Format::F32) return run_floats<Format::F32, V>(args, u, scratch);
  if (format == Format::F16) return run_floats<Format::F16, V>(args, u, scratch);
  if (format == Format::BF16) return run_floats<Format::BF16, V>(args, u, scratch);
  if (format == Format::W8A8) return run_channels<V>(args, u, scratch);
  with_layout(format, [&](auto layout) { run_blocks<decltype(layout), V>(args, u, scratch); });
}

void linear(const LinearArgs& args, int32_t rows, Worker& worker) {
  const LinearPlan plan = plan_linear(args, rows, worker.count);
  Scratch scratch;
  scratch.sums = reinterpret_cast<float*>(worker.scratch);
  scratch.expanded = reinterpret_cast<uint8_t*>(worker.scratch) + kRowBlock * kPanel * sizeof(float);
  static_assert(kRowBlock * kPanel * sizeof(float) + kSliceBlocks * Expanded<LayoutQ4_1>::kBlockBytes <= kScratchBytes);
  for_units(worker, plan.units, [&](int32_t index) {
    Unit u = unit_of(args, plan, index);
    const Unit next = next_unit(args, plan, rows, worker, index);
    u.next_column = next.column;
    if (next.part && (next.weights() != u.weights() || next.column != u.column)) u.next = fetched_of(next);
    constexpr int kHalf = kPanel / 2 / kLanes;  // vectors in half a panel
    if constexpr (kFloatVectors > kHalf) {
      if (u.columns < kPanel) return run_unit<kHalf>(args, u, scratch);
    }
    run_unit<kFloatVectors>(args, u, scratch);
  });
}

}  // namespace
}  // namespace forno
