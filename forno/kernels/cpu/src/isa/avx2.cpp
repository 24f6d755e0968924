// Every kernel, built for AVX2 with FMA and F16C.
#define FORNO_ISA avx2
#define FORNO_AVX2 1
#include "kernels.hpp"
