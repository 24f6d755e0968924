#pragma once
#include <nanobind/nanobind.h>

namespace forno {
void bind_linear(nanobind::module_& m);     // packed matrices, and the linear ops one by one for tests
void bind_packing(nanobind::module_& m);    // the memory of a model's matrices, packed or read
void bind_attention(nanobind::module_& m);  // the other ops one by one for tests
void bind_executor(nanobind::module_& m);   // the step executor
void bind_sampling(nanobind::module_& m);   // sampling parameters, and the sampler on one row for tests
void bind_strings(nanobind::module_& m);    // the strings of a GGUF file
void bind_machine(nanobind::module_& m);    // the thread pool and the machine's speeds
}  // namespace forno
