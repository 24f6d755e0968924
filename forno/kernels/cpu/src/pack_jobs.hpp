// Fills the packed matrices of a model, on several threads, in one call.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "packed.hpp"

namespace forno {

// A matrix and what it is made of: one source, or gate and up.
struct PackJob {
  PackedMatrix* matrix;
  std::vector<Source> sources;
  bool mapped;  // the sources are pages of mapped files, which are dropped from this process once they are read
};

// The first job that failed, and why.
struct PackFailure {
  int64_t job = -1;  // none
  std::string message;
};

// Does all jobs on `threads` new threads of low priority, in units of about a mebibyte. After a failure the rest is left.
// Throws std::system_error if no thread can be had.
PackFailure pack_all(const std::vector<PackJob>& jobs, int32_t threads);

}  // namespace forno
