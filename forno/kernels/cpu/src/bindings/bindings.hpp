#pragma once
#include <nanobind/nanobind.h>

namespace forno {
void bind_linear(nanobind::module_& m);     // packed matrices, and the linear ops one by one for tests
void bind_attention(nanobind::module_& m);  // the other ops one by one for tests
void bind_executor(nanobind::module_& m);   // pool, executor, chip information and micro-benchmarks
}  // namespace forno
