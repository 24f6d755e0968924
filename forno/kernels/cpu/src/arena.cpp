#include "arena.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace forno {
namespace {

constexpr size_t kSmallPage = 4096;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(size_t bytes) {
  if (bytes == 0) return;
  const size_t align = bytes >= kHugePage ? kHugePage : kSmallPage;
  const std::string wanted = std::to_string(bytes);
  if (bytes > SIZE_MAX / 2) throw std::runtime_error("cannot reserve " + wanted + " bytes of memory");
  bytes = round_up(bytes, align);
  const size_t slack = align == kHugePage ? kHugePage : 0;
  void* map = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::runtime_error("cannot reserve " + wanted + " bytes of memory");
  const uintptr_t start = reinterpret_cast<uintptr_t>(map);
  const uintptr_t aligned = round_up(start, align);
  if (aligned > start) munmap(map, aligned - start);
  const uintptr_t end = aligned + bytes, map_end = start + bytes + slack;
  if (map_end > end) munmap(reinterpret_cast<void*>(end), map_end - end);
  data_ = reinterpret_cast<char*>(aligned);
  bytes_ = bytes;
#ifdef MADV_HUGEPAGE
  if (slack) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

Arena::~Arena() {
  if (data_) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace forno
