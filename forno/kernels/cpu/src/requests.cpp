#include "requests.hpp"

#include <stdexcept>
#include <string>

namespace forno {
namespace {

void note(Resident& request, int32_t token, int32_t generated) {
  int32_t& index = request.seen_index[token];
  if (index < 0) {
    index = static_cast<int32_t>(request.seen.size());
    request.seen.push_back({token, 0});
  }
  request.seen[index].generated += generated;
}

void check_token(int32_t token, int32_t vocab, const char* where) {
  if (token < 0 || token >= vocab)
    throw std::invalid_argument("token " + std::to_string(token) + " in the " + where + " is outside the vocabulary of " +
                                std::to_string(vocab));
}

}  // namespace

void Resident::append(int32_t token) {
  tokens.push_back(token);
  if (!seen_index.empty()) note(*this, token, 1);
}

void Resident::guess(const int32_t* guesses, int32_t count) {
  tokens.insert(tokens.end(), guesses, guesses + count);
  drafts += count;
}

void Resident::drop_drafts() {
  tokens.resize(tokens.size() - drafts);
  drafts = 0;
}

int32_t RequestTable::admit(const int32_t* prompt, int32_t count, int32_t capacity, Sampling sampling) {
  if (count < 1) throw std::invalid_argument("a request needs at least one prompt token");
  if (count > capacity)
    throw std::invalid_argument("a prompt of " + std::to_string(count) + " tokens exceeds the capacity of " +
                                std::to_string(capacity));
  for (int32_t i = 0; i < count; ++i) check_token(prompt[i], vocab_, "prompt");
  for (const auto& entry : sampling.bias) check_token(entry.first, vocab_, "logit bias");
  for (int32_t token : sampling.ends) check_token(token, vocab_, "stop tokens");

  auto request = std::make_unique<Resident>();
  request->sampling = std::move(sampling);
  request->prompt_tokens = count;
  request->tokens.reserve(capacity);
  request->tokens.assign(prompt, prompt + count);
  if (request->sampling.has_penalties()) {
    request->seen_index.assign(vocab_, -1);
    request->seen.reserve(capacity < vocab_ ? capacity : vocab_);
    for (int32_t i = 0; i < count; ++i) note(*request, prompt[i], 0);
  }
  free_.reserve(slots_.size() + 1);
  if (free_.empty()) {
    slots_.push_back(std::move(request));
    return static_cast<int32_t>(slots_.size()) - 1;
  }
  const int32_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = std::move(request);
  return slot;
}

Resident& RequestTable::at(int32_t slot) {
  if (slot < 0 || slot >= static_cast<int32_t>(slots_.size()) || !slots_[slot])
    throw std::invalid_argument("request " + std::to_string(slot) + " is not resident");
  return *slots_[slot];
}

void RequestTable::release(int32_t slot) {
  at(slot);
  slots_[slot].reset();
  free_.push_back(slot);
}

}  // namespace forno
