// The Python module forno._native: one file of bindings per concern.
#include "bindings.hpp"

NB_MODULE(_native, m) {
  m.doc() = "forno's CPU kernels and step executor";
  forno::bind_linear(m);
  forno::bind_attention(m);
  forno::bind_executor(m);
  forno::bind_sampling(m);
  forno::bind_machine(m);
}
