// How the workers of a pool share one op: each takes the units of its own part in order, then what is left of the
// others' parts. A worker whose core was borrowed holds up no more than the unit it has in hand; one that does not come
// at all holds up nothing.
#pragma once
#include "types.hpp"

namespace forno {
namespace {  // internal linkage: one copy per build unit, never shared across instruction sets

// Where the part of worker `id` of `count` begins, of `total` units.
inline int32_t part_begin(int32_t id, int32_t count, int32_t total) { return int32_t(int64_t(total) * id / count); }

// Whose part unit `u` is.
inline int32_t part_owner(int32_t u, int32_t count, int32_t total) { return int32_t(((int64_t(u) + 1) * count - 1) / total); }

// The units that one worker takes, `total` in all.
struct Tickets {
  const Worker& worker;
  int32_t total;
  int32_t part = 0;  // parts already empty: the worker's own is the first

  // The next unit, or -1 when none is left.
  int32_t take() {
    for (; part < worker.count; ++part) {
      const int32_t owner = (worker.id + part) % worker.count;
      const int32_t begin = part_begin(owner, worker.count, total);
      const int32_t size = part_begin(owner + 1, worker.count, total) - begin;
      int32_t* next = worker.ticket + owner * kTicketStride;
      if (__atomic_load_n(next, __ATOMIC_RELAXED) >= size) continue;
      const int32_t index = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
      if (index < size) return begin + index;
    }
    return -1;
  }
};

template <class F>
inline void for_units(Worker& w, int32_t total, F&& body) {
  Tickets tickets{w, total};
  for (int32_t u = tickets.take(); u >= 0; u = tickets.take()) body(u);
}

// The unit that `for_units` gives a worker first. >= total: none.
inline int32_t first_unit(const Worker& w, int32_t total) { return part_begin(w.id, w.count, total); }

// The unit that `for_units` will likely give this worker after unit u: a guess, good enough to fetch data for. >= total: none.
inline int32_t likely_next(const Worker& w, int32_t total, int32_t u) {
  const int32_t end = part_begin(w.id + 1, w.count, total);
  return u + 1 < end ? u + 1 : total;
}

}  // namespace
}  // namespace forno
