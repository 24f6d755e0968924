// The queries of a tile, in the form that the micro-kernels of a cache type read.
#pragma once
#include "attention_math.hpp"
#include "elementwise.hpp"

namespace forno {
namespace {
namespace attention {

using attention_plan::Stretch;
using attention_plan::StretchWalk;
using attention_plan::Tile;

// One part of one (tile, kv head).
struct Unit {
  Tile tile;
  int32_t kv_head, part;
};

// Everything a unit's computation needs.
struct Job {
  const AttentionArgs& args;
  const Unit& unit;
  const Unit* next;         // what this worker computes afterwards, or null
  int32_t group;
  int kp, vp;               // padded head dims
  char *query, *pages, *clean;
  float* scores;
  char* weights;
  int32_t* positions;       // [rows]

  int32_t rows() const { return unit.tile.rows; }
  int32_t first_key(int32_t row) const {
    const int32_t end = positions[row] + 1;
    return args.window > 0 && end > args.window ? end - args.window : 0;
  }

  // f(row of the tile, row of the step, its token's position) for every token's first row.
  template <class F>
  FORNO_INLINE void for_tokens(F&& f) const {
    const Tile& t = unit.tile;
    int32_t row = 0;
    auto tokens = [&](const Span& s, int32_t first, int32_t count) {
      for (int32_t i = first; i < first + count; ++i, row += group) f(row, int64_t(s.row0) + i, s.start + i);
    };
    if (t.members == nullptr) return tokens(*t.span, t.token, t.tokens);
    for (int32_t i = 0; i < t.num_members; ++i) tokens(t.spans[t.members[i]], 0, t.spans[t.members[i]].num_tokens);
  }
};

// One query of `dim` values as the micro-kernels of a type read it, in kp * 4 bytes: fp32, bf16, or two int8 digits
// followed by their scale and each group's starts.
template <KvDType kType>
FORNO_INLINE void store_query(const float* q, int dim, int kp, vf scale, char* out) {
  for (int d = 0; d < kp; d += kLanes) {
    const vf v = vload(q + d, dim - d) * scale;
#if defined(FORNO_AVX512)
    if (kPairs<kType>) {
      const __m256bh rounded = _mm512_cvtneps_pbh(v);
      std::memcpy(out + d * 2, &rounded, 32);
      continue;
    }
#endif
    vstore(reinterpret_cast<float*>(out) + d, v);
  }
}

#if defined(FORNO_AVX512)
template <>
FORNO_INLINE void store_query<KvDType::INT8>(const float* q, int dim, int kp, vf scale, char* out) {
  vi bits{};
  for (int d = 0; d < kp; d += kLanes) bits = vmax(bits, reinterpret_cast<vi>(vabs(vload(q + d, dim - d) * scale)));
  const int32_t top = vmax_lane(bits);
  float amax;
  std::memcpy(&amax, &top, 4);
  const bool finite = top < 0x7f800000, tiny = amax < 0x1p-100f;  // a NaN scale makes every score NaN
  const vf inverse = vset(!finite || tiny ? 0.0f : 127.0f / amax);
  vi sum{};
  for (int d = 0; d < kp; d += kLanes) {
    const vf v = finite ? vload(q + d, dim - d) * scale * inverse : vf{};
    const vf high = vround(v);
    const vi high_digit = vround_words(high), low_digit = vround_words((v - high) * vset(128.0f));
    vstore_s8(reinterpret_cast<int8_t*>(out) + d, high_digit);
    vstore_s8(reinterpret_cast<int8_t*>(out) + kp + d, low_digit);
    sum += 128 * high_digit + low_digit;
    if ((d + kLanes) % kKvGroup != 0 && d + kLanes < kp) continue;
    const int32_t start = -128 * vsum(sum);
    std::memcpy(out + 2 * kp + 4 + d / kKvGroup * 4, &start, 4);
    sum = vi{};
  }
  const float unit = finite ? amax / (127.0f * 128.0f) : __builtin_nanf("");
  std::memcpy(out + 2 * kp, &unit, sizeof unit);
}
#endif

// Bytes between the stored queries of two rows.
template <KvDType kType>
constexpr int64_t query_stride(int64_t kp) {
  return kNative && kType == KvDType::BF16 ? kp * 2 : kp * 4;
}

template <KvDType kType>
void load_queries(const Job& job) {
  const vf scale = vset(job.args.softcap > 0.0f ? job.args.scale : job.args.scale * kLog2e);
  const int32_t dim = job.args.head_dim;
  const int64_t stride = query_stride<kType>(job.kp);
  job.for_tokens([&](int32_t row, int64_t source, int32_t position) {
    const float* q = elementwise::row_f32(job.args.q, source) + int64_t(job.unit.kv_head) * job.group * dim;
    for (int32_t g = 0; g < job.group; ++g, ++row, q += dim) {
      job.positions[row] = position;
      store_query<kType>(q, dim, job.kp, scale, job.query + row * stride);
    }
  });
}

}  // namespace attention
}  // namespace
}  // namespace forno
