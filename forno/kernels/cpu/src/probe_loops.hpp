// The inner loops of the peak measurements, by instruction set. Plain declarations: build units with an instruction
// set's flags include this, and must share no inline function with the rest.
#pragma once
#include <cstdint>

namespace forno {

// Runs `rounds` rounds of independent multiply-adds that stay in registers; returns a value that depends on all of
// them, so that none can be left out.
using ProbeLoop = float (*)(int64_t rounds);

struct ProbeLoops {
  const char* name;
  ProbeLoop int8;  // null: the set has no such instruction, and kernels convert instead
  ProbeLoop bf16;
  ProbeLoop fp32;
  int32_t int8_ops, bf16_ops, fp32_ops;  // operations per round; a multiply-add counts as two
};

const ProbeLoops* probe_loops_avx512();  // null where the build has none
const ProbeLoops* probe_loops_avx2();
const ProbeLoops* probe_loops_portable();
const ProbeLoops* probe_loops_for(const char* isa);  // null for an unknown name

}  // namespace forno
