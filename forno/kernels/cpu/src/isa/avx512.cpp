// Every kernel, built for AVX-512 with VNNI and BF16.
#define FORNO_ISA avx512
#define FORNO_AVX512 1
#include "kernels.hpp"
