// The queries of a tile, in the form that the micro-kernels of a cache type read.
#pragma once
#include "attention_math.hpp"
#include "elementwise.hpp"

namespace forno {
namespace {
namespace attention {

using attention_plan::Tile;

// Everything one (tile, kv head) needs.
struct Job {
  const AttentionArgs& args;
  const Tile& tile;
  int32_t kv_head, group, rows;
  int kp, vp;               // padded head dims
  char *query, *pages, *clean;
  float* scores;
  char* weights;

  int32_t position(int32_t row) const { return tile.span->start + tile.token + row / group; }
  int32_t first_key(int32_t row) const {
    const int32_t end = position(row) + 1;
    return args.window > 0 && end > args.window ? end - args.window : 0;
  }
};

// One query of `dim` values as the micro-kernels of a type read it, in kp * 4 bytes: fp32, bf16, or two int8 digits.
template <KvDType kType>
FORNO_INLINE void store_query(const float* q, int dim, int kp, vf scale, char* out) {
  for (int d = 0; d < kp; d += kLanes) {
    const vf v = vload(q + d, dim - d) * scale;
    if (kPairs<kType>) vstore_bf16(reinterpret_cast<uint16_t*>(out) + d, v);
    else vstore(reinterpret_cast<float*>(out) + d, v);
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
  vi high_sum{}, low_sum{};
  for (int d = 0; d < kp; d += kLanes) {
    const vf v = finite ? vload(q + d, dim - d) * scale * inverse : vf{};
    const vf high = vround(v);
    const vi high_digit = vround_words(high), low_digit = vround_words((v - high) * vset(128.0f));
    vstore_s8(reinterpret_cast<int8_t*>(out) + d, high_digit);
    vstore_s8(reinterpret_cast<int8_t*>(out) + kp + d, low_digit);
    high_sum += high_digit;
    low_sum += low_digit;
  }
  const float unit = finite ? amax / (127.0f * 128.0f) : __builtin_nanf("");
  const Int8Query head{unit, -128 * vsum(high_sum), -128 * vsum(low_sum)};
  std::memcpy(out + 2 * kp, &head, sizeof head);
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
  for (int32_t row = 0; row < job.rows; ++row) {
    const int64_t source = job.tile.span->row0 + job.tile.token + row / job.group;
    const int32_t head = job.kv_head * job.group + row % job.group;
    const float* q = elementwise::row_f32(job.args.q, source) + int64_t(head) * dim;
    store_query<kType>(q, dim, job.kp, scale, job.query + row * query_stride<kType>(job.kp));
  }
}

}  // namespace attention
}  // namespace
}  // namespace forno
