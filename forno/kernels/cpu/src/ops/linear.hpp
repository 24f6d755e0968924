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
constexpr int32_t kFinishRows = 16;   // rows finished together, at most
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
  int32_t units, workers;
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
  plan.workers = workers;
  return plan;
}

// Units in order of panels, whole ones first, from units as workers take them: every worker's part begins with its share
// of the whole panels and ends with cut ones, so that parts of as many units are as much work.
int32_t in_panel_order(const LinearPlan& plan, int32_t index) {
  const int32_t whole = plan.whole * plan.row_blocks;
  if (whole == plan.units) return index;
  const int32_t owner = part_owner(index, plan.workers, plan.units), begin = part_begin(owner, plan.workers, plan.units);
  const int32_t share = whole / plan.workers;
  if (index - begin < share) return owner * share + index - begin;
  return whole + index - (owner + 1) * share;
}

Unit unit_of(const LinearArgs& args, const LinearPlan& plan, int32_t index) {
  Unit u{};
  index = in_panel_order(plan, index);
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

// Terms of rows [row0, row1), for the weights' format they were made for: [slices][row1 - row0][RowTerms::kPitch].
struct Terms {
  static constexpr size_t kBytes = size_t(2) << 20;
  int32_t* values;
  Format format;
  int32_t row0, row1;
};

struct Scratch {
  float* sums;         // [kRowBlock][64]
  uint8_t* expanded;   // one slice
  Terms terms;
  int32_t rows_read;   // this worker has read the rows before this one
  PagePace* pages;
};

// With several tiles per unit each of them fetches a part of the next unit's weights, so that memory works all the time;
// a single one fetches ahead of itself.
bool spreads_fetching(const Unit& u) { return u.row1 - u.row0 > kTileRows; }

// Rows [row0, row1) of finished sums to what they are for.
void finish(const LinearArgs& args, const Unit& u, int32_t row0, int32_t row1, float* sums) {
  if (args.silu_mul) finish_gate_up(args, *u.part, u.panel, row0, row1 - row0, sums);
  else finish_tile(args, *u.part, u.panel, u.column, u.columns, row0, row1 - row0, sums);
}

// Rows [row0, row1) in tiles of nearly equal height, at one slice of K; `tile` points at it. After the last slice a few tiles at
// a time are finished, while their sums are in L1.
template <class Tiles>
void run_tiles(const LinearArgs& args, const Unit& u, TileArgs tile, Scratch& scratch, int32_t term_pitch, bool last) {
  const TileArgs unit = tile;
  const int32_t rows = u.row1 - u.row0;
  const bool only = tile.first && last;  // slice: sums need not outlive their finish
  const bool fresh = tile.first && u.row0 >= scratch.rows_read;  // rows, written by other workers perhaps
  if (fresh) scratch.rows_read = u.row1;
  // Quantizing is cheaper for several tiles' rows at once. Writing fp32 is not, and logits, which leave the cache, want to be spread.
  const int32_t together = args.silu_mul ? kFinishRows : kTileRows;
  for (int32_t row = u.row0, waiting = u.row0; row < u.row1;) {
    const int32_t left = u.row1 - row, tiles = (left + kTileRows - 1) / kTileRows;
    const int32_t height = (left + tiles - 1) / tiles;
    float* sums = scratch.sums + (only ? 0 : waiting - u.row0) * kPanel;
    tile.x = unit.x + row * tile.stride;
    tile.x_scale = unit.x_scale + row * tile.stride;
    tile.terms = unit.terms + (row - u.row0) * term_pitch;
    tile.sums = sums + (row - waiting) * kPanel;
    tile.prefetch = row == u.row0 && tile.weights != scratch.expanded && !unit.ahead.begin;
    tile.ahead = unit.ahead.part(row - u.row0, height, rows);
    const int32_t after = fresh ? row + 2 * height < u.row1 ? row + 2 * height : u.row1 : row + height;  // the next tile's end
    const uint8_t* x = reinterpret_cast<const uint8_t*>(args.x.data);
    tile.rows = {x + (row + height) * args.x.stride, x + after * args.x.stride};
    tile.pages = scratch.pages->next_tile();
    if (last) fetch_outputs(args, *u.part, u.panel, u.column, u.columns, row, height);
    Tiles::of(height)(tile);
    row += height;
    if (row < u.row1 && row + height - waiting <= together) continue;
    if (last) finish(args, u, waiting, row, sums);
    waiting = row;
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

// Terms of rows [row0, row1) at the slice of `count` blocks that begins at `block`.
template <class C>
void fill_terms(const LinearArgs& args, int32_t block, int32_t count, int32_t row0, int32_t row1, int32_t* out) {
  const int32_t k = args.parts[0].weight->k;
  for (int32_t row = row0; row < row1; ++row, out += RowTerms<C>::kPitch) {
    const char* x = args.x.data + row * args.x.stride;
    const char* scales = x + k + block * 4;
    RowTerms<C>::fill(reinterpret_cast<const int8_t*>(x) + block * kBlock, scales, scales + k / kGroup * 4, count, out);
  }
}

// Terms of the unit's rows at a slice. Those of all rows and slices are made once, for all panels, if there is room for them.
template <class C>
const int32_t* terms_of(const LinearArgs& args, const Unit& u, int32_t block, Terms& terms) {
  const PackedMatrix& w = *u.part->weight;
  const int32_t blocks = w.k / kBlock, slices = (blocks + kSliceBlocks - 1) / kSliceBlocks;
  const auto count_of = [&](int32_t b) { return blocks - b < kSliceBlocks ? blocks - b : kSliceBlocks; };
  const int64_t slice = int64_t(terms.row1 - terms.row0) * RowTerms<C>::kPitch;
  if (slice * slices * int64_t(sizeof(int32_t)) > int64_t(Terms::kBytes)) {
    fill_terms<C>(args, block, count_of(block), u.row0, u.row1, terms.values);
    return terms.values;
  }
  if (terms.format != w.format)
    for (int32_t b = 0, s = 0; b < blocks; b += kSliceBlocks, ++s)
      fill_terms<C>(args, b, count_of(b), terms.row0, terms.row1, terms.values + s * slice);
  terms.format = w.format;
  return terms.values + block / kSliceBlocks * slice + (u.row0 - terms.row0) * RowTerms<C>::kPitch;
}

template <class L, int V>
void run_blocks(const LinearArgs& args, const Unit& u, Scratch& scratch) {
  const PackedMatrix& w = *u.part->weight;
  const uint8_t* panel = u.weights();
  const int32_t blocks = w.k / kBlock;
  const bool expanding = kExpandRows<L> && u.row1 - u.row0 >= kExpandRows<L>;
  constexpr int32_t kPitch = RowTerms<Packed<L>>::kPitch;
  TileArgs tile = tile_args(args, u);
  for (int32_t b = 0; b < blocks; b += kSliceBlocks) {
    tile.count = blocks - b < kSliceBlocks ? blocks - b : kSliceBlocks;
    tile.first = b == 0;
    tile.x = args.x.data + b * kBlock;
    tile.x_scale = args.x.data + w.k + b * 4;
    tile.terms = terms_of<Packed<L>>(args, u, b, scratch.terms);
    tile.weights = panel + L::header(b);  // equals the block's own offset where there are no headers
    const bool last = b + tile.count == blocks;
    tile.next = last ? u.next.begin : panel + L::header(b + tile.count);
    tile.next_column = last ? u.next_column : u.column;
    tile.ahead = last && spreads_fetching(u) ? u.next : Range{};
    if constexpr (kExpandRows<L> != 0) {
      if (expanding) {
        expand<L>(tile.weights, tile.count, u.column, u.columns, scratch.expanded);
        tile.weights = scratch.expanded;
        run_tiles<BlockTiles<Expanded<L>, V>>(args, u, tile, scratch, kPitch, last);
        continue;
      }
    }
    run_tiles<BlockTiles<Packed<L>, V>>(args, u, tile, scratch, kPitch, last);
  }
}

template <int V>
void run_channels(const LinearArgs& args, const Unit& u, Scratch& scratch) {
  TileArgs tile = tile_args(args, u);
  tile.first = true;
  tile.count = u.part->weight->k / kBlock;
  tile.x = args.x.data;
  tile.x_scale = args.x.data + u.part->weight->k;
  tile.weights = u.weights();
  if (spreads_fetching(u)) tile.ahead = u.next;
  run_tiles<ChannelTiles<V>>(args, u, tile, scratch, 0, true);
}

template <Format F, int V>
void run_floats(const LinearArgs& args, const Unit& u, Scratch& scratch) {
  const PackedMatrix& w = *u.part->weight;
  constexpr int kWeightBytes = F == Format::F32 ? 4 : 2, kXBytes = F == Format::BF16 ? 2 : 4;
  TileArgs tile = tile_args(args, u);
  for (int32_t k = 0; k < w.k; k += kSliceWeights) {
    tile.count = w.k - k < kSliceWeights ? w.k - k : kSliceWeights;
    tile.first = k == 0;
    tile.x = args.x.data + int64_t(k) * kXBytes;
    tile.weights = u.weights() + int64_t(k) * kPanel * kWeightBytes;
    const bool last = k + tile.count == w.k;
    tile.ahead = last && spreads_fetching(u) ? u.next : Range{};
    run_tiles<FloatTiles<F, V>>(args, u, tile, scratch, 0, last);
  }
}

template <int V>
void run_unit(const LinearArgs& args, const Unit& u, Scratch& scratch) {
  const Format format = u.part->weight->format;
  if (format == Format::F32) return run_floats<Format::F32, V>(args, u, scratch);
  if (format == Format::F16) return run_floats<Format::F16, V>(args, u, scratch);
  if (format == Format::BF16) return run_floats<Format::BF16, V>(args, u, scratch);
  if (format == Format::W8A8) return run_channels<V>(args, u, scratch);
  with_layout(format, [&](auto layout) { run_blocks<decltype(layout), V>(args, u, scratch); });
}

// Calls of a tile function for one worker's share of the plan, about.
int32_t tiles_per_worker(const LinearArgs& args, const LinearPlan& plan, int32_t workers) {
  const PackedMatrix& w = *args.parts[0].weight;
  const int32_t slices = (w.k + kSliceWeights - 1) / kSliceWeights, tiles = (plan.block_rows + kTileRows - 1) / kTileRows;
  return (plan.units + workers - 1) / workers * slices * tiles;
}

void linear(const LinearArgs& args, int32_t rows, Worker& worker) {
  const LinearPlan plan = plan_linear(args, rows, worker.count);
  constexpr size_t kSumBytes = kRowBlock * kPanel * sizeof(float), kExpandedBytes = kSliceBlocks * Expanded<LayoutQ4_1>::kBlockBytes;
  static_assert(kSumBytes + kExpandedBytes + Terms::kBytes <= kScratchBytes);
  PagePace pages{&worker.pages, worker.pages.end, tiles_per_worker(args, plan, worker.count)};
  Scratch scratch;
  scratch.sums = reinterpret_cast<float*>(worker.scratch);
  scratch.expanded = reinterpret_cast<uint8_t*>(worker.scratch) + kSumBytes;
  scratch.terms = {reinterpret_cast<int32_t*>(worker.scratch + kSumBytes + kExpandedBytes), Format::F32, plan.row_begin, plan.row_end};
  scratch.rows_read = plan.row_begin;
  scratch.pages = &pages;
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
