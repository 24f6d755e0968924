// Walks a recorded program: a flat array of op records, each a phase of the pool.
//
// Made once per model by kernels/cpu/lower.py; `run` then takes one step's plan, checks all of it, and computes on every
// worker of the pool. A step allocates nothing. The executor knows neither Python nor an architecture.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "arena.hpp"
#include "kv_layout.hpp"
#include "pool.hpp"
#include "prefault.hpp"
#include "prefixes.hpp"
#include "requests.hpp"
#include "sampler.hpp"
#include "types.hpp"

namespace forno {

constexpr int32_t kHeadSlice = 64;  // output rows whose logits exist at a time in a fused head

// Sample from logits that a linear left for all output rows.
struct SampleOpArgs { View logits; };
// Fused head: linear and sampling in slices of kHeadSlice rows. `linear.out` holds one slice of logits.
struct SampleHeadArgs { LinearArgs linear; };

enum class Axis : int32_t { Rows = 0, Outputs = 1 };

using OpArgs = std::variant<EmbedArgs, RmsNormArgs, QuantizeArgs, AddArgs, SiluMulArgs, GatherArgs, RopeArgs, KvWriteArgs,
                            QkvPrepareArgs, AttentionArgs, MatrixArgs, LinearArgs, SampleOpArgs, SampleHeadArgs>;

// What a linear fetches meanwhile: of the pages that the next attention reads, lines up to `share` of all.
struct FetchAhead {
  int32_t attention = -1;  // its record; -1: nothing to fetch
  double share = 0.0;      // how much of the linears' work since the attention before is done when this one has ended
};

struct Record {
  OpArgs args;
  Axis axis;  // which row count the op runs over
  FetchAhead ahead = {};
};

// One row of forno.request.StepPlan. An int32 array of this shape crosses from Python.
struct PlanRow {
  int32_t slot;
  int32_t start;
  int32_t num_tokens;
  int32_t sample;       // 0 or 1
  int32_t first_block;  // index of its block table in StepInput::blocks
  int32_t num_blocks;
  int32_t mask;         // row of StepInput::masks, or -1
  int32_t first_draft;  // index of its drafts in StepInput::drafts
  int32_t num_drafts;   // guesses of the next tokens, the last of num_tokens; verified as they are sampled
};
constexpr int32_t kPlanColumns = 9;
static_assert(sizeof(PlanRow) == kPlanColumns * sizeof(int32_t), "an int32 array is read as PlanRow");

struct StepInput {
  const PlanRow* rows;
  int32_t num_rows;
  const int32_t* blocks;  // all block tables, one after the other
  int64_t num_block_ids;
  const int32_t* copies;  // pairs of (source, destination) blocks
  int32_t num_copies;
  const uint32_t* masks;  // [num_masks][ceil(vocab / 32)]
  int32_t num_masks;
  const int32_t* drafts;  // of all rows, one after the other
  int64_t num_drafts;
};

struct ExecutorConfig {
  const KernelTable* kernels;
  int32_t threads;
  int32_t spin_us;
  int32_t max_rows;       // tokens per step
  int32_t vocab;
  int32_t max_positions;  // length of the rope tables
  int32_t num_blocks;
  int32_t block_size;
  size_t activation_bytes;
};

class Executor {
 public:
  explicit Executor(const ExecutorConfig& config);

  // Building, in program order.
  char* activations() const { return activations_.data(); }
  size_t activation_bytes() const { return config_.activation_bytes; }
  const float* keep(const float* values, size_t count);  // a copy that lives as long as the executor, 64-byte aligned
  void set_caches(const std::vector<KvShape>& layers);  // once, before the ops that use them
  const KvCache& cache(int32_t index) const;  // throws std::out_of_range
  void add(OpArgs args, Axis axis);           // throws std::invalid_argument for what no kernel could run

  // Computes one step and returns the number of results in `draws`. Throws std::invalid_argument, before anything has
  // changed, if the plan is not consistent with the resident requests and the cache.
  int32_t run(const StepInput& input);
  const std::vector<Draw>& draws() const { return draws_; }

  // The logits of the last step's results, [results][vocab]; filled only while capturing.
  void capture_logits(bool on);
  const float* captured() const { return reinterpret_cast<const float*>(capture_.data()); }

  // What the next steps measure of each record, on worker 0: nanoseconds, or instructions. The latter are counted here by
  // stepping (exact with one thread), or, with Marks, by a tool that watches the calls of forno_instructions.
  enum class Measure { Nothing, Nanoseconds, Instructions, Marks };
  // Instructions are counted of records [first, last) only; counting is slow.
  void measure(Measure what, size_t first = 0, size_t last = SIZE_MAX) { measure_ = what, first_ = first, last_ = last; }
  const std::vector<int64_t>& measured() const { return measured_; }  // of the last measured step, per record
  int64_t allocations() const { return allocations_; }  // in the last step whose instructions were counted

  // Time of the last step in which workers had no core, summed: since its start, neither computing nor waiting for a phase
  // to end.
  int64_t missing_ns() const {
    int64_t total = 0;
    for (const Missing& m : missing_) total += m.ns;
    return total;
  }

  // Keys of the last step that a layer without a window did not read again, for another sequence had read them.
  int64_t shared_keys() const {
    int64_t total = 0;
    for (int32_t i = 0; i < step_.num_prefixes; ++i) total += int64_t(step_.prefixes[i].count - 1) * step_.prefixes[i].keys;
    return total;
  }

  // Whether sequences that share leading blocks read them once. Changes no result; off only to measure what it is worth.
  void share_prefixes(bool on) { sharing_ = on; }

  RequestTable& requests() { return requests_; }
  Pool& pool() { return pool_; }
  const ExecutorConfig& config() const { return config_; }
  size_t kv_bytes() const;

  // Claim the memory of the first blocks, up to `bytes` of the cache, while no step runs. Call once, when ready to serve.
  void prefault(size_t bytes);
  size_t prefaulted() const { return prefault_.done(); }  // bytes of the cache that this has claimed

 private:
  void check(const StepInput& input);
  void check_row(const StepInput& input, int32_t index, int64_t* total);
  void check_drafts(const StepInput& input, const PlanRow& row, const Resident& request, const std::string& where) const;
  void build(const StepInput& input);
  void add_output(int32_t row, const PlanRow& plan, int32_t plan_row, int32_t position, int32_t target);
  void plan_fetching(int32_t attention);
  void list_blocks();
  void list_span(const Span& span, int32_t first_block);
  void aim(const FetchAhead& ahead, Worker& worker) const;
  void walk(const StepInput& input, Worker& worker);
  void walk_measured(const StepInput& input, Worker& worker);
  void run_record(size_t index, const StepInput& input, Worker& worker);
  void copy_blocks(const StepInput& input, Worker& worker);
  void execute(const Record& record, const StepInput& input, Worker& worker);
  void head(const SampleHeadArgs& args, const StepInput& input, Worker& worker);
  void sample_rows(const View& logits, int32_t begin, int32_t end, const StepInput& input, Worker& worker);
  void append_tokens(const StepInput& input);

  const ExecutorConfig config_;
  Pool pool_;
  Arena activations_;
  std::vector<Arena> constants_;
  Arena cache_memory_;
  Prefault prefault_;  // ends before the memory goes
  std::vector<KvCache> caches_;
  std::vector<Record> records_;
  Arena shared_;  // attention's partial results
  Arena matrix_;  // its scores, where they are materialized
  RequestTable requests_;

  // The current step. Sized for max_rows once.
  struct alignas(128) Missing { int64_t ns = 0; };
  std::vector<Missing> missing_;  // by worker
  int64_t step_number_ = 0;
  Step step_{};
  std::vector<int32_t> token_ids_, positions_, row_span_;
  std::vector<Span> spans_;
  std::vector<Output> outputs_;
  std::vector<Draw> draws_;
  SharedPrefixes prefixes_;
  std::vector<int32_t> read_blocks_;  // those that attention reads, in its order; empty: not worth fetching ahead
  int32_t longest_ = 0;               // context of a sequence

  Arena capture_;
  bool capturing_ = false;
  Measure measure_ = Measure::Nothing;
  size_t first_ = 0, last_ = SIZE_MAX;  // records whose instructions are counted
  bool sharing_ = true;
  std::vector<int64_t> measured_;
  int64_t allocations_ = 0;
};

}  // namespace forno
