#include "kv_layout.hpp"

#include <cstring>
#include <stdexcept>

#include "ops/attention_plan.hpp"

namespace forno {
namespace {

constexpr int32_t kMaxDim = 1 << 16;  // keeps every product below far inside int64

int64_t padded(int32_t dim) { return (int64_t(dim) + 15) / 16 * 16; }

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

}  // namespace

KvCache kv_layout(const KvShape& s) {
  require(s.kv_heads > 0 && s.kv_heads <= kMaxDim, "kv_heads must be in [1, 65536]");
  require(s.k_dim > 0 && s.k_dim <= kMaxDim && s.v_dim > 0 && s.v_dim <= kMaxDim, "head dims must be in [1, 65536]");
  require(s.block_size > 0 && s.block_size <= kMaxDim && s.block_size % kPage == 0, "block_size must be a multiple of 32");
  const int64_t element = s.dtype == KvDType::F32 ? 4 : s.dtype == KvDType::BF16 ? 2 : 1;
  const int64_t k_bytes = padded(s.k_dim) * kPage * element, v_bytes = padded(s.v_dim) * kPage * element;
  const int64_t scale_bytes = s.dtype == KvDType::INT8 ? int64_t(kPage) * 2 : 0;  // of one group
  KvCache c{};
  c.k_scale_offset = k_bytes;
  c.v_offset = c.k_scale_offset + kv_groups(s.k_dim) * scale_bytes;
  c.v_scale_offset = c.v_offset + v_bytes;
  c.page_stride = c.v_scale_offset + kv_groups(s.v_dim) * scale_bytes;
  c.head_stride = c.page_stride * (s.block_size / kPage);
  c.block_stride = c.head_stride * s.kv_heads;
  c.kv_heads = s.kv_heads;
  c.k_dim = s.k_dim;
  c.v_dim = s.v_dim;
  c.block_size = s.block_size;
  c.dtype = s.dtype;
  return c;
}

int64_t kv_block_bytes(const KvCache& cache) { return cache.head_stride * cache.kv_heads; }

int64_t kv_arena_bytes(int64_t block_bytes, int64_t num_blocks) {
  int64_t bytes = 0;
  require(num_blocks >= 0 && !__builtin_mul_overflow(block_bytes, num_blocks, &bytes), "KV arena is too large");
  return bytes;
}

void kv_zero_blocks(const KvCache& cache, int64_t first, int64_t count) {
  for (int64_t b = first; b < first + count; ++b) std::memset(cache.base + b * cache.block_stride, 0, size_t(kv_block_bytes(cache)));
}

void kv_copy_block(const KvCache& cache, int32_t source, int32_t target) {
  if (source == target) return;
  std::memcpy(cache.base + target * cache.block_stride, cache.base + source * cache.block_stride, size_t(kv_block_bytes(cache)));
}

size_t attention_shared_bytes(int32_t heads, int32_t v_dim, int32_t max_rows, int32_t max_context, int32_t threads) {
  constexpr size_t most = size_t(64) << 20;
  if (threads <= 1) return attention_plan::kCounterBytes;
  const size_t rows = size_t(max_rows < 2 * threads ? max_rows : 2 * threads);
  const size_t segments = (size_t(max_context) + attention_plan::kSegment - 1) / attention_plan::kSegment;
  const size_t wanted = rows * segments * size_t(attention_plan::partial_bytes(heads, v_dim));
  return attention_plan::kCounterBytes + (wanted < most ? wanted : most);
}

size_t score_matrix_bytes(int32_t heads, int32_t max_rows, int32_t max_context) {
  const size_t columns = size_t(attention_plan::round_up(max_context, attention_plan::kSegment));
  return size_t(heads) * size_t(max_rows) * columns * sizeof(float);
}

size_t attention_scratch_bytes(int32_t heads, const KvCache& cache) {
  const int64_t attention = attention_plan::scratch_bytes(heads / cache.kv_heads, cache.k_dim, cache.v_dim);
  const int64_t rotated = padded(cache.k_dim) * cache.kv_heads * 4;  // one row's keys, and a page of all heads packed
  const int64_t prepare = rotated + 64 + (padded(cache.k_dim) + padded(cache.v_dim)) * cache.kv_heads * kPage * 4;
  return size_t(attention > prepare ? attention : prepare);
}

}  // namespace forno
