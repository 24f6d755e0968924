// Collects the ops into one build unit's table. Included once per instruction set, with FORNO_ISA set to its name.
#include "../types.hpp"
#include "../work.hpp"

#define FORNO_CAT_(a, b) a##b
#define FORNO_CAT(a, b) FORNO_CAT_(a, b)

namespace forno {
const KernelTable* FORNO_CAT(kernels_, FORNO_ISA)() {
  static constexpr KernelTable table{};
  return &table;
}
}  // namespace forno
