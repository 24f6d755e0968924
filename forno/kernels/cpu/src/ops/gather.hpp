// Keeps the rows whose logits are needed, in the order of the step's outputs.
#pragma once
#include "../types.hpp"
#include "../work.hpp"

namespace forno {
namespace {

inline void gather(const GatherArgs& args, const Step& step, Worker& worker) {
  const size_t width = size_t(args.x.width);
  const DType dtype = args.x.dtype;
  const size_t bytes = dtype == DType::S8       ? width + width / 32 * 8
                       : dtype == DType::S8_ROW ? width + 8
                                                : width * (dtype == DType::BF16 ? 2 : 4);
  for_units(worker, step.num_outputs, [&](int32_t i) {
    __builtin_memcpy(args.out.data + i * args.out.stride, args.x.data + step.outputs[i].row * args.x.stride, bytes);
  });
}

}  // namespace
}  // namespace forno
