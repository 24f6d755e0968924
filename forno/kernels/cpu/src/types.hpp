// Plain data shared by the executor and every kernel. No behaviour, no allocation, no standard-library
// containers: this header is compiled into one build unit per instruction set, and an inline function
// instantiated there could be chosen by the linker for a machine that cannot run it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace forno {

enum class DType : int32_t { F32 = 0, BF16 = 1, S8 = 2, I32 = 3, S8_ROW = 4 };

// A 2-D value: row r starts at data + r * stride (bytes, a multiple of 64 for whole buffers).
// F32 and BF16 rows are plain arrays and may be column views (data already points at the first column).
// An S8 row holds  int8 q[width] | float scale[width / 32] | int32 sum[width / 32]  with width % 32 == 0;
// x[i] ~= q[i] * scale[i / 32], sum[g] = sum of q over group g. S8 values are never column views.
// An S8_ROW row is the same with all of it in one group:  int8 q[width] | float scale | int32 sum.
struct View {
  char* data;
  int64_t stride;
  int32_t width;
  DType dtype;
};

namespace {  // internal linkage: one copy per build unit, never shared across instruction sets
// What a row of `width` values takes, padding aside.
constexpr int64_t row_bytes(DType dtype, int64_t width) {
  switch (dtype) {
    case DType::BF16: return 2 * width;
    case DType::S8: return width + width / 32 * 8;
    case DType::S8_ROW: return width + 8;
    default: return 4 * width;
  }
}
}  // namespace

// Lines of memory that this worker's share of the next attention will likely read: the blocks' pages in one layer. Ops that
// leave memory idle fetch them, from `next` on, as far as `end`. Lines are counted over all blocks, in order.
struct PageFetch {
  const uint8_t* base;    // block b starts at base + b * block_stride
  int64_t block_stride;
  const int32_t* blocks;
  int64_t block_lines;    // of 64 bytes
  int64_t next, end;
};

// What a worker of the pool gets for one op. `ticket` holds a counter per worker, kTicketStride apart, all zero when the
// op starts and shared by all: take units of work with them, every one (see work.hpp). A worker may come late or not at
// all, and nothing may depend on which worker did what.
struct Worker {
  int32_t id;
  int32_t count;
  char* scratch;          // private, 4096-aligned
  size_t scratch_bytes;   // at least kScratchBytes
  int32_t* ticket;        // counters on cache lines of their own
  PageFetch pages = {};
  int64_t slept_ns = 0;   // in phases that ended later, since somebody set it
};
constexpr int32_t kTicketStride = 32;
constexpr size_t kScratchBytes = size_t(4) << 20;

// One sequence's part of the step: rows [row0, row0 + num_tokens) hold its tokens at positions start, start + 1, ...
struct Span {
  int32_t slot;           // index into the resident request table
  int32_t start;
  int32_t num_tokens;
  int32_t row0;
  const int32_t* blocks;  // block ids covering start + num_tokens positions
  int32_t in_prefix;      // 1: listed in some SharedPrefix
};

// Spans of few tokens whose block tables begin alike: attention may read the first `keys` keys once for all of them.
// The members see all those keys. They are Step::prefix_spans[first, first + count).
struct SharedPrefix {
  int32_t first, count;
  int32_t keys;           // a multiple of 128, a segment of attention_plan.hpp
};

// One row whose logits are needed.
struct Output {
  int32_t row;            // row of the step
  int32_t slot;           // request
  int32_t position;       // position of the row's token; the sampled one goes to position + 1
  int32_t target;         // >= 0: score this known next token (prompt log-probabilities); -1: sample
};

struct Step {
  int32_t num_rows;
  int32_t num_spans;
  int32_t num_outputs;
  const int32_t* token_ids;   // [num_rows]
  const int32_t* positions;   // [num_rows]
  const int32_t* row_span;    // [num_rows] index into spans
  const Span* spans;
  const Output* outputs;
  int32_t num_prefixes;       // disjoint
  const SharedPrefix* prefixes;
  const int32_t* prefix_spans;  // indices into spans
};

enum class KvDType : int32_t { BF16 = 0, INT8 = 1, F32 = 2 };
constexpr int32_t kPage = 32;     // tokens per page; a block is block_size / 32 pages
constexpr int32_t kKvGroup = 32;  // dims of an INT8 key or value that share a scale
namespace {  // internal linkage: one copy per build unit, never shared across instruction sets
constexpr int32_t kv_groups(int32_t dim) { return (dim + kKvGroup - 1) / kKvGroup; }
}  // namespace

// One layer's paged cache. Block b, kv head h, page p starts at
//   base + b * block_stride + h * head_stride + p * page_stride
// and holds K then V, dims padded to dp = round_up(dim, 16) with zeros:
//   BF16: K [dp/2][32 tokens][2]      V [16 token pairs][dp][2]
//   INT8: K u8 (q + 128) [dp/4][32][4]  k_scale[groups][32]  V s8 [8 token quads][dp][4]  v_scale[groups][32]
//   F32:  K [dp][32]                  V [32][dp]
// The scales are bf16, one per token and kKvGroup dims of a head; the last group has what is left.
// Unused token slots hold finite values (pages are zeroed when the arena is made).
struct KvCache {
  char* base;
  int64_t block_stride, head_stride, page_stride;
  int64_t v_offset, k_scale_offset, v_scale_offset;  // inside a page
  int32_t kv_heads, k_dim, v_dim;
  int32_t block_size;
  KvDType dtype;
};

struct PackedMatrix;  // packed.hpp

struct EmbedArgs { View out; const PackedMatrix* weight; };
struct RmsNormArgs { View x, out; const float* weight; float eps; int32_t group; };  // out any type; S8_ROW: one group
struct QuantizeArgs { View x, out; };                                               // F32 -> S8, S8_ROW or BF16
struct AddArgs { View a, b, out; };
struct SiluMulArgs { View gate, up, out; };                                         // out any type
struct GatherArgs { View x, out; };                                                 // rows Step::outputs[i].row
struct RopeArgs { View x, out; int32_t heads, head_dim, rope_dim; const float* cos_sin; };
// cos_sin: [max_positions][rope_dim]: cos of each pair, then sin of each pair; attention_factor applied.
struct KvWriteArgs { View k, v; KvCache cache; };
struct QkvPrepareArgs {
  View x, out;            // x F32: q | k | v side by side; out F32: rotated q
  KvCache cache;
  int32_t heads, kv_heads, head_dim, rope_dim;
  const float* cos_sin;
  const float* q_norm;    // [head_dim] or null
  const float* k_norm;
  float eps;
};
struct AttentionArgs {
  View q, out;            // q F32 [rows][heads * head_dim]; out F32, BF16 or S8
  KvCache cache;
  int32_t heads, kv_heads, head_dim;
  float scale;
  int32_t window;         // 0: no limit
  float softcap;          // 0: none
  char* shared;           // partial results of split sequences, shared by the workers
  size_t shared_bytes;
};

constexpr int32_t kMaxParts = 4;
struct LinearPart { const PackedMatrix* weight; const float* bias; int32_t column; };  // first output column
struct LinearArgs {
  View x;                 // F32, BF16, S8 or S8_ROW, whatever the weights' codec wants
  View out;               // F32, BF16 or S8
  View residual;          // data null: none. F32; may be the same memory as out
  int32_t num_parts;
  LinearPart parts[kMaxParts];
  int32_t silu_mul;       // 1: parts[0] is gate and up interleaved (see packed.hpp), out width = its n / 2
  int32_t axis_outputs;   // 1: rows are Step::num_outputs (or [row_begin, row_end)), else Step::num_rows
  int32_t row_begin, row_end;  // used when row_end > 0: only these rows of x and out (out row 0 is row_begin)
  const LinearArgs* next;      // the linear that will run after this one, whose first weights may be fetched; or null
};

enum class PeakUnit : int32_t { INT8 = 0, BF16 = 1, FP32 = 2 };

// One instruction set's kernels. Every function is called by some workers of the pool at once and returns when no work
// is left to take; the executor makes each op a phase of the pool.
struct KernelTable {
  const char* name;
  void (*embed)(const EmbedArgs&, const Step&, Worker&);
  void (*rms_norm)(const RmsNormArgs&, int32_t rows, Worker&);
  void (*quantize)(const QuantizeArgs&, int32_t rows, Worker&);
  void (*add)(const AddArgs&, int32_t rows, Worker&);
  void (*silu_mul)(const SiluMulArgs&, int32_t rows, Worker&);
  void (*gather)(const GatherArgs&, const Step&, Worker&);
  void (*rope)(const RopeArgs&, const Step&, Worker&);
  void (*kv_write)(const KvWriteArgs&, const Step&, Worker&);
  void (*qkv_prepare)(const QkvPrepareArgs&, const Step&, Worker&);
  void (*attention)(const AttentionArgs&, const Step&, Worker&);
  void (*linear)(const LinearArgs&, int32_t rows, Worker&);
  // Operations done (a multiply-add is two) in `rounds` of nothing but arithmetic on one core: time it for the ceiling.
  // 0 where the instruction set has no such unit.
  int64_t (*peak)(PeakUnit unit, int64_t rounds);
};

const KernelTable* kernels_avx512();    // null where the build has none
const KernelTable* kernels_avx2();
const KernelTable* kernels_portable();

}  // namespace forno
