// Which spans of a step read the same keys first: from the block tables alone, so the prefix cache need not say.
// Knows nothing of models; attention decides whether a group is worth a unit of work of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "types.hpp"

namespace forno {

class SharedPrefixes {
 public:
  explicit SharedPrefixes(int32_t max_spans);

  // Groups the step's spans, marks the members and points the step at the groups. Allocates nothing.
  void find(Span* spans, int32_t block_size, Step& step);

 private:
  void sort(const Span* spans, int32_t count, int32_t block_size);
  void link(const Span* spans, int32_t block_size);
  void choose();

  std::vector<int32_t> order_;  // candidate spans, those with like tables adjacent
  std::vector<int32_t> link_;   // [i]: segments that candidates i - 1 and i share
  std::vector<int64_t> saved_;  // [i]: most segment reads that grouping the first i candidates saves
  std::vector<int32_t> begin_;  // [i]: where the last group of that choice begins
  std::vector<SharedPrefix> groups_;
};

}  // namespace forno
