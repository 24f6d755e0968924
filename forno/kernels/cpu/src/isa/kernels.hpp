// Collects the ops into one build unit's table. Included once per instruction set, with FORNO_ISA set to its name.
#include "../ops/attention.hpp"
#include "../ops/attention_matrix.hpp"
#include "../ops/elementwise.hpp"
#include "../ops/embed.hpp"
#include "../ops/gather.hpp"
#include "../ops/kv.hpp"
#include "../ops/linear.hpp"
#include "../ops/norm.hpp"
#include "../ops/peak.hpp"
#include "../ops/quantize.hpp"
#include "../ops/rope.hpp"
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
  t.rms_norm = rms_norm;
  t.quantize = quantize;
  t.add = add;
  t.silu_mul = silu_mul;
  t.gather = gather;
  t.rope = rope;
  t.kv_write = kv_write;
  t.qkv_prepare = qkv_prepare;
  t.attention = attention_op;
  t.attention_matrix = attention_matrix_op;
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
