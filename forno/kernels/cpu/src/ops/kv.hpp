// Storing keys and values into pages, alone or fused with what precedes it: q/k norm and rotary embedding.
// The stored bits are the same on every instruction set.
#pragma once
#include "attention_pages.hpp"
#include "norm.hpp"
#include "rope.hpp"

namespace forno {
namespace {
namespace kv {

FORNO_INLINE uint16_t bf16_bits(float x) {
  uint32_t b;
  __builtin_memcpy(&b, &x, 4);
  if ((b & 0x7fffffffu) > 0x7f800000u) return uint16_t((b >> 16) | 0x40u);
  return uint16_t((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

// q[i] = round(x[i] * 127 / amax) ^ flip for i < n; q holds whole vectors. Returns the scale amax / 127, NaN if a value
// is not finite. The rules of quantize_group_s8, over a head.
FORNO_INLINE float quantize_head(const float* x, int32_t n, uint8_t flip, uint8_t* q) {
  vi bits{};
  for (int32_t i = 0; i < n; i += kLanes) bits = vmax(bits, reinterpret_cast<vi>(vabs(vload(x + i, n - i))));
  const int32_t top = vmax_lane(bits);
  float amax;
  std::memcpy(&amax, &top, 4);
  if (top >= 0x7f800000 || amax < 0x1p-118f) {
    std::memset(q, flip, size_t(n));
    return top >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
  }
  const vf inverse = vset(127.0f / amax);
  for (int32_t i = 0; i < n; i += kLanes)
    vstore_s8(reinterpret_cast<int8_t*>(q) + i, vround_words(vload(x + i, n - i) * inverse));
  for (int32_t i = 0; i < n; ++i) q[i] ^= flip;
  return amax / 127.0f;
}

// One head's key and value into slot `t` of a page, by the layout of types.hpp. Neighbouring slots may be written by
// other workers at the same time: no store touches a byte of another slot.
inline void write_f32(const KvCache& c, char* page, int t, const float* k, const float* v) {
  const int64_t vp = attention_plan::round_up(c.v_dim, 16);
  float *ks = reinterpret_cast<float*>(page), *vs = reinterpret_cast<float*>(page + c.v_offset);
  for (int32_t d = 0; d < c.k_dim; ++d) ks[d * kPage + t] = k[d];
  __builtin_memcpy(vs + t * vp, v, size_t(c.v_dim) * 4);
}

inline void write_bf16(const KvCache& c, char* page, int t, const float* k, const float* v) {
  const int64_t vp = attention_plan::round_up(c.v_dim, 16);
  uint16_t *ks = reinterpret_cast<uint16_t*>(page), *vs = reinterpret_cast<uint16_t*>(page + c.v_offset);
  for (int32_t d = 0; d < c.k_dim; d += 2) {
    const uint32_t low = bf16_bits(k[d]), high = d + 1 < c.k_dim ? bf16_bits(k[d + 1]) : 0;
    const uint32_t pair = low | high << 16;
    __builtin_memcpy(ks + (d / 2 * kPage + t) * 2, &pair, 4);
  }
  for (int32_t d = 0; d < c.v_dim; ++d) vs[(t / 2 * vp + d) * 2 + (t & 1)] = bf16_bits(v[d]);
}

inline void write_int8(const KvCache& c, char* page, int t, const float* k, const float* v, uint8_t* buffer) {
  const int64_t vp = attention_plan::round_up(c.v_dim, 16);
  uint8_t *ks = reinterpret_cast<uint8_t*>(page), *vs = reinterpret_cast<uint8_t*>(page + c.v_offset);
  const float k_scale = quantize_head(k, c.k_dim, 0x80, buffer);
  for (int32_t d = 0; d < c.k_dim; ++d) ks[(d / 4 * kPage + t) * 4 + (d & 3)] = buffer[d];
  const float v_scale = quantize_head(v, c.v_dim, 0, buffer);
  for (int32_t d = 0; d < c.v_dim; ++d) vs[(t / 4 * vp + d) * 4 + (t & 3)] = buffer[d];
  reinterpret_cast<float*>(page + c.k_scale_offset)[t] = k_scale;
  reinterpret_cast<float*>(page + c.v_scale_offset)[t] = v_scale;
}

// All heads of one row; `buffer` holds round_up(max dim, 16) bytes.
inline void write_row(const KvCache& c, const Step& step, int32_t row, const float* k, const float* v, char* buffer) {
  const int32_t position = step.positions[row], t = position % kPage;
  const int32_t* blocks = step.spans[step.row_span[row]].blocks;
  for (int32_t h = 0; h < c.kv_heads; ++h, k += c.k_dim, v += c.v_dim) {
    char* page = attention::page_of(c, blocks, position, h);
    if (c.dtype == KvDType::BF16) write_bf16(c, page, t, k, v);
    else if (c.dtype == KvDType::INT8) write_int8(c, page, t, k, v, reinterpret_cast<uint8_t*>(buffer));
    else write_f32(c, page, t, k, v);
  }
}

// Optional norm, then rotation, of `heads` heads.
FORNO_INLINE void prepare_heads(const QkvPrepareArgs& a, const float* x, float* out, int32_t heads, const float* weight,
                                const float* angles) {
  for (int32_t h = 0; h < heads; ++h, x += a.head_dim, out += a.head_dim) {
    if (weight == nullptr) {
      rotary::rotate_head(x, out, a.head_dim, a.rope_dim, angles);
      continue;
    }
    const vf inverse = vset(norm::inverse_rms(x, a.head_dim, a.eps));
    for (int32_t i = 0; i < a.head_dim; i += kLanes)
      vstore(out + i, norm::scaled(x + i, weight + i, inverse, a.head_dim - i), a.head_dim - i);
    rotary::rotate_head(out, out, a.head_dim, a.rope_dim, angles);
  }
}

}  // namespace kv

inline void kv_write(const KvWriteArgs& args, const Step& step, Worker& worker) {
  for_units(worker, step.num_rows, [&](int32_t row) {
    kv::write_row(args.cache, step, row, elementwise::row_f32(args.k, row), elementwise::row_f32(args.v, row), worker.scratch);
  });
}

inline void qkv_prepare(const QkvPrepareArgs& args, const Step& step, Worker& worker) {
  const int64_t q_width = int64_t(args.heads) * args.head_dim, k_width = int64_t(args.kv_heads) * args.head_dim;
  float* k = reinterpret_cast<float*>(worker.scratch);
  char* buffer = worker.scratch + attention_plan::round_up(k_width * 4, 64);
  for_units(worker, step.num_rows, [&](int32_t row) {
    const float* angles = args.cos_sin + int64_t(step.positions[row]) * args.rope_dim;
    const float* x = elementwise::row_f32(args.x, row);
    float* out = reinterpret_cast<float*>(args.out.data + row * args.out.stride);
    kv::prepare_heads(args, x, out, args.heads, args.q_norm, angles);
    kv::prepare_heads(args, x + q_width, k, args.kv_heads, args.k_norm, angles);
    kv::write_row(args.cache, step, row, k, x + q_width + k_width, buffer);
  });
}

}  // namespace
}  // namespace forno
