// Token ids to rows of the embedding, read out of the packed matrix (which the head may share).
#pragma once
#include "../packed.hpp"
#include "../work.hpp"

namespace forno {
namespace {

// A token outside the vocabulary yields NaN, which the sampler reports; it never reads outside the matrix.
void embed(const EmbedArgs& args, const Step& step, Worker& worker) {
  const PackedMatrix& w = *args.weight;
  for_units(worker, step.num_rows, [&](int32_t r) {
    float* out = reinterpret_cast<float*>(args.out.data + r * args.out.stride);
    const int32_t token = step.token_ids[r];
    if (token >= 0 && token < w.n) return dequantize_row(w, token, out);
    for (int32_t i = 0; i < w.k; ++i) out[i] = __builtin_nanf("");
  });
}

}  // namespace
}  // namespace forno
