// Which build units this machine can run: cpuid and the operating system's state-saving (xgetbv) both have a say.
#pragma once
#include <vector>

#include "types.hpp"

namespace forno {

// "avx512", "avx2" or "portable"; "auto" or "" is the best of them. Null if this machine, or this build, has no such
// unit, or there is no such name.
const KernelTable* kernels_for(const char* name);

// Names that kernels_for() accepts here, best first; never empty.
std::vector<const char*> available_isas();

}  // namespace forno
