// Collects the ops into one build unit's table. Included once per instruction set, with FORNO_ISA set to its name.
#include "../ops/embed.hpp"
#include "../ops/linear.hpp"
#include "../ops/peak.hpp"
#include "../ops/quantize.hpp"
#include "../types.hpp"
#include "../work.hpp"

#define FORNO_CAT_(a, b) a##b
#define FORNO_CAT(a, b) FORNO_CAT_(a, b)
#define FORNO_STRING_(a) #a
#define FORNO_STRING(a) FORNO_STRING_(a)

namespace forno {
namespace {

constexpr KernelTable make_table() {
  KernelTable t{};
  t.name = FORNO_STRING(FORNO_ISA);
  t.embed = embed;
  t.quantize = quantize;
  t.linear = linear;
  t.peak = peak;
  return t;
}

}  // namespace

const KernelTable* FORNO_CAT(kernels_, FORNO_ISA)() {
  static constexpr KernelTable table = make_table();
  return &table;
}
}  // namespace forno
