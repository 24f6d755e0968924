#include "bindings.hpp"

namespace forno {
void bind_attention(nanobind::module_&) {}
}  // namespace forno
