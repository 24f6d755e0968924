// Sampling parameters, and the sampler on one row for tests.
#include "../sampler.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "../arena.hpp"
#include "bindings.hpp"

namespace forno {
namespace nb = nanobind;
namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

// Runs the sampler on one row, for tests.
std::string sample_one(Vector<float> row, Vector<int32_t> prompt, Vector<int32_t> generated, const Sampling& sampling,
                       int32_t target, Vector<uint32_t> mask) {
  RequestTable table(int32_t(row.size()));
  const int32_t capacity = int32_t(prompt.size() + generated.size()) + 1;
  Resident& request = table.at(table.admit(prompt.data(), int32_t(prompt.size()), capacity, sampling));
  for (size_t i = 0; i < generated.size(); ++i) {
    require(generated.data()[i] >= 0 && size_t(generated.data()[i]) < row.size(), "a token is outside the vocabulary");
    request.append(generated.data()[i]);
  }
  require(target < int64_t(row.size()), "the target is outside the vocabulary");
  require(mask.size() == 0 || mask.size() == (row.size() + 31) / 32, "the mask has another length");
  Arena scratch(sampler_scratch_bytes(int32_t(row.size())));
  Draw draw{};
  const SampleArgs args{row.data(), int32_t(row.size()), mask.size() ? mask.data() : nullptr, request.num_tokens(), target};
  sample(args, request, scratch.data(), draw);
  return std::string(reinterpret_cast<const char*>(&draw), sizeof(Draw));
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Sampling>(m, "Sampling", "Sampling parameters as the executor keeps them.")
      .def(nb::init<>())
      .def_rw("temperature", &Sampling::temperature)
      .def_rw("top_p", &Sampling::top_p)
      .def_rw("min_p", &Sampling::min_p)
      .def_rw("top_k", &Sampling::top_k)
      .def_rw("presence_penalty", &Sampling::presence_penalty)
      .def_rw("frequency_penalty", &Sampling::frequency_penalty)
      .def_rw("repetition_penalty", &Sampling::repetition_penalty)
      .def_rw("min_tokens", &Sampling::min_tokens)
      .def_rw("logprobs", &Sampling::logprobs)
      .def_rw("prompt_logprobs", &Sampling::prompt_logprobs)
      .def_rw("seed", &Sampling::seed)
      .def_rw("bias", &Sampling::bias)
      .def_rw("ends", &Sampling::ends);
  m.def("uniform", &uniform, nb::arg("seed"), nb::arg("position"), "The sampler's random number in [0, 1).");
  m.def(
      "sample",
      [](Vector<float> row, Vector<int32_t> prompt, Vector<int32_t> generated, const Sampling& sampling, int32_t target,
         Vector<uint32_t> mask) {
        const std::string draw = sample_one(row, prompt, generated, sampling, target, mask);
        return nb::bytes(draw.data(), draw.size());
      },
      nb::arg("logits"), nb::arg("prompt"), nb::arg("generated"), nb::arg("sampling"), nb::arg("target"), nb::arg("mask"),
      "Sample or score one row; returns the bytes of one draw record. For tests.");
  m.attr("MAX_LOGPROBS") = kMaxLogprobs;
  m.attr("DRAW_BYTES") = sizeof(Draw);
}

}  // namespace forno
