// Storing keys and values into pages, alone or fused with what precedes it: q/k norm and rotary embedding.
// What kv_write stores is the same, bit for bit, on every instruction set.
#pragma once
#include "attention_pages.hpp"
#include "norm.hpp"
#include "rope.hpp"

namespace forno {
namespace {
namespace kv {

// q[i] = round(x[i] * 127 / amax) ^ flip, padded with zeros to 16. Returns the scale amax / 127, NaN if a value is not
// finite. The rules of quantize_group_s8, over a head.
FORNO_INLINE float quantize_head(const float* x, int32_t n, uint8_t flip, uint8_t* q) {
  vi bits{};
  for (int32_t i = 0; i < n; i += kLanes) bits = vmax(bits, reinterpret_cast<vi>(vabs(vload(x + i, n - i))));
  const int32_t top = vmax_lane(bits);
  float amax;
  std::memcpy(&amax, &top, 4);
  const int32_t padded = int32_t(attention_plan::round_up(n, 16));
  if (top >= 0x7f800000 || amax < 0x1p-118f) {
    std::memset(q, flip, size_t(padded));
    return top >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
  }
  const vf inverse = vset(127.0f / amax);
  for (int32_t i = 0; i < padded; i += kLanes)
    vstore_s8(reinterpret_cast<int8_t*>(q) + i, vround_words(vload(x + i, n - i) * inverse));
  if (flip) for (int32_t i = 0; i < padded; ++i) q[i] ^= flip;
  return amax / 127.0f;
}

// One head's key or value in the cache's type, padded with zeros to 16; returns its scale, if it has one.
FORNO_INLINE float pack_head(KvDType type, const float* x, int32_t n, uint8_t flip, char* out) {
  if (type == KvDType::INT8) return quantize_head(x, n, flip, reinterpret_cast<uint8_t*>(out));
  const int32_t padded = int32_t(attention_plan::round_up(n, 16));
  for (int32_t i = 0; i < padded; i += kLanes) {
    if (type == KvDType::BF16) vstore_bf16(reinterpret_cast<uint16_t*>(out) + i, vload(x + i, n - i));
    else vstore(reinterpret_cast<float*>(out) + i, vload(x + i, n - i));
  }
  return 1.0f;
}

// A packed value of elements T into slot t of V. Neighbouring slots may be written by other workers at the same time:
// no store touches a byte of another slot.
template <class T>
FORNO_INLINE void scatter_value(const char* packed, int32_t padded, int t, char* v) {
  constexpr int kPer = int(4 / sizeof(T));  // tokens that share a dword
  const T* in = reinterpret_cast<const T*>(packed);
  T* out = reinterpret_cast<T*>(v) + int64_t(t / kPer) * padded * kPer + t % kPer;
  for (int32_t d = 0; d < padded; ++d) out[int64_t(d) * kPer] = in[d];
}

// One head's key and value into slot t of a page. In every type K's slot is a column of dwords.
FORNO_INLINE void write_slot(const KvCache& c, char* page, int t, const float* k, const float* v, char* buffer) {
  const int32_t element = c.dtype == KvDType::F32 ? 4 : c.dtype == KvDType::BF16 ? 2 : 1;
  const float k_scale = pack_head(c.dtype, k, c.k_dim, 0x80, buffer);
  const int32_t dwords = int32_t(attention_plan::round_up(c.k_dim, 16)) * element / 4;
  for (int32_t i = 0; i < dwords; ++i) std::memcpy(page + (int64_t(i) * kPage + t) * 4, buffer + i * 4, 4);
  const float v_scale = pack_head(c.dtype, v, c.v_dim, 0, buffer);
  const int32_t padded = int32_t(attention_plan::round_up(c.v_dim, 16));
  if (c.dtype == KvDType::F32) scatter_value<float>(buffer, padded, t, page + c.v_offset);
  if (c.dtype == KvDType::BF16) scatter_value<uint16_t>(buffer, padded, t, page + c.v_offset);
  if (c.dtype != KvDType::INT8) return;
  scatter_value<int8_t>(buffer, padded, t, page + c.v_offset);
  reinterpret_cast<float*>(page + c.k_scale_offset)[t] = k_scale;
  reinterpret_cast<float*>(page + c.v_scale_offset)[t] = v_scale;
}

// All heads of one row; `buffer` holds round_up(max dim, 16) floats.
inline void write_row(const KvCache& c, const Step& step, int32_t row, const float* k, const float* v, char* buffer) {
  const int32_t position = step.positions[row], t = position % kPage;
  const int32_t* blocks = step.spans[step.row_span[row]].blocks;
  for (int32_t h = 0; h < c.kv_heads; ++h, k += c.k_dim, v += c.v_dim)
    write_slot(c, attention::page_of(c, blocks, position, h), t, k, v, buffer);
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
