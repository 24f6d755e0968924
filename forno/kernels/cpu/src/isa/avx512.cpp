// Every kernel, built for AVX-512 with VNNI and BF16.
#if defined(__x86_64__)
#define FORNO_ISA avx512
#define FORNO_AVX512 1
#include "kernels.hpp"
#else
#include "../types.hpp"
namespace forno {
const KernelTable* kernels_avx512() { return nullptr; }
}  // namespace forno
#endif
