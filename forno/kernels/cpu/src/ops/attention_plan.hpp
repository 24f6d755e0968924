// How a step's attention is cut into units of work, and what memory that takes. Pure arithmetic on the step's spans:
// every worker walks the same tiles in the same order and arrives at the same plan without talking to the others.
//
// Keys are cut into segments of 128, aligned to absolute positions. A segment's softmax is computed on its own, and
// segments are merged in ascending order: that order is the definition of a row's bits, so it does not matter which
// worker computed a segment, whether a tile was split, or which rows shared it. Hence spans that begin with the same
// keys can go through those together and then each through its own.
#pragma once
#include "../types.hpp"

namespace forno {
namespace {
namespace attention_plan {

constexpr int32_t kSegment = 128;
constexpr int32_t kSegmentPages = kSegment / kPage;
constexpr int32_t kTileRows = 96;          // (token, head) rows that share a pass over the keys
constexpr int32_t kBlockRows = 8;          // upper bound of rows in one micro-kernel call
constexpr int32_t kSharedTokens = 4;       // most tokens of a span that shares a prefix; longer ones fill tiles alone
constexpr int32_t kSharedRows = 6;         // rows of a tile with a shared prefix come in multiples of this
constexpr int32_t kUnitsPerWorker = 8;     // enough units that the last one to finish costs little
constexpr int64_t kCounterBytes = 4096;    // counters of split tiles, at the start of AttentionArgs::shared
constexpr int32_t kMaxCounters = kCounterBytes / 4;

inline int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

// One segment's result for a tile: o [rows][vp], then m and l, each padded to whole vectors.
inline int64_t partial_floats(int64_t rows, int64_t v_dim) { return rows * round_up(v_dim, 16) + 2 * round_up(rows, 16); }

// An upper bound of what one token's rows take in all kv heads' partials, per segment.
inline int64_t partial_bytes(int64_t heads, int64_t v_dim) { return heads * (round_up(v_dim, 16) + 32) * 4; }

inline int32_t tile_tokens(int32_t group) { return group >= kTileRows ? 1 : kTileRows / group; }

struct ScratchLayout { int64_t query, total, pages, clean, scores, weights, rows, bytes; };

// Offsets in Worker::scratch.
inline ScratchLayout scratch_layout(int32_t group, int32_t k_dim, int32_t v_dim) {
  const int64_t rows = int64_t(tile_tokens(group)) * group;
  const int64_t kp = round_up(k_dim, 16), vp = round_up(v_dim, 16);
  const int64_t partial = round_up(partial_floats(rows, v_dim) * 4, 64);
  ScratchLayout s{};
  s.total = s.query + round_up(rows * kp * 4, 64);
  s.pages = s.total + partial;                              // K and V of a segment, unpacked to fp32 at most
  s.clean = s.pages + kSegment * (kp + vp) * 4;             // a copy of V without masked tokens
  s.scores = s.clean + kSegment * vp * 4;
  s.weights = s.scores + kBlockRows * kSegment * 4;
  const int64_t weight_bytes = 2 * kv_groups(v_dim) > 4 ? 2 * kv_groups(v_dim) : 4;  // fp32, or bf16 for each group of V
  s.rows = s.weights + kBlockRows * kSegment * weight_bytes;  // each row's position
  s.bytes = s.rows + round_up(rows * 4, 64);
  return s;
}
inline int64_t scratch_bytes(int32_t group, int32_t k_dim, int32_t v_dim) { return scratch_layout(group, k_dim, v_dim).bytes; }

struct Problem {
  const Step* step;
  int32_t kv_heads, group, v_dim, window, workers;
  int64_t shared_bytes;
};

// Keys of one span for some of a tile's rows: segments [segment, end) for rows [row, row + rows).
struct Stretch {
  const Span* span;
  int32_t row, rows;
  int32_t token;                   // the first row's, within the span
  int32_t segment, end;
};

// Rows that go through keys together, for every kv head: consecutive tokens of one span, or all tokens of some spans
// with a shared prefix. `parts` workers may share the tile of one span, each some whole segments.
struct Tile {
  const Span* spans;               // the step's
  const int32_t* members;          // indices of the spans with a shared prefix; null: one span
  int32_t num_members;
  int32_t rows;
  int32_t prefix;                  // segments that the members share
  const Span* span;                // the one span, or the first member
  int32_t token, tokens;           // first token within the span, and how many
  int32_t segment, segments;       // first segment and count, over all rows of the one span
  int32_t parts, part_segments;    // parts of this many segments each (the last may be shorter)
  int64_t partials;                // offset in shared of kv head 0's partials, when parts > 1
  int32_t counter;                 // index of kv head 0's counter
};

inline int32_t end_segment(const Span& span) { return (span.start + span.num_tokens + kSegment - 1) / kSegment; }

// The stretches of one part of a tile, in the order in which they are computed.
struct StretchWalk {
  const Tile* tile;
  int32_t group, part;
  int32_t index = -1, row = 0;     // -1: the first has not been taken

  bool next(Stretch& s) {
    const Tile& t = *tile;
    if (t.members == nullptr) {
      if (++index > 0) return false;
      const int32_t first = t.segment + part * t.part_segments, last = first + t.part_segments, end = t.segment + t.segments;
      s = {t.span, 0, t.rows, t.token, first, last < end ? last : end};
      return true;
    }
    if (++index > t.num_members) return false;
    if (index == 0) {
      s = {t.span, 0, t.rows, 0, 0, t.prefix};
      return true;
    }
    const Span& span = t.spans[t.members[index - 1]];
    s = {&span, row, span.num_tokens * group, 0, t.prefix, end_segment(span)};
    row += s.rows;
    return true;
  }
};

// The segments of a unit in order: `index` of the stretch `s`.
struct SegmentWalk {
  StretchWalk walk;
  Stretch s{};
  int32_t index = -1;

  bool next() {
    while (++index >= s.end) {
      if (!walk.next(s)) return false;
      index = s.segment - 1;
    }
    return true;
  }
};

inline int64_t head_partials_bytes(const Problem& p, const Tile& t) {
  return round_up(partial_floats(t.rows, p.v_dim) * 4, 64) * t.segments;
}

// Walks the tiles of a step in a fixed order: shared prefixes, then the other spans; within a span, later tokens (which
// see more keys) first.
struct TileWalk {
  const Problem& problem;
  int64_t target = 0;              // wanted size of a unit in row-segments; 0: never split
  bool share = false;              // whether to use the step's prefixes
  int32_t prefix = 0, member = 0;  // the next one
  int32_t span = 0, left = -1;     // tokens of the span not yet handed out; -1: not begun
  int64_t used = kCounterBytes;
  int32_t counters = 0;

  bool next(Tile& t) { return next_shared(t) || next_span(t); }

  void restart(const TileWalk& from) {
    prefix = from.prefix, member = from.member, span = from.span, left = from.left;
    used = from.used, counters = from.counters;
  }

  bool next_shared(Tile& t) {
    const Step& step = *problem.step;
    if (!share || prefix == step.num_prefixes) return false;
    const SharedPrefix& shared = step.prefixes[prefix];
    const int32_t* members = step.prefix_spans + shared.first;
    t = {};
    t.spans = step.spans;
    t.members = members + member;
    t.span = &step.spans[members[member]];
    t.prefix = shared.keys / kSegment;
    t.parts = 1;
    const int64_t wanted = target ? round_up(target / t.prefix + 1, kSharedRows) : kTileRows;
    const int64_t most = wanted < kTileRows ? wanted : kTileRows;
    while (member < shared.count) {
      const int32_t rows = step.spans[members[member]].num_tokens * problem.group;
      if (t.num_members > 0 && t.rows + rows > most) break;
      t.rows += rows;
      ++t.num_members;
      ++member;
    }
    if (member == shared.count) ++prefix, member = 0;
    return true;
  }

  bool next_span(Tile& t) {
    const Step& step = *problem.step;
    while (span < step.num_spans && finished(step.spans[span])) ++span, left = -1;
    if (span == step.num_spans) return false;
    const Span& s = step.spans[span];
    if (left < 0) left = s.num_tokens;
    const int32_t most = tile_tokens(problem.group);
    t = {};
    t.span = &s;
    t.tokens = left < most ? left : most;
    t.token = left - t.tokens;
    t.rows = t.tokens * problem.group;
    left = t.token;
    const int32_t first = s.start + t.token, end = first + t.tokens;
    const int32_t lowest = problem.window > 0 && first + 1 > problem.window ? first + 1 - problem.window : 0;
    t.segment = lowest / kSegment;
    t.segments = (end + kSegment - 1) / kSegment - t.segment;
    split(t);
    return true;
  }

  bool finished(const Span& s) const { return (share && s.in_prefix) || (left < 0 ? s.num_tokens : left) == 0; }

  void split(Tile& t) {
    int64_t per_part = target ? target / t.rows : t.segments;
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

inline int32_t count_units(TileWalk walk) {
  int32_t units = 0;
  for (Tile t; walk.next(t);) units += t.parts * walk.problem.kv_heads;
  return units;
}

struct Plan {
  TileWalk walk;
  int32_t units;
};

// A plan that gives every worker about kUnitsPerWorker units. One worker alone never splits a tile. A shared prefix pays
// only if it leaves every worker something to do: it is not used if there are hardly more units than workers.
inline Plan plan_tiles(const Problem& problem) {
  const Step& step = *problem.step;
  int64_t total = 0;
  TileWalk every{problem};
  for (Tile t; every.next(t);) total += int64_t(t.segments) * t.rows * problem.kv_heads;
  TileWalk walk{problem};
  if (problem.workers > 1) walk.target = total / (int64_t(problem.workers) * kUnitsPerWorker) + 1;
  walk.share = step.num_prefixes > 0 && problem.window == 0 && problem.group * kSharedTokens <= kTileRows;
  int32_t units = count_units(walk);
  if (walk.share && problem.workers > 1 && units * 2 < problem.workers * 3) {
    walk.share = false;
    units = count_units(walk);
  }
  return {walk, units};
}

}  // namespace attention_plan
}  // namespace
}  // namespace forno
