// The memory that a model's packed matrices lie in, side by side, and how it is checked and read back from a file.
//
// Contents are cut into chunks of a mebibyte, each with a checksum of its own, so that several threads can work on them
// and damage is found before anything is computed with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arena.hpp"

namespace forno {

constexpr size_t kChunk = size_t(1) << 20;

// 64 bits of the bytes' content and number; not cryptographic. Any change within one word of 8 bytes changes it.
uint64_t checksum(const uint8_t* data, size_t bytes);

// Handed out from front to back. Pages are touched by whoever fills them.
class WeightMemory {
 public:
  explicit WeightMemory(size_t bytes) : arena_(bytes) {}  // throws std::runtime_error if it cannot be had

  // `bytes`, 64-byte aligned. Throws std::invalid_argument if that much is not left.
  uint8_t* take(size_t bytes);

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(arena_.data()); }
  size_t used() const { return used_; }

  // Of each chunk of what was handed out, in order.
  std::vector<uint64_t> checksums(int32_t threads) const;

  // Fills what was handed out from the bytes of `file` at `offset`, which must have these checksums, one per chunk.
  // Returns what went wrong, or an empty string. On failure the content is undefined.
  std::string read(int file, int64_t offset, const std::vector<uint64_t>& sums, int32_t threads);

 private:
  Arena arena_;
  size_t used_ = 0;
};

}  // namespace forno
