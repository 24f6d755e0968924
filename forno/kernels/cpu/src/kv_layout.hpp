// Where keys and values lie in a paged cache: strides and offsets of types.hpp's KvCache from its shape.
// Knows nothing of requests or of who owns a block.
#pragma once
#include "types.hpp"

namespace forno {

struct KvShape {
  int32_t kv_heads, k_dim, v_dim;
  int32_t block_size;  // tokens, a multiple of kPage
  KvDType dtype;
};

// One layer's cache with base null; throws std::invalid_argument on a shape that cannot be laid out.
KvCache kv_layout(const KvShape& shape);

// Bytes of one block of one layer, all heads. `block_stride` is at least that: other layers may lie between blocks.
int64_t kv_block_bytes(const KvCache& cache);

// Bytes of an arena of `num_blocks` blocks; throws std::invalid_argument when the size does not fit in 63 bits.
int64_t kv_arena_bytes(int64_t block_bytes, int64_t num_blocks);

// Zero the blocks [first, first + count) of a layer: unused slots must hold finite values.
void kv_zero_blocks(const KvCache& cache, int64_t first, int64_t count);

// Copy one block of one layer, all heads.
void kv_copy_block(const KvCache& cache, int32_t source, int32_t target);

// Bytes for AttentionArgs::shared: what the split of up to 2 * threads rows over `max_context` keys needs, at most
// 64 MiB (a step that would need more is computed unsplit, with the same bits). The executor zeroes it once.
size_t attention_shared_bytes(int32_t heads, int32_t v_dim, int32_t max_rows, int32_t max_context, int32_t threads);

// Bytes for MatrixArgs::matrix: the scores of `max_rows` rows, each for every head and up to `max_context` keys.
size_t score_matrix_bytes(int32_t heads, int32_t max_rows, int32_t max_context);

// Worker::scratch bytes that attention, kv_write and qkv_prepare need for this shape; a lowering refuses shapes where
// it exceeds kScratchBytes.
size_t attention_scratch_bytes(int32_t heads, const KvCache& cache);

}  // namespace forno
