#include "packed.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats.hpp"

namespace forno {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void check_shape(Format format, int64_t n, int64_t k, bool interleaved) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;  // n and k, padded and doubled, stay in int32
  if (n < 1 || k < 1 || n > kMost || k > kMost)
    fail("a weight of shape [" + std::to_string(n) + ", " + std::to_string(k) + "] cannot be packed: sizes must be positive and below 2^29");
  const FormatInfo& info = format_info(format);
  constexpr int64_t kMostProducts = int64_t(1) << 17;  // whose sum, 128 * 127 each, an int32 holds
  if (format == Format::W8A8 && k > kMostProducts)
    fail("w8a8 rows of " + std::to_string(k) + " weights are too long; at most " + std::to_string(kMostProducts) + " are supported");
  if (k % info.block)
    fail(std::string(info.name) + " rows come in blocks of " + std::to_string(info.block) + " weights, got a row of " + std::to_string(k));
  if (interleaved && n % 2) fail("an interleaved matrix holds gate and up, so its rows must be even, got " + std::to_string(n));
}

int64_t panel_size(Format format, int64_t k) {
  if (format == Format::BF16) return (k + 1) / 2 * 2 * 2 * kPanel;
  if (is_float(format)) return k * kPanel * format_info(format).block_bytes;
  if (format == Format::W8A8) return k * kPanel + LayoutW8A8::kScaleBytes;
  int64_t size = 0;
  with_layout(format, [&](auto layout) {
    const int64_t blocks = k / kBlock, headers = decltype(layout)::kHeaderBytes ? blocks / kSuperBlocks : 0;
    size = blocks * layout.kBlockBytes + headers * layout.kHeaderBytes;
  });
  return size;
}

int64_t panels_of(int64_t n, bool interleaved) {
  const int64_t outputs = interleaved ? n / 2 : n, per_panel = interleaved ? kPanel / 2 : kPanel;
  return (outputs + per_panel - 1) / per_panel;
}

uint8_t* allocate(size_t bytes) {
  void* p = std::aligned_alloc(64, bytes);
  if (!p) throw std::bad_alloc();
  return static_cast<uint8_t*>(p);
}

// Which row of which source feeds an output slot of a panel; row < 0: padding.
struct Slot {
  int32_t source;
  int64_t row;
};

Slot slot_of(const PackedMatrix& m, int64_t panel, int64_t lane) {
  if (!m.interleaved) {
    const int64_t row = panel * kPanel + lane;
    return {0, row < m.n ? row : -1};
  }
  const int64_t row = panel * (kPanel / 2) + lane % (kPanel / 2);
  return {int32_t(lane / (kPanel / 2)), row < m.n / 2 ? row : -1};
}

uint32_t word_at(const uint8_t* q, int step) {
  uint32_t w;
  std::memcpy(&w, q + 4 * step, 4);
  return w;
}

void store_word(uint8_t* p, uint32_t w) { std::memcpy(p, &w, 4); }

// Bit 0 of the four bytes, as a nibble; and back.
uint32_t gather_bits(uint32_t w) { return (w & 0x01010101) * 0x01020408u >> 24 & 15; }
uint32_t spread_bits(uint32_t nibble) { return nibble * 0x00204081u & 0x01010101; }

template <class L>
void store_codes(uint8_t* block, int lane, const uint8_t* q) {
  if constexpr (L::kBits == 8) {
    for (int s = 0; s < 8; ++s) store_word(block + s * 256 + lane * 4, word_at(q, s));
    return;
  }
  for (int s = 0; s < 4; ++s)
    store_word(block + s * 256 + lane * 4, (word_at(q, s) & 0x0f0f0f0f) | (word_at(q, s + 4) & 0x0f0f0f0f) << 4);
  uint8_t* high = block + L::kHigh;
  if constexpr (L::kBits == 5) {
    for (int s = 0; s < 8; ++s) {
      const uint32_t bits = gather_bits(word_at(q, s) >> 4) << 4 * (lane & 1);
      uint8_t& byte = high[s * 32 + lane / 2];
      byte = uint8_t(lane & 1 ? byte | bits : bits);
    }
  }
  if constexpr (L::kBits == 6) {
    for (int line = 0; line < 2; ++line) {
      uint32_t word = 0;
      for (int t = 0; t < 4; ++t) word |= (word_at(q, 4 * line + t) >> 4 & 0x03030303) << 2 * t;
      store_word(high + line * 256 + lane * 4, word);
    }
  }
}

template <class L>
void store_block(uint8_t* panel, int64_t index, int lane, const DecodedBlock& b) {
  uint8_t* block = panel + L::offset(index);
  store_codes<L>(block, lane, b.q);
  if constexpr (!L::kTwoLevel) {
    std::memcpy(block + L::kScale + 2 * lane, &b.scale, 2);
    if constexpr (L::kMin) std::memcpy(block + L::kMinimum + 2 * lane, &b.min, 2);
    return;
  }
  block[L::kScale + lane] = b.small[0];
  if constexpr (L::kGroup == 16) block[L::kScale + kPanel + lane] = b.small[1];
  if constexpr (L::kMin) block[L::kMinimum + lane] = b.small_min;
  if (index % kSuperBlocks) return;
  uint8_t* header = panel + L::header(index);
  std::memcpy(header + 2 * lane, &b.scale, 2);
  if constexpr (L::kMin) std::memcpy(header + 2 * kPanel + 2 * lane, &b.min, 2);
}

void pack_blocks(const PackedMatrix& m, uint8_t* panel, const uint8_t* const* rows) {
  with_layout(m.format, [&](auto layout) {
    DecodedBlock block{};
    const DecodedBlock zero{};
    for (int64_t i = 0; i < m.k / kBlock; ++i)
      for (int lane = 0; lane < kPanel; ++lane) {
        if (rows[lane]) decode_block(m.format, rows[lane], i, block);
        store_block<decltype(layout)>(panel, i, lane, rows[lane] ? block : zero);
      }
  });
}

void pack_channels(const PackedMatrix& m, uint8_t* panel, const uint8_t* const* rows, const float* scales) {
  for (int64_t i = 0; i < m.k / kBlock; ++i)
    for (int lane = 0; lane < kPanel; ++lane)
      for (int s = 0; s < kBlock / 4; ++s) {
        const uint32_t codes = rows[lane] ? word_at(rows[lane] + i * kBlock, s) : 0;
        store_word(panel + i * LayoutW8A8::kBlockBytes + s * 256 + lane * 4, codes ^ 0x80808080u);
      }
  std::memcpy(panel + m.k * kPanel, scales, LayoutW8A8::kScaleBytes);
}

void pack_floats(const PackedMatrix& m, uint8_t* panel, const uint8_t* const* rows) {
  std::memset(panel, 0, size_t(m.panel_bytes));
  for (int lane = 0; lane < kPanel; ++lane) {
    if (!rows[lane]) continue;
    for (int64_t i = 0; i < m.k; ++i) {
      if (m.format == Format::F32)
        std::memcpy(panel + (i * kPanel + lane) * 4, rows[lane] + 4 * i, 4);
      else if (m.format == Format::F16)
        std::memcpy(panel + (i * kPanel + lane) * 2, rows[lane] + 2 * i, 2);
      else
        std::memcpy(panel + (i / 2 * 2 * kPanel + 2 * lane + i % 2) * 2, rows[lane] + 2 * i, 2);
    }
  }
}

int64_t row_bytes(Format format, int64_t k) {
  const FormatInfo& info = format_info(format);
  return k / info.block * info.block_bytes;
}

void check_source(const PackedMatrix& m, const Source& s, int64_t rows) {
  if (s.format != m.format) {
    const bool target = m.format == Format::Q8_0 || m.format == Format::Q4_1;
    if (!is_float(s.format) || !target)
      fail(std::string("cannot make ") + format_name(m.format) + " from " + format_name(s.format) +
           ": only f32, f16 and bf16 weights are quantized, to q8_0 or q4_1");
  }
  const int64_t expected = row_bytes(s.format, m.k) * rows;
  if (s.bytes != size_t(expected))
    fail("a " + std::string(format_name(s.format)) + " weight of shape [" + std::to_string(rows) + ", " + std::to_string(m.k) +
         "] takes " + std::to_string(expected) + " bytes, got " + std::to_string(s.bytes));
  if ((m.format == Format::W8A8) != (s.scales != nullptr)) fail("a weight has scales of its own if, and only if, it is w8a8");
  if (s.scales && s.scales_length != size_t(rows))
    fail("w8a8 has one scale per row: " + std::to_string(rows) + ", got " + std::to_string(s.scales_length));
  if (!s.row_order) return;
  if (s.row_order_length != size_t(rows))
    fail("row_order must have one entry per row: " + std::to_string(rows) + ", got " + std::to_string(s.row_order_length));
  for (int64_t i = 0; i < rows; ++i)
    if (s.row_order[i] < 0 || s.row_order[i] >= rows)
      fail("row_order names row " + std::to_string(s.row_order[i]) + " of a weight with " + std::to_string(rows) + " rows");
}

float lane_scale(const PackedMatrix& m, const Source* sources, int64_t panel, int lane) {
  const Slot slot = slot_of(m, panel, lane);
  if (slot.row < 0) return 0;
  const Source& s = sources[slot.source];
  return s.scales[s.row_order ? s.row_order[slot.row] : slot.row];
}

// Bytes of one lane's row in the matrix's own format, quantized into `scratch` where the source is float; null: padding.
const uint8_t* lane_row(const PackedMatrix& m, const Source* sources, int64_t panel, int lane, std::vector<uint8_t>& scratch) {
  const Slot slot = slot_of(m, panel, lane);
  if (slot.row < 0) return nullptr;
  const Source& s = sources[slot.source];
  const int64_t row = s.row_order ? s.row_order[slot.row] : slot.row;
  const uint8_t* data = s.data + row * row_bytes(s.format, m.k);
  if (s.format == m.format) return data;
  uint8_t* quantized = scratch.data() + lane * row_bytes(m.format, m.k);
  quantize_row_to_blocks(s.format, data, m.k, m.format, quantized);
  return quantized;
}

// The codes of one lane's block, what store_codes() was given: word by word, as they lie.
template <class L>
void load_codes(const uint8_t* block, int lane, uint8_t* q) {
  const uint8_t* high = block + L::kHigh;
  for (int s = 0; s < 8; ++s) {
    uint32_t w = word_at(block + (L::kBits == 8 ? s : s % 4) * 256, lane);
    if constexpr (L::kBits < 8) w = w >> (s < 4 ? 0 : 4) & 0x0f0f0f0f;
    if constexpr (L::kBits == 5) w |= spread_bits(high[s * 32 + lane / 2] >> 4 * (lane & 1) & 15) << 4;
    if constexpr (L::kBits == 6) w |= (word_at(high + s / 4 * 256, lane) >> 2 * (s % 4) & 0x03030303) << 4;
    store_word(q + 4 * s, w);
  }
  if constexpr (L::kLookup)
    for (int j = 0; j < kBlock; ++j) q[j] = kIq4Values[q[j]];
}

template <class L>
void dequantize_lane(const PackedMatrix& m, const uint8_t* panel, int lane, float* out) {
  for (int64_t i = 0; i < m.k / kBlock; ++i) {
    const uint8_t* block = panel + L::offset(i);
    const uint8_t* header = L::kTwoLevel ? panel + L::header(i) : block + L::kScale;
    const uint8_t* min_header = L::kTwoLevel ? header + 2 * kPanel : block + L::kMinimum;
    uint16_t half;
    std::memcpy(&half, header + 2 * lane, 2);
    const float d = half_to_float_scalar(half);
    float minimum = 0;
    if constexpr (L::kMin) {
      std::memcpy(&half, min_header + 2 * lane, 2);
      minimum = half_to_float_scalar(half);
      if constexpr (L::kTwoLevel) minimum = -(minimum * float(block[L::kMinimum + lane]));
    }
    uint8_t q[kBlock];
    load_codes<L>(block, lane, q);
    for (int part = 0; part < kBlock / L::kGroup; ++part) {
      const uint8_t small = block[L::kScale + part * kPanel + lane];
      const float scale = !L::kTwoLevel ? d : d * (L::kGroup == 16 ? float(int8_t(small)) : float(small));
      const uint8_t* codes = q + part * L::kGroup;
      float* values = out + i * kBlock + part * L::kGroup;
      for (int j = 0; j < L::kGroup; ++j)
        values[j] = L::kMin ? scale * float(codes[j]) + minimum : scale * float(codes[j] - L::kZero);
    }
  }
}

void unpack_channels(const PackedMatrix& m, const uint8_t* panel, int lane, float* out) {
  float scale;
  std::memcpy(&scale, panel + m.k * kPanel + 4 * lane, 4);
  for (int64_t i = 0; i < m.k / kBlock; ++i) {
    uint8_t q[kBlock];
    load_codes<LayoutQ8_0>(panel + i * LayoutW8A8::kBlockBytes, lane, q);
    for (int j = 0; j < kBlock; ++j) out[i * kBlock + j] = float(q[j] - LayoutW8A8::kZero) * scale;
  }
}

void unpack_floats(const PackedMatrix& m, const uint8_t* panel, int lane, float* out) {
  if (m.format == Format::BF16) {
    for (int64_t i = 0; i < m.k; ++i) {
      const uint32_t pair = word_at(panel + i / 2 * 4 * kPanel, lane), bits = i % 2 ? pair & 0xffff0000u : pair << 16;
      std::memcpy(out + i, &bits, 4);
    }
    return;
  }
  for (int64_t i = 0; i < m.k; ++i) out[i] = float_at(m.format, panel, i * kPanel + lane);
}

}  // namespace

size_t packed_bytes(Format format, int64_t n, int64_t k, bool interleaved) {
  check_shape(format, n, k, interleaved);
  return size_t(panel_size(format, k)) * size_t(panels_of(n, interleaved));
}

PackedMatrix::PackedMatrix(Format format_, int64_t n_, int64_t k_, bool interleaved_, uint8_t* memory)
    : format(format_), interleaved(interleaved_), data(memory), bytes(packed_bytes(format_, n_, k_, interleaved_)), owner(!memory) {
  n = int32_t(n_);
  k = int32_t(k_);
  panels = int32_t(panels_of(n, interleaved));
  panel_bytes = panel_size(format, k);
  if (owner) data = allocate(bytes);
}

PackedMatrix::~PackedMatrix() {
  if (owner) std::free(data);
}

void pack(PackedMatrix& m, const Source* sources, int32_t num_sources, int32_t first, int32_t last) {
  if (num_sources != (m.interleaved ? 2 : 1)) fail("an interleaved matrix is packed from gate and up, any other from one source");
  if (first < 0 || first > last || last > m.panels)
    fail("panels [" + std::to_string(first) + ", " + std::to_string(last) + ") of a matrix with " + std::to_string(m.panels));
  for (int32_t i = 0; i < num_sources; ++i) check_source(m, sources[i], m.n / num_sources);
  std::vector<uint8_t> scratch;
  if (sources[0].format != m.format || sources[num_sources - 1].format != m.format)
    scratch.resize(size_t(row_bytes(m.format, m.k)) * kPanel);
  for (int64_t p = first; p < last; ++p) {
    const uint8_t* rows[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) rows[lane] = lane_row(m, sources, p, lane, scratch);
    uint8_t* panel = m.data + p * m.panel_bytes;
    if (m.format == Format::W8A8) {
      float scales[kPanel];
      for (int lane = 0; lane < kPanel; ++lane) scales[lane] = lane_scale(m, sources, p, lane);
      pack_channels(m, panel, rows, scales);
    } else {
      is_float(m.format) ? pack_floats(m, panel, rows) : pack_blocks(m, panel, rows);
    }
  }
}

void dequantize_row(const PackedMatrix& m, int32_t row, float* out) {
  const int32_t half = m.n / 2, width = kPanel / 2;
  const int32_t local = m.interleaved ? row % half : row;
  const int32_t panel = m.interleaved ? local / width : row / kPanel;
  const int lane = m.interleaved ? local % width + (row < half ? 0 : width) : row % kPanel;
  const uint8_t* p = m.data + panel * m.panel_bytes;
  if (is_float(m.format)) return unpack_floats(m, p, lane, out);
  if (m.format == Format::W8A8) return unpack_channels(m, p, lane, out);
  with_layout(m.format, [&](auto layout) { dequantize_lane<decltype(layout)>(m, p, lane, out); });
}

}  // namespace forno
