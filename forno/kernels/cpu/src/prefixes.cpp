#include "prefixes.hpp"

#include <algorithm>
#include <cstring>

#include "ops/attention_plan.hpp"

namespace forno {
namespace {

using attention_plan::kSegment;
using attention_plan::kSharedTokens;

// A group gains nothing from more members once its rows fill a tile.
constexpr int32_t kMostMembers = 64;

// Blocks that every token of the span sees whole.
int32_t whole_blocks(const Span& span, int32_t block_size) { return span.start / block_size; }

}  // namespace

SharedPrefixes::SharedPrefixes(int32_t max_spans)
    : link_(size_t(max_spans) + 1), saved_(size_t(max_spans) + 1), begin_(size_t(max_spans) + 1) {
  order_.reserve(size_t(max_spans));
  groups_.reserve(size_t(max_spans));
}

void SharedPrefixes::find(Span* spans, int32_t block_size, Step& step) {
  groups_.clear();
  sort(spans, step.num_spans, block_size);
  link(spans, block_size);
  choose();
  for (const SharedPrefix& group : groups_)
    for (int32_t i = group.first; i < group.first + group.count; ++i) spans[order_[i]].in_prefix = 1;
  step.num_prefixes = int32_t(groups_.size());
  step.prefixes = groups_.data();
  step.prefix_spans = order_.data();
}

void SharedPrefixes::sort(const Span* spans, int32_t count, int32_t block_size) {
  order_.clear();
  for (int32_t i = 0; i < count; ++i)
    if (spans[i].num_tokens > 0 && spans[i].num_tokens <= kSharedTokens && spans[i].start >= kSegment) order_.push_back(i);
  // Any order that puts like tables side by side will do: bytes compare faster than integers.
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const int32_t na = whole_blocks(spans[a], block_size), nb = whole_blocks(spans[b], block_size);
    const int order = std::memcmp(spans[a].blocks, spans[b].blocks, size_t(std::min(na, nb)) * sizeof(int32_t));
    return order != 0 ? order < 0 : na != nb ? na < nb : a < b;
  });
}

void SharedPrefixes::link(const Span* spans, int32_t block_size) {
  for (size_t i = 1; i < order_.size(); ++i) {
    const Span &a = spans[order_[i - 1]], &b = spans[order_[i]];
    const int32_t most = std::min(whole_blocks(a, block_size), whole_blocks(b, block_size));
    const int32_t* differs = std::mismatch(a.blocks, a.blocks + most, b.blocks).first;
    link_[i] = int32_t((differs - a.blocks) * block_size / kSegment);
  }
}

// Cuts the candidates into groups of neighbours so that (members - 1) * shared segments, the reads saved, is largest in
// all: a system prompt common to all must not hide the longer documents that some share.
void SharedPrefixes::choose() {
  const int32_t count = int32_t(order_.size());
  saved_[0] = 0;
  for (int32_t end = 1; end <= count; ++end) {
    saved_[end] = saved_[end - 1];
    begin_[end] = end - 1;
    int32_t common = INT32_MAX;
    for (int32_t first = end - 2; first >= 0 && end - first <= kMostMembers; --first) {
      common = std::min(common, link_[first + 1]);
      if (common == 0) break;
      const int64_t saved = saved_[first] + int64_t(end - first - 1) * common;
      if (saved > saved_[end]) saved_[end] = saved, begin_[end] = first;
    }
  }
  for (int32_t end = count; end > 0; end = begin_[end]) {
    const int32_t first = begin_[end], members = end - first;
    if (members < 2) continue;
    const int32_t shared = *std::min_element(link_.begin() + first + 1, link_.begin() + end);
    groups_.push_back({first, members, shared * kSegment});
  }
}

}  // namespace forno
