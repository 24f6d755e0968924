// What this machine can do, measured: read bandwidth, and peak rates of the three kinds of arithmetic that kernels use.
#pragma once
#include "pool.hpp"
#include "probe_loops.hpp"

namespace forno {

// Bytes read per second by all workers together, each going over its own `bytes` again and again for `seconds`.
double read_bandwidth(Pool& pool, int64_t bytes_per_worker, double seconds);

// Operations per second of all workers together, over about `seconds`.
double peak_rate(Pool& pool, ProbeLoop loop, int32_t ops_per_round, double seconds);

}  // namespace forno
