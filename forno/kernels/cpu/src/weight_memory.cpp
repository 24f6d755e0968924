#include "weight_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "threads.hpp"

namespace forno {
namespace {

constexpr int kLanes = 4;  // independent chains, so that their multiplications overlap
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

// One to one in `word` as in `state`: no single change is ever lost.
uint64_t mix(uint64_t state, uint64_t word) { return rotate((state ^ word) * kOdd, 29); }

size_t chunks_of(size_t bytes) { return (bytes + kChunk - 1) / kChunk; }

// Reads all of it. Returns what went wrong, or an empty string.
std::string read_fully(int file, int64_t offset, uint8_t* to, size_t bytes) {
  while (bytes) {
    const ssize_t got = pread(file, to, bytes, off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    if (got == 0) return "the file ends early";
    to += got;
    offset += got;
    bytes -= size_t(got);
  }
  return {};
}

}  // namespace

uint64_t checksum(const uint8_t* data, size_t bytes) {
  uint64_t lanes[kLanes] = {bytes, 1, 2, 3};
  uint64_t words[kLanes];
  size_t i = 0;
  for (; i + sizeof words <= bytes; i += sizeof words) {
    std::memcpy(words, data + i, sizeof words);
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, data + i, bytes - i);
  uint64_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum = mix(sum, mix(lanes[lane], words[lane]));
  return sum;
}

uint8_t* WeightMemory::take(size_t bytes) {
  if (bytes > arena_.bytes() - used_) throw std::invalid_argument("the memory for weights is used up");
  uint8_t* p = data() + used_;
  used_ += (bytes + 63) / 64 * 64;
  return p;
}

std::vector<uint64_t> WeightMemory::checksums(int32_t threads) const {
  std::vector<uint64_t> sums(chunks_of(used_));
  std::atomic<size_t> next{0};
  on_new_threads(threads, [&] {
    for (size_t i; (i = next++) < sums.size();) sums[i] = checksum(data() + i * kChunk, std::min(kChunk, used_ - i * kChunk));
  });
  return sums;
}

std::string WeightMemory::read(int file, int64_t offset, const std::vector<uint64_t>& sums, int32_t threads) {
  const size_t chunks = chunks_of(used_);
  if (sums.size() != chunks) return std::to_string(sums.size()) + " checksums for " + std::to_string(chunks) + " chunks";
  std::atomic<size_t> next{0};
  std::mutex lock;
  std::string failure;
  on_new_threads(threads, [&] {
    for (size_t i; (i = next++) < chunks;) {
      uint8_t* to = data() + i * kChunk;
      const size_t bytes = std::min(kChunk, used_ - i * kChunk);
      std::string error = read_fully(file, offset + int64_t(i * kChunk), to, bytes);
      if (error.empty() && checksum(to, bytes) != sums[i]) error = "the checksum of mebibyte " + std::to_string(i) + " is wrong";
      if (error.empty()) continue;
      const std::lock_guard<std::mutex> held(lock);
      failure = std::move(error);
      next = chunks;
    }
  });
  return failure;
}

}  // namespace forno
