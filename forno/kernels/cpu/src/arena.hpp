// Zeroed anonymous memory in one piece, for buffers, caches and scratch.
#pragma once
#include <cstddef>

namespace forno {

constexpr size_t kHugePage = size_t(2) << 20;

// Pages are touched on first use. Large arenas are 2 MiB aligned and ask for huge pages; a refusal is not an error.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes);  // throws std::runtime_error if the address space cannot be had
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace forno
