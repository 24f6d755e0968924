// How the workers of a pool share one op: most units are assigned statically, the tail is taken from a ticket,
// so that a worker whose core was borrowed for a moment does not hold up the others.
#pragma once
#include "types.hpp"

namespace forno {
namespace {  // internal linkage: one copy per build unit, never shared across instruction sets

template <class F>
inline void for_units(Worker& w, int32_t total, F&& body) {
  const int32_t fixed = w.count == 1 ? total : (total * 3 / 4) / w.count * w.count;
  const int32_t share = fixed / w.count;
  for (int32_t u = w.id * share, end = u + share; u < end; ++u) body(u);
  if (fixed == total) return;
  for (;;) {
    const int32_t u = fixed + __atomic_fetch_add(w.ticket, 1, __ATOMIC_RELAXED);
    if (u >= total) return;
    body(u);
  }
}

}  // namespace
}  // namespace forno
