// Reads block-quantized panels (packed.hpp): codes as vectors of words (4 weights of kLanes outputs), scales and
// minimums as vectors of floats. The same reads serve every instruction set; two helpers at the top differ.
#pragma once
#include "../isa/simd.hpp"
#include "../packed.hpp"

namespace forno {
namespace {

// table[code] for each byte of the words; codes are 0..15.
FORNO_INLINE vi lookup_bytes(const uint8_t* table, vi codes) {
#if defined(FORNO_AVX512)
  const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return reinterpret_cast<vi>(_mm512_shuffle_epi8(t, reinterpret_cast<__m512i>(codes)));
#elif defined(FORNO_AVX2)
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return reinterpret_cast<vi>(_mm256_shuffle_epi8(t, reinterpret_cast<__m256i>(codes)));
#else
  uint8_t bytes[sizeof(vi)];
  std::memcpy(bytes, &codes, sizeof bytes);
  for (uint8_t& b : bytes) b = table[b];
  return vload_words(bytes);
#endif
}

// 16 for each byte of the words whose bit is set in `bits` (kLanes / 2 bytes), else 0.
FORNO_INLINE vi spread_fifth_bits(const uint8_t* bits) {
#if defined(FORNO_AVX512)
  uint64_t mask;
  std::memcpy(&mask, bits, 8);
  return reinterpret_cast<vi>(_mm512_maskz_mov_epi8(mask, _mm512_set1_epi8(16)));
#elif defined(FORNO_AVX2)
  int32_t word;
  std::memcpy(&word, bits, 4);
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), byte_of), bit_of);
  return reinterpret_cast<vi>(_mm256_and_si256(_mm256_cmpeq_epi8(spread, bit_of), _mm256_set1_epi8(16)));
#else
  vi words{};
  for (int i = 0; i < kLanes; ++i) {
    const int32_t nibble = bits[i / 2] >> 4 * (i & 1) & 15;
    words[i] = (nibble & 1) << 4 | (nibble & 2) << 11 | (nibble & 4) << 18 | (nibble & 8) << 25;
  }
  return words;
#endif
}

// Codes and scales straight from a packed panel. `column` is a multiple of kLanes.
template <class L>
struct Packed {
  static constexpr int kGroup = L::kGroup, kParts = kBlock / kGroup, kZero = L::kZero, kBits = L::kBits;
  static constexpr bool kMin = L::kMin, kLookup = L::kLookup;
  static constexpr int kBlockBytes = L::kBlockBytes, kHeaderBytes = L::kHeaderBytes;

  static FORNO_INLINE vi codes(const uint8_t* block, int step, int column) {
    if constexpr (L::kBits == 8) return vload_words(block + step * 256 + column * 4);
    vi q = vload_words(block + step % 4 * 256 + column * 4);
    q = (step < 4 ? q : q >> 4) & 0x0f0f0f0f;
    if constexpr (L::kLookup) return lookup_bytes(kIq4Values, q);
    if constexpr (L::kBits == 5) {
#if defined(FORNO_AVX512)
      uint64_t mask;
      std::memcpy(&mask, block + L::kHigh + step * 32 + column / 2, 8);
      const __m512i low = reinterpret_cast<__m512i>(q);
      return reinterpret_cast<vi>(_mm512_mask_add_epi8(low, mask, low, _mm512_set1_epi8(16)));
#else
      return q | spread_fifth_bits(block + L::kHigh + step * 32 + column / 2);
#endif
    }
    if constexpr (L::kBits == 6) {
      const vi pairs = vload_words(block + L::kHigh + step / 4 * 256 + column * 4);
      return q | ((step % 4 < 2 ? pairs << (4 - 2 * (step % 4)) : pairs >> (2 * (step % 4) - 4)) & 0x30303030);
    }
    return q;
  }

  // `part`: which group of the block, where a block has two.
  static FORNO_INLINE vf scale(const uint8_t* block, const uint8_t* header, int part, int column) {
    if constexpr (!L::kTwoLevel) return vload_f16(block + L::kScale + 2 * column);
    const vf d = vload_f16(header + 2 * column);
    const uint8_t* small = block + L::kScale + part * kPanel + column;
    if constexpr (L::kGroup == 16) return d * vfloat(vload_s8(reinterpret_cast<const int8_t*>(small)));
    return d * vfloat(vload_u8(small));
  }

  static FORNO_INLINE vf minimum(const uint8_t* block, const uint8_t* header, int column) {
    if constexpr (!L::kTwoLevel) return vload_f16(block + L::kMinimum + 2 * column);
    return -(vload_f16(header + 2 * kPanel + 2 * column) * vfloat(vload_u8(block + L::kMinimum + column)));
  }
};

// The same, expanded: a byte per code, an fp32 per scale and minimum. What panel mode keeps in scratch, so that many
// rows share one unpacking. The values are those of Packed<L>, bit for bit.
template <class L>
struct Expanded {
  static constexpr int kGroup = L::kGroup, kParts = kBlock / kGroup, kZero = L::kZero, kBits = L::kLookup ? 8 : L::kBits;
  static constexpr bool kMin = L::kMin, kLookup = false;
  static constexpr int kScale = kBlock * kPanel, kMinimum = kScale + kParts * kPanel * 4;
  static constexpr int kBlockBytes = kMinimum + (kMin ? kPanel * 4 : 0), kHeaderBytes = 0;

  static FORNO_INLINE vi codes(const uint8_t* block, int step, int column) {
    return vload_words(block + step * 256 + column * 4);
  }
  static FORNO_INLINE vf scale(const uint8_t* block, const uint8_t*, int part, int column) {
    return vload(reinterpret_cast<const float*>(block + kScale) + part * kPanel + column);
  }
  static FORNO_INLINE vf minimum(const uint8_t* block, const uint8_t*, int column) {
    return vload(reinterpret_cast<const float*>(block + kMinimum) + column);
  }
};

// Unpacks `columns` columns from `column` on of `blocks` blocks. `panel` is at a header where the layout has headers.
template <class L>
void expand(const uint8_t* panel, int32_t blocks, int32_t column, int32_t columns, uint8_t* out) {
  using P = Packed<L>;
  using E = Expanded<L>;
  const uint8_t* header = panel;
  for (int32_t b = 0; b < blocks; ++b, out += E::kBlockBytes) {
    if (P::kHeaderBytes && b % kSuperBlocks == 0) {
      header = panel;
      panel += P::kHeaderBytes;
    }
    for (int c = column; c < column + columns; c += kLanes) {
#pragma GCC unroll 8
      for (int s = 0; s < 8; ++s) vstore_words(out + s * 256 + c * 4, P::codes(panel, s, c));
      for (int part = 0; part < E::kParts; ++part)
        vstore(reinterpret_cast<float*>(out + E::kScale) + part * kPanel + c, P::scale(panel, header, part, c));
      if constexpr (E::kMin) vstore(reinterpret_cast<float*>(out + E::kMinimum) + c, P::minimum(panel, header, c));
    }
    panel += P::kBlockBytes;
  }
}

}  // namespace
}  // namespace forno
