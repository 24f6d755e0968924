// Keeps the rows whose logits are needed, in the order of the step's outputs.
#pragma once
#include "../types.hpp"
#include "../work.hpp"

namespace forno {
namespace {

inline void gather(const GatherArgs& args, const Step& step, Worker& worker) {
  const size_t bytes = size_t(row_bytes(args.x.dtype, args.x.width));
  for_units(worker, step.num_outputs, [&](int32_t i) {
    __builtin_memcpy(args.out.data + i * args.out.stride, args.x.data + step.outputs[i].row * args.x.stride, bytes);
  });
}

}  // namespace
}  // namespace forno
