// The Python module forno._native: one file of bindings per concern.
#include "bindings.hpp"

NB_MODULE(_native, m) {
  m.doc() = "forno's CPU kernels and step executor";
  // The server freezes its start-up objects (gc.freeze) and lets the process end with them: not leaks, no warning at exit.
  nanobind::set_leak_warnings(false);
  forno::bind_linear(m);
  forno::bind_packing(m);
  forno::bind_attention(m);
  forno::bind_executor(m);
  forno::bind_sampling(m);
  forno::bind_strings(m);
  forno::bind_machine(m);
}
