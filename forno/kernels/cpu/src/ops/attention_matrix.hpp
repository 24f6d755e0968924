// Attention the textbook's way, to be measured against attention.hpp: the whole score matrix of every span and head lies in
// memory. One pass over it writes q.K^T, one turns its rows into weights, one multiplies them with V; a barrier lies between.
//
// The products are those of attention.hpp, on the same pages, so what differs is where the scores live: 16 bytes of traffic
// for each of them. As there, what a row computes depends on its query, its position and the keys it may see, and on nothing
// else: keys that it does not see have the weight 0, which changes no sum.
#pragma once
#include "attention.hpp"

namespace forno {
namespace {
namespace attention {

// The rows of one unit. A span's matrix is [token][head][columns] fp32, the spans' lie one after the other.
struct ScoreRows {
  float* first;         // of the unit's first token, its kv head's first query head
  int64_t columns;      // the span's context, rounded up to segments
  int32_t group, heads;

  FORNO_INLINE float* row(int32_t r) const { return first + (int64_t(r / group) * heads + r % group) * columns; }
};

inline int64_t score_columns(const Span& span) { return int64_t(attention_plan::end_segment(span)) * kSegment; }

inline ScoreRows score_rows(const MatrixArgs& args, const Step& step, const Job& job) {
  const Tile& tile = job.unit.tile;
  const int32_t heads = args.attention.heads;
  int64_t before = 0;
  for (const Span* s = step.spans; s != tile.span; ++s) before += s->num_tokens * score_columns(*s) * heads;
  const int64_t columns = score_columns(*tile.span), row = int64_t(tile.token) * heads + job.unit.kv_head * job.group;
  return {args.matrix + before + row * columns, columns, job.group, heads};
}

inline void hide(float* row, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) vstore(row + i, vset(kMasked));
}

// Up to kRows rows of a tile, and the pages of a segment that some of them see.
struct RowBlock {
  Pages pages;
  int32_t row, count;
  Seen seen[kRows];
};

template <class F>
FORNO_INLINE void for_row_blocks(const Job& job, const Pages& pages, int32_t begin, F&& f) {
  const int32_t rows = job.rows(), blocks = (rows + kRows - 1) / kRows;
  for (int32_t b = 0, row = 0; b < blocks; ++b) {
    RowBlock block{pages, row, (rows - row + blocks - b - 1) / (blocks - b), {}};  // as equal as can be
    block.pages.fetch_in_pass(b == 0, b == blocks - 1);
    for (int r = 0; r < block.count; ++r)
      block.seen[r] = {job.first_key(row + r) - begin, job.positions[row + r] + 1 - begin};
    const int32_t lowest = block.seen[0].lo, highest = block.seen[block.count - 1].hi;
    if (lowest > pages.first * kPage) block.pages.first = lowest / kPage;
    if (highest < pages.last * kPage) block.pages.last = highest > 0 ? (highest + kPage - 1) / kPage : 0;
    f(block);
    row += block.count;
  }
}

// The first pass, for one segment's columns of all the unit's rows.
template <KvDType kType>
void write_scores(const Job& job, const ScoreRows& matrix, const SegmentWalk& at) {
  const int32_t begin = at.index * kSegment;
  const int64_t stride = query_stride<kType>(job.kp);
  for_row_blocks(job, find_pages(job, at), begin, [&](const RowBlock& block) {
    const Pages& pages = block.pages;
    const bool any = pages.first < pages.last;
    vf top[kRows] = {};
    if (any) scores<kType>(block.count, job.query + block.row * stride, stride, pages, job.kp, job.scores, top);
    for (int r = 0; r < block.count; ++r) {
      float *out = matrix.row(block.row + r) + begin, *row = job.scores + r * kSegment;
      if (!any) {
        hide(out, 0, kSegment);
        continue;
      }
      masked_scores(pages, job.args.softcap, block.seen[r], row);
      hide(out, 0, pages.first * kPage);
      __builtin_memcpy(out + pages.first * kPage, row + pages.first * kPage, size_t(pages.last - pages.first) * kPage * 4);
      hide(out, pages.last * kPage, kSegment);
    }
  });
}

// The second pass, for one row: exponents of two become weights that sum to 1. Masked columns add 0 to the sums, so that it
// does not matter how many there are.
inline void softmax_row(float* row, int64_t columns) {
  constexpr int kStep = 4;
  static_assert(kSegment % (kStep * kLanes) == 0, "rows are whole segments");
  vf top = vset(kEmpty), total{};
  for (int64_t i = 0; i < columns; i += kLanes) top = vmax(vload(row + i), top);
  const vf most = vset(vmax_lane(top));
  for (int64_t i = 0; i < columns; i += kStep * kLanes) {
    vf w[kStep];
    FORNO_UNROLL for (int j = 0; j < kStep; ++j) w[j] = vload(row + i + j * kLanes) - most;
    vexp2_each(w);
    FORNO_UNROLL for (int j = 0; j < kStep; ++j) {
      vstore(row + i + j * kLanes, w[j]);
      total = total + w[j];
    }
  }
  const vf inverse = vset(1.0f / vsum(total));
  for (int64_t i = 0; i < columns; i += kLanes) vstore(row + i, vload(row + i) * inverse);
}

// A row's weights for the pages in use, from the matrix to the type that they are multiplied in.
template <KvDType kType>
FORNO_INLINE void load_weights(const Pages& pages, const float* row, const RowWeights& to) {
  for (int page = pages.first; page < pages.last; ++page) {
    const int token = page * kPage;
    vf w[kPageVectors];
    FORNO_UNROLL for (int i = 0; i < kPageVectors; ++i) w[i] = vload(row + token + i * kLanes);
    if constexpr (!kScaled<kType>) {
      store_weights<kType>(to.at, token, w, vf{});
      continue;
    }
    for (int g = 0; g < to.groups; ++g) {
      const float* scale = pages.v_scale[page] + g * kPage;
      vf scaled[kPageVectors];
      FORNO_UNROLL for (int i = 0; i < kPageVectors; ++i)
        scaled[i] = scaled_weight(w[i], scale + i * kLanes, token + i * kLanes, to.seen);
      store_weights<kType>(to.at + g * kGroupWeights, token, scaled, vf{});
    }
  }
}

constexpr Blend plus() {
  Blend b{};
  for (int i = 0; i < Blend::kMost; ++i) b.total[i] = b.part[i] = 1.0f;
  return b;
}

// The third pass, for one segment: added to `o`, or stored there.
template <KvDType kType>
void add_values(const Job& job, const ScoreRows& matrix, const SegmentWalk& at, float* o, bool merged) {
  static constexpr Blend kPlus = plus();
  const int64_t element = kPairs<kType> ? 2 : 4;
  const int32_t begin = at.index * kSegment;
  const Pages found = find_pages(job, at);
  const bool poisoned = masks_non_finite<kType>(job, at, found);
  const Blend* blend = merged ? &kPlus : nullptr;
  for_row_blocks(job, found, begin, [&](const RowBlock& block) {
    const Pages& pages = block.pages;
    float* out = o + int64_t(block.row) * job.vp;
    if (pages.first >= pages.last) {
      if (!merged) __builtin_memset(out, 0, size_t(block.count) * size_t(job.vp) * 4);
      return;
    }
    auto weights = [&](int r) { return job.weights + r * kSegment * element; };
    for (int r = 0; r < block.count; ++r)
      load_weights<kType>(pages, matrix.row(block.row + r) + begin,
                          {weights(r), kv_groups(job.args.cache.v_dim), block.seen[r]});
    if (!poisoned) return sums<kType>(block.count, job.weights, pages, job.vp, out, blend);
    for (int r = 0; r < block.count; ++r) {
      const Pages clean = without_masked_tokens<kType>(pages, job.vp, block.seen[r].lo, block.seen[r].hi, job.clean);
      sums<kType>(1, weights(r), clean, job.vp, out + int64_t(r) * job.vp, blend);
    }
  });
}

template <KvDType kType>
void run_pass(const Job& job, const ScoreRows& matrix, MatrixPass pass, char* total_memory) {
  const Tile& tile = job.unit.tile;
  SegmentWalk at{{&tile, job.group, 0}};
  if (pass == MatrixPass::Scores) {
    load_queries<kType>(job);
    while (at.next()) write_scores<kType>(job, matrix, at);
    for (int32_t r = 0; r < job.rows(); ++r) {  // columns before the window of every row, and of later tokens
      hide(matrix.row(r), 0, int64_t(tile.segment) * kSegment);
      hide(matrix.row(r), int64_t(tile.segment + tile.segments) * kSegment, matrix.columns);
    }
  } else if (pass == MatrixPass::Softmax) {
    for (int32_t r = 0; r < job.rows(); ++r) softmax_row(matrix.row(r), matrix.columns);
  } else {
    job.for_tokens([&](int32_t row, int64_t, int32_t position) {
      for (int32_t g = 0; g < job.group; ++g) job.positions[row + g] = position;
    });
    const Partial total = partial_at(total_memory, job.rows(), job.vp);
    for (bool merged = false; at.next(); merged = true) add_values<kType>(job, matrix, at, total.o, merged);
    for (int32_t r = 0; r < job.rows(); ++r) total.l[r] = 1.0f;  // the weights are divided by their sum already
    finish(job, total);
  }
}

}  // namespace attention

// Every pass has the same units, whole tiles of one kv head: nothing is split along the keys, no prefix is shared.
inline void attention_matrix_op(const MatrixArgs& matrix, const Step& step, Worker& worker) {
  namespace plans = attention_plan;
  const AttentionArgs& args = matrix.attention;
  const KvCache& cache = args.cache;
  const int32_t group = args.heads / args.kv_heads;
  const plans::Problem problem{&step, args.kv_heads, group, cache.v_dim, args.window, 1, 0};
  const plans::TileWalk walk{problem};
  const plans::Plan plan{walk, plans::count_units(walk)};
  const plans::ScratchLayout at = plans::scratch_layout(group, cache.k_dim, cache.v_dim);
  const int kp = int(plans::round_up(cache.k_dim, 16)), vp = int(plans::round_up(cache.v_dim, 16));
  char* memory = worker.scratch;
  auto* run = attention::run_pass<KvDType::F32>;
#if defined(FORNO_AVX512)
  if (cache.dtype == KvDType::BF16) run = attention::run_pass<KvDType::BF16>;
  if (cache.dtype == KvDType::INT8) run = attention::run_pass<KvDType::INT8>;
#endif
  attention::Units units{plan, args.kv_heads};
  for_units(worker, plan.units, [&](int32_t number) {
    const attention::Unit unit = units.at(number);
    const attention::Job job{args, unit, nullptr, group, kp, vp, memory + at.query, memory + at.pages, memory + at.clean,
                             reinterpret_cast<float*>(memory + at.scores), memory + at.weights,
                             reinterpret_cast<int32_t*>(memory + at.rows)};
    run(job, attention::score_rows(matrix, step, job), matrix.pass, memory + at.total);
  });
}

}  // namespace
}  // namespace forno
