// The resident requests: tokens and sampling parameters, kept where the sampler reads them.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace forno {

constexpr int32_t kMaxLogprobs = 20;

// As forno.request.SamplingParams, validated there.
struct Sampling {
  float temperature = 1.0f;  // 0: greedy
  double top_p = 1.0;
  float min_p = 0.0f;
  int32_t top_k = 0;  // <= 0: all
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  int32_t min_tokens = 0;
  int32_t logprobs = -1;  // alternatives per generated token; -1: report nothing
  int32_t prompt_logprobs = -1;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> ends;  // tokens masked until min_tokens are out

  bool has_penalties() const {
    return presence_penalty != 0.0f || frequency_penalty != 0.0f || repetition_penalty != 1.0f;
  }
};

// A token that occurs in prompt or output, and how often it was generated.
struct Occurrence {
  int32_t token;
  int32_t generated;
};

struct Resident {
  Sampling sampling;
  std::vector<int32_t> tokens;  // prompt, generated, drafts; capacity fixed at admission, so that a step allocates nothing
  int32_t prompt_tokens = 0;
  int32_t drafts = 0;  // guesses at the end of `tokens`, within a step only
  int64_t last_step = -1;  // the step that named it last: a plan may name a request once
  std::vector<Occurrence> seen;        // distinct tokens; empty unless there are penalties
  std::vector<int32_t> seen_index;     // [vocab] index into `seen`, -1 where absent

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t room() const { return static_cast<int32_t>(tokens.capacity() - tokens.size()); }
  void append(int32_t token);  // requires room, and no drafts
  void guess(const int32_t* drafts, int32_t count);  // requires room
  void drop_drafts();
};

// Slots are reused; a slot is valid from `admit` to `release`. Not thread-safe.
class RequestTable {
 public:
  explicit RequestTable(int32_t vocab) : vocab_(vocab) {}

  // `capacity`: most tokens the request may ever hold. Throws std::invalid_argument for an empty or too long prompt
  // and for token ids outside the vocabulary.
  int32_t admit(const int32_t* prompt, int32_t count, int32_t capacity, Sampling sampling);
  void release(int32_t slot);      // throws std::invalid_argument if the slot is not live
  Resident& at(int32_t slot);      // likewise
  Resident& live(int32_t slot) { return *slots_[slot]; }  // a slot checked before
  int32_t size() const { return static_cast<int32_t>(slots_.size() - free_.size()); }

 private:
  int32_t vocab_;
  std::vector<std::unique_ptr<Resident>> slots_;
  std::vector<int32_t> free_;
};

}  // namespace forno
