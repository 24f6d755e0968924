// The block formats as files hold them (GGUF's definitions), taken apart and, for two of them, made from floats.
// Knows nothing of how the kernels want them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "packed.hpp"

namespace forno {

struct FormatInfo {
  const char* name;
  int32_t block;        // weights per block of the file
  int32_t block_bytes;
};
const FormatInfo& format_info(Format format);

// 32 weights of one row. Codes are as BlockLayout wants them: unsigned, q8_0 plus 128.
struct DecodedBlock {
  uint8_t q[32];
  uint16_t scale, min;  // fp16: of the block, or d and dmin of its 256
  uint8_t small[2];     // two-level: integer scale of the block; q6_k: of each half, as int8
  uint8_t small_min;    // two-level: integer minimum
};

// Block `index` of 32 weights of a row. The row holds it: the caller checked the length.
void decode_block(Format format, const uint8_t* row, int64_t index, DecodedBlock& out);

float half_to_float_scalar(uint16_t half);
uint16_t float_to_half(float value);  // nearest even; overflow becomes infinity

// One value of an f32, f16 or bf16 row.
float float_at(Format format, const uint8_t* row, int64_t index);

// A row of k floats to q8_0 (d = amax / 127) or q4_1 (d, m by least squares; see formats.cpp), as a file holds them.
// Throws std::invalid_argument if a value is not finite or its scale exceeds fp16.
void quantize_row_to_blocks(Format from, const uint8_t* row, int64_t k, Format to, uint8_t* out);

}  // namespace forno
