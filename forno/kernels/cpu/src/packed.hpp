// Weights in the order the kernels read them: one layout for every instruction set.
//
// Outputs are cut into panels of 64, zero-padded. Along K a panel is one linear stream of blocks of 32 weights; inside
// a block, K-step s (4 weights) holds 4 bytes of output 0, 4 bytes of output 1, ... so that one 64-byte line is 16
// outputs x 4 weights, what a byte dot product wants, and four lines lie side by side:
//   8 bits   [8 K-steps][64 outputs][4]     u8
//   nibbles  [4][64][4]                     low nibble: K-step s, high nibble: K-step s + 4
//   5th bit  [8][64] x 4 bits               bit 4 * output + i of a K-step is weight i's
//   2 bits   [2][64][4]                     bits 2t, 2t+1 of line s: K-step 4 s + t
// then its scales, then its minimums, each [64]. A weight is scale * (q - kZero), or scale * q + min.
// K-quants keep their two levels: a header with fp16 d[64] (and dmin[64]) before every 8 blocks, small integers inside.
// w8a8 has a scale per output: its blocks hold codes only, and after the last one the panel ends with fp32 scales [64].
// Floats: f32 [K][64], f16 [K][64], bf16 [(K + 1) / 2][64][2].
//
// Nothing is requantized: what comes out is what the file's format defines, bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>

namespace forno {

enum class Format : int32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, W8A8 };
constexpr int32_t kNumFormats = 13;

// What is written to disk in these layouts says so. Raise it with every change of what pack() makes of a source: a layout
// above, or how float weights are quantized. Images of another number are packed again.
constexpr int32_t kPackedLayout = 1;

constexpr int32_t kPanel = 64;      // outputs side by side
constexpr int32_t kBlock = 32;      // weights along K that share a scale
constexpr int32_t kSuperBlocks = 8;  // blocks that share a header

// A packed weight matrix [n, k]; owns its memory, or lies in memory that its maker keeps (a model's matrices side by side:
// one stream of huge pages, however small each is). Filled panel by panel by pack(); read-only afterwards.
//
// Interleaved, it holds two matrices of equal shape, gate and up, n / 2 outputs each: panel p is gate outputs
// [32 p, 32 p + 32), then the same of up, both zero-padded. Its bias, if any, has that order and length panels * 64.
struct PackedMatrix {
  Format format;
  int32_t n, k;
  int32_t panels;
  bool interleaved;
  int64_t panel_bytes;
  uint8_t* data;  // 64-byte aligned
  size_t bytes;   // a multiple of 64
  bool owner;

  // Allocates, unless `memory` is given: packed_bytes() bytes, 64-byte aligned, that outlive the matrix.
  // Throws std::invalid_argument if the shape is not positive or k is no multiple of the format's block.
  PackedMatrix(Format format, int64_t n, int64_t k, bool interleaved, uint8_t* memory = nullptr);
  ~PackedMatrix();
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;
};

// Bytes that such a matrix takes. Throws std::invalid_argument as its constructor does.
size_t packed_bytes(Format format, int64_t n, int64_t k, bool interleaved);

// The rows of a matrix as a file holds them, one after the other in `format`'s blocks.
struct Source {
  const uint8_t* data;
  size_t bytes;
  Format format;             // another than the matrix's: f32, f16 or bf16 rows, quantized to q8_0 or q4_1
  const int32_t* row_order;  // null, or [row_order_length]: row i of the matrix is row row_order[i] of data
  size_t row_order_length;
  const float* scales;       // of w8a8 [scales_length], by the rows of data; else null
  size_t scales_length;
};

// Fills panels [first, last) from one source, or from gate and up of an interleaved matrix. Disjoint ranges may be
// packed at the same time. Throws std::invalid_argument if a length, an order or a range does not fit.
void pack(PackedMatrix& matrix, const Source* sources, int32_t num_sources, int32_t first, int32_t last);

// Row `row` as floats, out[k]; of an interleaved matrix, gate's rows come first, then up's.
void dequantize_row(const PackedMatrix& matrix, int32_t row, float* out);

const char* format_name(Format format);
// Throws std::invalid_argument for an unknown name.
Format format_of(const char* name);

namespace {  // geometry: internal linkage, since every build unit includes this

// Where the parts of a block-quantized panel lie, in bytes.
template <int Bits, bool Lookup, bool TwoLevel, bool Min>
struct BlockLayout {
  static constexpr int kBits = Bits;
  static constexpr bool kLookup = Lookup;      // nibbles are indices into kIq4Values
  static constexpr bool kTwoLevel = TwoLevel;
  static constexpr bool kMin = Min;
  static constexpr int kGroup = Bits == 6 ? 16 : 32;  // weights along K per scale
  static constexpr int kZero = Min ? 0 : Lookup ? 128 : 1 << (Bits - 1);
  static constexpr int kHigh = Bits == 8 ? 2048 : 1024;
  static constexpr int kScale = kHigh + (Bits == 5 ? 256 : Bits == 6 ? 512 : 0);
  static constexpr int kMinimum = kScale + (TwoLevel && Bits != 6 ? 64 : 128);
  static constexpr int kBlockBytes = kMinimum + (!Min ? 0 : TwoLevel ? 64 : 128);
  static constexpr int kHeaderBytes = !TwoLevel ? 0 : Min ? 256 : 128;

  static constexpr int64_t offset(int64_t block) {  // of block's quants; its header is at header()
    return block * kBlockBytes + (block / kSuperBlocks + 1) * kHeaderBytes;
  }
  static constexpr int64_t header(int64_t block) {
    return (block / kSuperBlocks) * (kSuperBlocks * kBlockBytes + kHeaderBytes);
  }
};

using LayoutQ8_0 = BlockLayout<8, false, false, false>;
using LayoutQ4_0 = BlockLayout<4, false, false, false>;
using LayoutQ4_1 = BlockLayout<4, false, false, true>;
using LayoutQ5_0 = BlockLayout<5, false, false, false>;
using LayoutQ5_1 = BlockLayout<5, false, false, true>;
using LayoutQ4_K = BlockLayout<4, false, true, true>;
using LayoutQ5_K = BlockLayout<5, false, true, true>;
using LayoutQ6_K = BlockLayout<6, false, true, false>;
using LayoutIQ4_NL = BlockLayout<4, true, false, false>;

struct LayoutW8A8 {
  static constexpr int kZero = 128;
  static constexpr int kBlockBytes = kBlock * kPanel;
  static constexpr int kScaleBytes = kPanel * 4;
};

// The values of IQ4_NL's 16 codes, plus 128.
constexpr uint8_t kIq4Values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// Calls f with the layout of a block-quantized format.
template <class F>
inline void with_layout(Format format, F&& f) {
  switch (format) {
    case Format::Q8_0: return f(LayoutQ8_0{});
    case Format::Q4_0: return f(LayoutQ4_0{});
    case Format::Q4_1: return f(LayoutQ4_1{});
    case Format::Q5_0: return f(LayoutQ5_0{});
    case Format::Q5_1: return f(LayoutQ5_1{});
    case Format::Q4_K: return f(LayoutQ4_K{});
    case Format::Q5_K: return f(LayoutQ5_K{});
    case Format::Q6_K: return f(LayoutQ6_K{});
    case Format::IQ4_NL: return f(LayoutIQ4_NL{});
    default: return;  // floats have no blocks, w8a8 no scales in them
  }
}

inline bool is_float(Format f) { return f == Format::F32 || f == Format::F16 || f == Format::BF16; }

}  // namespace
}  // namespace forno
