// Every kernel, built for AVX2 with FMA and F16C.
#if defined(__x86_64__)
#define FORNO_ISA avx2
#define FORNO_AVX2 1
#include "kernels.hpp"
#else
#include "../types.hpp"
namespace forno {
const KernelTable* kernels_avx2() { return nullptr; }
}  // namespace forno
#endif
