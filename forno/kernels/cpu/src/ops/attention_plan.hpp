// How a step's attention is cut into units of work, and what memory that takes. Pure arithmetic on the step's spans:
// every worker walks the same tiles in the same order and arrives at the same plan without talking to the others.
//
// Keys are cut into segments of 128, aligned to absolute positions. A segment's softmax is computed on its own, and
// segments are merged in ascending order: that order is the definition of a row's bits, so it does not matter which
// worker computed a segment, whether a tile was split, or which rows shared it.
#pragma once
#include "../types.hpp"

namespace forno {
namespace {
namespace attention_plan {

constexpr int32_t kSegment = 128;
constexpr int32_t kSegmentPages = kSegment / kPage;
constexpr int32_t kTileRows = 96;          // (token, head) rows that share a pass over the keys
constexpr int32_t kBlockRows = 8;          // upper bound of rows in one micro-kernel call
constexpr int32_t kUnitsPerWorker = 8;     // enough units that the last one to finish costs little
constexpr int64_t kCounterBytes = 4096;    // counters of split tiles, at the start of AttentionArgs::shared
constexpr int32_t kMaxCounters = kCounterBytes / 4;

inline int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

// One segment's result for a tile: o [rows][vp], then m and l, each padded to whole vectors.
inline int64_t partial_floats(int64_t rows, int64_t v_dim) { return rows * round_up(v_dim, 16) + 2 * round_up(rows, 16); }

// An upper bound of what one token's rows take in all kv heads' partials, per segment.
inline int64_t partial_bytes(int64_t heads, int64_t v_dim) { return heads * (round_up(v_dim, 16) + 32) * 4; }

inline int32_t tile_tokens(int32_t group) { return group >= kTileRows ? 1 : kTileRows / group; }

struct ScratchLayout { int64_t query, total, segment, pages, clean, scores, weights, bytes; };

// Offsets in Worker::scratch.
inline ScratchLayout scratch_layout(int32_t group, int32_t k_dim, int32_t v_dim) {
  const int64_t rows = int64_t(tile_tokens(group)) * group;
  const int64_t kp = round_up(k_dim, 16), vp = round_up(v_dim, 16);
  const int64_t partial = round_up(partial_floats(rows, v_dim) * 4, 64);
  ScratchLayout s{};
  s.total = s.query + round_up(rows * kp * 4, 64);
  s.segment = s.total + partial;
  s.pages = s.segment + partial;                            // K and V of a segment, unpacked to fp32 at most
  s.clean = s.pages + kSegment * (kp + vp) * 4;             // a copy of V without masked tokens
  s.scores = s.clean + kSegment * vp * 4;
  s.weights = s.scores + kBlockRows * kSegment * 4;
  s.bytes = s.weights + kBlockRows * kSegment * 4;
  return s;
}
inline int64_t scratch_bytes(int32_t group, int32_t k_dim, int32_t v_dim) { return scratch_layout(group, k_dim, v_dim).bytes; }

struct Problem {
  const Step* step;
  int32_t kv_heads, group, v_dim, window, workers;
  int64_t shared_bytes;
};

// Consecutive tokens of one span, for every kv head; `parts` workers may share it, each some whole segments.
struct Tile {
  const Span* span;
  int32_t token, tokens;           // first token within the span, and how many
  int32_t segment, segments;       // first segment and count, over all rows
  int32_t parts, part_segments;    // parts of this many segments each (the last may be shorter)
  int64_t partials;                // offset in shared of kv head 0's partials, when parts > 1
  int32_t counter;                 // index of kv head 0's counter
};

inline int64_t head_partials_bytes(const Problem& p, const Tile& t) {
  return round_up(partial_floats(int64_t(t.tokens) * p.group, p.v_dim) * 4, 64) * t.segments;
}

// Walks the tiles of a step in a fixed order: within a span, later tokens (which see more keys) first.
struct TileWalk {
  const Problem& problem;
  int64_t target = 0;              // wanted size of a unit in row-segments; 0: never split
  int32_t span = 0, left = -1;     // tokens of the span not yet handed out; -1: not begun
  int64_t used = kCounterBytes;
  int32_t counters = 0;

  bool next(Tile& t) {
    const Step& step = *problem.step;
    while (span < step.num_spans && (left < 0 ? step.spans[span].num_tokens : left) == 0) ++span, left = -1;
    if (span == step.num_spans) return false;
    const Span& s = step.spans[span];
    if (left < 0) left = s.num_tokens;
    const int32_t most = tile_tokens(problem.group);
    t.span = &s;
    t.tokens = left < most ? left : most;
    t.token = left - t.tokens;
    left = t.token;
    const int32_t first = s.start + t.token, end = first + t.tokens;
    const int32_t lowest = problem.window > 0 && first + 1 > problem.window ? first + 1 - problem.window : 0;
    t.segment = lowest / kSegment;
    t.segments = (end + kSegment - 1) / kSegment - t.segment;
    split(t);
    return true;
  }

  void split(Tile& t) {
    const int64_t rows = int64_t(t.tokens) * problem.group;
    int64_t per_part = target ? target / rows : t.segments;
    if (per_part < 1) per_part = 1;
    t.parts = int32_t((t.segments + per_part - 1) / per_part);
    const int64_t bytes = head_partials_bytes(problem, t) * problem.kv_heads;
    if (used + bytes > problem.shared_bytes || counters + problem.kv_heads > kMaxCounters) t.parts = 1;
    t.part_segments = (t.segments + t.parts - 1) / t.parts;
    t.parts = (t.segments + t.part_segments - 1) / t.part_segments;  // rounding up may have emptied the last parts
    t.partials = used;
    t.counter = counters;
    if (t.parts == 1) return;
    used += bytes;
    counters += problem.kv_heads;
  }
};

// The unit size that gives every worker kUnitsPerWorker units; one worker alone never splits.
inline int64_t unit_target(const Problem& problem) {
  if (problem.workers <= 1) return 0;
  TileWalk walk{problem};
  int64_t total = 0;
  for (Tile t; walk.next(t);) total += int64_t(t.segments) * t.tokens * problem.group * problem.kv_heads;
  const int64_t target = total / (int64_t(problem.workers) * kUnitsPerWorker);
  return target > 0 ? target : 1;
}

}  // namespace attention_plan
}  // namespace
}  // namespace forno
