// Every kernel in plain C++, for any machine.
#define FORNO_ISA portable
#define FORNO_PORTABLE 1
#include "kernels.hpp"
