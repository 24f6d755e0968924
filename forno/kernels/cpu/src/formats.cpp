#include "formats.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace forno {
namespace {

constexpr FormatInfo kFormats[kNumFormats] = {
    {"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},     {"q8_0", 32, 34},   {"q4_0", 32, 18},   {"q4_1", 32, 20},
    {"q5_0", 32, 22},   {"q5_1", 32, 24},   {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210}, {"iq4_nl", 32, 18},
    {"w8a8", 32, 32},
};

uint16_t load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

uint32_t load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Byte i holds code i in its low nibble and code i + 16 in its high one.
void decode_nibbles(const uint8_t* p, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = p[i] & 15;
    q[i + 16] = p[i] >> 4;
  }
}

void add_fifth_bits(uint32_t bits, uint8_t* q) {
  for (int i = 0; i < 32; ++i) q[i] |= uint8_t((bits >> i & 1) << 4);
}

// Integer scale and minimum of sub-block j: 8 pairs of 6 bits in 12 bytes.
void decode_k_scales(const uint8_t* s, int j, DecodedBlock& out) {
  if (j < 4) {
    out.small[0] = s[j] & 63;
    out.small_min = s[j + 4] & 63;
  } else {
    out.small[0] = uint8_t((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    out.small_min = uint8_t((s[j + 4] >> 4) | (s[j] >> 6) << 4);
  }
}

// q4_k and q5_k: d, dmin, scales[12], (one high bit per weight: byte l, bit j,) nibbles: 32 bytes per pair of sub-blocks.
void decode_k45(const uint8_t* p, int j, bool five, DecodedBlock& out) {
  out.scale = load16(p);
  out.min = load16(p + 2);
  decode_k_scales(p + 4, j, out);
  const uint8_t* nibbles = p + (five ? 48 : 16) + 32 * (j / 2);
  const int shift = 4 * (j & 1);
  for (int l = 0; l < 32; ++l) out.q[l] = (nibbles[l] >> shift) & 15;
  if (!five) return;
  for (int l = 0; l < 32; ++l) out.q[l] |= uint8_t((p[16 + l] >> j & 1) << 4);
}

// q6_k: low nibbles[128], high pairs[64], int8 scales[16] (one per 16 weights), d. Sub-block j is quarter i of half h.
void decode_q6_k(const uint8_t* p, int j, DecodedBlock& out) {
  const int h = j / 4, i = j % 4;
  const uint8_t* low = p + 64 * h + 32 * (i & 1);
  const uint8_t* high = p + 128 + 32 * h;
  for (int l = 0; l < 32; ++l) out.q[l] = uint8_t(((low[l] >> 4 * (i / 2)) & 15) | ((high[l] >> 2 * i) & 3) << 4);
  out.small[0] = p[192 + 2 * j];
  out.small[1] = p[192 + 2 * j + 1];
  out.scale = load16(p + 208);
}

// Nearest even for |x| < 2^22, without a call.
float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

void store16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

uint16_t finite_half(float value) {
  const uint16_t half = float_to_half(value);
  if ((half & 0x7c00) == 0x7c00) throw std::invalid_argument("a weight is not finite, or too large for an fp16 scale");
  return half;
}

void encode_q8_0(const float* x, uint8_t* out) {
  float amax = 0;
  for (int i = 0; i < 32; ++i) amax = std::isnan(x[i]) ? INFINITY : std::max(amax, std::fabs(x[i]));
  const uint16_t half = finite_half(amax / 127.0f);
  const float d = half_to_float_scalar(half);
  store16(out, half);
  for (int i = 0; i < 32; ++i) {
    const float q = d == 0 ? 0.0f : round_even(std::clamp(x[i] / d, -127.0f, 127.0f));
    out[2 + i] = uint8_t(int8_t(q));
  }
}

// Codes of x for x ~= d q + m with d and m rounded to fp16; returns the squared error.
float fit_q4_1(const float* x, float d, float m, uint8_t* q, uint16_t* halves) {
  halves[0] = finite_half(d);
  halves[1] = finite_half(m);
  d = half_to_float_scalar(halves[0]);
  m = half_to_float_scalar(halves[1]);
  float error = 0;
  for (int i = 0; i < 32; ++i) {
    const float code = d == 0 ? 0.0f : round_even(std::clamp((x[i] - m) / d, 0.0f, 15.0f));
    const float e = x[i] - (d * code + m);
    q[i] = uint8_t(code);
    error += e * e;
  }
  return error;
}

// Start from the range [min, max] in 15 steps; then, for these codes, take the line d q + m of least squares and code
// again, as long as that helps.
void encode_q4_1(const float* x, uint8_t* out) {
  float low = x[0], high = x[0];
  for (int i = 0; i < 32; ++i) {
    if (!std::isfinite(x[i])) finite_half(x[i]);
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  uint8_t q[32], best[32] = {};
  uint16_t halves[2], best_halves[2] = {};
  float least = INFINITY, d = (high - low) / 15, m = low;
  for (int round = 0; round < 4; ++round) {
    const float error = fit_q4_1(x, d, m, q, halves);
    if (!(error < least)) break;
    least = error;
    std::memcpy(best, q, sizeof q);
    std::memcpy(best_halves, halves, sizeof halves);
    float sq = 0, sqq = 0, sx = 0, sqx = 0;
    for (int i = 0; i < 32; ++i) {
      sq += q[i];
      sqq += float(q[i]) * q[i];
      sx += x[i];
      sqx += q[i] * x[i];
    }
    const float variance = 32 * sqq - sq * sq;
    if (variance == 0) break;
    d = (32 * sqx - sq * sx) / variance;
    m = (sx - d * sq) / 32;
  }
  store16(out, best_halves[0]);
  store16(out + 2, best_halves[1]);
  for (int i = 0; i < 16; ++i) out[4 + i] = uint8_t(best[i] | best[i + 16] << 4);
}

}  // namespace

const FormatInfo& format_info(Format format) { return kFormats[int32_t(format)]; }

const char* format_name(Format format) { return format_info(format).name; }

Format format_of(const char* name) {
  for (int32_t i = 0; i < kNumFormats; ++i)
    if (!std::strcmp(kFormats[i].name, name)) return Format(i);
  throw std::invalid_argument(std::string("unknown weight format '") + name + "'");
}

void decode_block(Format format, const uint8_t* row, int64_t index, DecodedBlock& out) {
  const FormatInfo& info = format_info(format);
  const int64_t per_file_block = info.block / 32;
  const uint8_t* p = row + index / per_file_block * info.block_bytes;
  switch (format) {
    case Format::Q8_0:
      out.scale = load16(p);
      for (int i = 0; i < 32; ++i) out.q[i] = p[2 + i] ^ 0x80;
      break;
    case Format::Q4_0:
    case Format::IQ4_NL:
      out.scale = load16(p);
      decode_nibbles(p + 2, out.q);
      break;
    case Format::Q4_1:
      out.scale = load16(p);
      out.min = load16(p + 2);
      decode_nibbles(p + 4, out.q);
      break;
    case Format::Q5_0:
      out.scale = load16(p);
      decode_nibbles(p + 6, out.q);
      add_fifth_bits(load32(p + 2), out.q);
      break;
    case Format::Q5_1:
      out.scale = load16(p);
      out.min = load16(p + 2);
      decode_nibbles(p + 8, out.q);
      add_fifth_bits(load32(p + 4), out.q);
      break;
    case Format::Q4_K:
    case Format::Q5_K:
      decode_k45(p, int(index % 8), format == Format::Q5_K, out);
      break;
    case Format::Q6_K:
      decode_q6_k(p, int(index % 8), out);
      break;
    default:
      break;
  }
}

float half_to_float_scalar(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 0) {
    const float subnormal = float(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &subnormal, 4);
  } else {
    bits = (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | mantissa << 13;
  }
  bits |= sign;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) return sign | uint16_t(round_even(magnitude * 0x1p24f));
  bits &= 0x7fffffff;
  const uint32_t rounded = bits + 0xfff + (bits >> 13 & 1);
  return sign | uint16_t((rounded >> 13) - (112 << 10));
}

float float_at(Format format, const uint8_t* row, int64_t index) {
  if (format == Format::F16) return half_to_float_scalar(load16(row + 2 * index));
  const uint32_t bits = format == Format::BF16 ? uint32_t(load16(row + 2 * index)) << 16 : load32(row + 4 * index);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void quantize_row_to_blocks(Format from, const uint8_t* row, int64_t k, Format to, uint8_t* out) {
  float x[32];
  for (int64_t i = 0; i < k; i += 32, out += format_info(to).block_bytes) {
    for (int j = 0; j < 32; ++j) x[j] = float_at(from, row, i + j);
    to == Format::Q8_0 ? encode_q8_0(x, out) : encode_q4_1(x, out);
  }
}

}  // namespace forno
