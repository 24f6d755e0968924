#include "bindings.hpp"

namespace forno {
void bind_executor(nanobind::module_&) {}
}  // namespace forno
