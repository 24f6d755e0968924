// What this machine can do, measured: read bandwidth, and the peak rates of the arithmetic that kernels use.
#pragma once
#include "pool.hpp"
#include "types.hpp"

namespace forno {

// Bytes read per second by all workers together, each going over its own `bytes` again and again for `seconds`.
double read_bandwidth(Pool& pool, int64_t bytes_per_worker, double seconds);

// Operations per second of all workers together, over about `seconds`; a multiply-add is two. 0 where the instruction
// set has no such unit.
double peak_rate(Pool& pool, const KernelTable& kernels, PeakUnit unit, double seconds);

}  // namespace forno
