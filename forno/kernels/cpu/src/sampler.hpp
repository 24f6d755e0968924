// One row of logits to one token. Defined by forno/kernels/reference/sampling.py, which this file follows step by step.
//
// Every filter (top-k, top-p, min-p) is a threshold in one total order of the vocabulary: logit descending, then token
// id ascending. So nothing is sorted, ties are settled by the token id, and the draw walks the ids in order.
#pragma once
#include <cstddef>
#include <cstdint>

#include "requests.hpp"

namespace forno {

enum class DrawError : int32_t { None = 0, NotFinite = 1, NothingAllowed = 2, RequestFull = 3, WrongDraft = 4 };

// The result for one output row; the layout is known to the bindings as a numpy structured type.
struct Draw {
  int32_t row;       // index into the plan's rows
  int32_t target;    // the token that was scored (prompt log-probabilities), or -1 where one was sampled
  int32_t token;     // -1 after an error
  DrawError error;
  float logprob;     // NaN where the request asked for none
  int32_t rank;      // 1 is the most likely
  int32_t num_top;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};

// Uniform in [0, 1): Philox4x32-10 (Salmon et al., SC'11) keyed by the seed, counting positions. The same request
// draws the same numbers whatever else is in the batch.
double uniform(uint64_t seed, int32_t position);

size_t sampler_scratch_bytes(int32_t vocab);

struct SampleArgs {
  const float* logits;     // [vocab]
  int32_t vocab;
  const uint32_t* mask;    // allowed tokens as bits, ceil(vocab / 32) words; null: all
  int32_t position;        // of the token to draw; the request's tokens before it, drafts too, are what it follows
  int32_t target;          // >= 0: score this token instead of drawing one
};

// Fills token, error, logprob, rank and the alternatives of `draw`. `scratch` holds sampler_scratch_bytes(vocab).
void sample(const SampleArgs& args, const Resident& request, char* scratch, Draw& draw);

}  // namespace forno
