// What a matrix is packed from, as Python gives it.
#pragma once
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <string>

#include "../packed.hpp"

namespace forno {

using Bytes = nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Order = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Scales = std::optional<nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>>;

// The arrays must outlive the result. `format` empty: the matrix's own. Throws std::invalid_argument for an unknown one.
inline Source source_of(const PackedMatrix& m, const Bytes& data, const std::string& format, const std::optional<Order>& order,
                        const Scales& scales) {
  return {data.data(), data.size(), format.empty() ? m.format : format_of(format.c_str()), order ? order->data() : nullptr,
          order ? order->size() : 0, scales ? scales->data() : nullptr, scales ? scales->size() : 0};
}

}  // namespace forno
