// How the workers of a pool share one op: most units are assigned statically, the tail is taken from a ticket,
// so that a worker whose core was borrowed for a moment does not hold up the others.
#pragma once
#include "types.hpp"

namespace forno {
namespace {  // internal linkage: one copy per build unit, never shared across instruction sets

inline int32_t fixed_units(const Worker& w, int32_t total) {
  return w.count == 1 ? total : total * 3 / 4 / w.count * w.count;
}

template <class F>
inline void for_units(Worker& w, int32_t total, F&& body) {
  const int32_t fixed = fixed_units(w, total), share = fixed / w.count;
  for (int32_t u = w.id * share, end = u + share; u < end; ++u) body(u);
  if (fixed == total) return;
  for (;;) {
    const int32_t u = fixed + __atomic_fetch_add(w.ticket, 1, __ATOMIC_RELAXED);
    if (u >= total) return;
    body(u);
  }
}

// The unit that `for_units` will likely give this worker after unit u: a guess, good enough to fetch data for. >= total: none.
inline int32_t likely_next(const Worker& w, int32_t total, int32_t u) {
  const int32_t fixed = fixed_units(w, total), last = fixed / w.count * (w.id + 1) - 1;
  return u < last ? u + 1 : u == last ? (fixed == total ? total : fixed + w.id) : u + w.count;
}

}  // namespace
}  // namespace forno
