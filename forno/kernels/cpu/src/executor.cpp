#include "executor.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "clock.hpp"
#include "isa.hpp"
#include "kv_layout.hpp"
#include "packed.hpp"
#include "stepping.hpp"
#include "work.hpp"

namespace forno {
namespace {

constexpr int32_t kPrefaultThreads = 4;
constexpr int64_t kStepPause = 1000, kIdlePause = 20;  // milliseconds: longer than a step, and than the gap between two

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string number(int64_t n) { return std::to_string(n); }

// The linear of a record, if it is one.
LinearArgs* linear_of(OpArgs& args) {
  if (auto* op = std::get_if<LinearArgs>(&args)) return op;
  if (auto* op = std::get_if<SampleHeadArgs>(&args)) return &op->linear;
  return nullptr;
}

// Multiply-adds per row.
double work_of(const LinearArgs& args) {
  double work = 0.0;
  for (int32_t i = 0; i < args.num_parts; ++i) work += double(args.parts[i].weight->n) * args.parts[i].weight->k;
  return work;
}

// From this many rows on linears are bound by arithmetic, and memory can fetch pages meanwhile; with fewer, it would
// fetch them instead of weights. More than the last-level cache keeps would be lost again.
constexpr int32_t kFetchRows = 16;
constexpr int64_t kMostFetched = int64_t(12) << 20;

bool writes_f32(const View& v) { return v.dtype == DType::F32; }

}  // namespace

Executor::Executor(const ExecutorConfig& config)
    : config_(config),
      pool_(config.threads, config.spin_us, sampler_scratch_bytes(config.vocab)),
      activations_(config.activation_bytes),
      requests_(config.vocab),
      prefixes_(config.max_rows < 1 ? 0 : config.max_rows) {
  if (!config.kernels) refuse("no kernels were given");
  if (config.max_rows < 1 || config.vocab < 1 || config.max_positions < 1) refuse("sizes must be positive");
  if (config.num_blocks < 1 || config.block_size < kPage || config.block_size % kPage)
    refuse("the cache needs at least one block, of a multiple of " + number(kPage) + " tokens");
  token_ids_.resize(config.max_rows);
  positions_.resize(config.max_rows);
  row_span_.resize(config.max_rows);
  spans_.resize(config.max_rows);
  outputs_.resize(config.max_rows);
  draws_.resize(config.max_rows);
  missing_.resize(config.threads);
  read_blocks_.reserve(config.num_blocks);
}

const float* Executor::keep(const float* values, size_t count) {
  Arena copy(count * sizeof(float));
  if (count) std::memcpy(copy.data(), values, count * sizeof(float));
  constants_.push_back(std::move(copy));
  return reinterpret_cast<const float*>(constants_.back().data());
}

void Executor::set_caches(const std::vector<KvShape>& layers) {
  if (!caches_.empty()) refuse("the caches are set already");
  // A block's layers lie side by side. Were each layer an arena of its own, the first use of a block could touch a new
  // huge page in every one of them at once, which stops a step for as long as it takes to zero them all.
  int64_t block_bytes = 0;
  for (const KvShape& shape : layers) {
    caches_.push_back(kv_layout(shape));
    block_bytes += kv_block_bytes(caches_.back());
  }
  cache_memory_ = Arena(static_cast<size_t>(kv_arena_bytes(block_bytes, config_.num_blocks)));  // zeroed, as kernels need
  char* base = cache_memory_.data();
  for (KvCache& cache : caches_) {
    cache.base = base;
    base += kv_block_bytes(cache);
    cache.block_stride = block_bytes;
  }
}

const KvCache& Executor::cache(int32_t index) const { return caches_.at(index); }

size_t Executor::kv_bytes() const { return cache_memory_.bytes(); }

void Executor::prefault(size_t bytes) {
  prefault_.start(cache_memory_.data(), std::min(bytes, cache_memory_.bytes()), std::min(config_.threads, kPrefaultThreads));
}

void Executor::add(OpArgs args, Axis axis) {
  if (auto* attention = std::get_if<AttentionArgs>(&args)) {
    if (attention_scratch_bytes(attention->heads, attention->cache) > pool_.scratch_bytes())
      refuse("attention heads of this size need more scratch memory than a worker has");
    const size_t bytes = attention_shared_bytes(attention->heads, attention->cache.v_dim, config_.max_rows,
                                                config_.max_positions, config_.threads);
    if (bytes > shared_.bytes()) shared_ = Arena(bytes);
  }
  if (auto* op = std::get_if<SampleOpArgs>(&args); op && !writes_f32(op->logits)) refuse("logits must be float32");
  if (auto* op = std::get_if<SampleHeadArgs>(&args); op && !writes_f32(op->linear.out)) refuse("logits must be float32");
  records_.push_back({std::move(args), axis});
  measured_.resize(records_.size());
  if (std::holds_alternative<AttentionArgs>(records_.back().args)) plan_fetching(int32_t(records_.size()) - 1);
  LinearArgs* before = nullptr;
  for (Record& record : records_) {  // the records and the area may have moved
    if (auto* attention = std::get_if<AttentionArgs>(&record.args)) {
      attention->shared = shared_.data();
      attention->shared_bytes = shared_.bytes();
    }
    LinearArgs* linear = linear_of(record.args);
    if (!linear) continue;
    if (before) before->next = linear;
    before = linear;
  }
}

void Executor::plan_fetching(int32_t attention) {
  int32_t first = attention;
  while (first > 0 && !std::holds_alternative<AttentionArgs>(records_[first - 1].args)) --first;
  double all = 0.0, done = 0.0;
  for (int32_t i = first; i < attention; ++i)
    if (const LinearArgs* linear = linear_of(records_[i].args)) all += work_of(*linear);
  for (int32_t i = first; i < attention; ++i)
    if (const LinearArgs* linear = linear_of(records_[i].args)) {
      done += work_of(*linear);
      records_[i].ahead = {attention, done / all};
    }
}

void Executor::capture_logits(bool on) {
  if (on && !capture_.data()) capture_ = Arena(size_t(config_.max_rows) * config_.vocab * sizeof(float));
  capturing_ = on;
}

// ---- one step: check, build, walk ----

void Executor::check_row(const StepInput& input, int32_t index, int64_t* total) {
  const PlanRow& row = input.rows[index];
  const std::string where = "row " + number(index) + ": ";
  Resident& request = requests_.at(row.slot);
  if (request.last_step == step_number_) refuse(where + "request " + number(row.slot) + " is in this step twice");
  request.last_step = step_number_;
  if (row.start < 0 || row.num_tokens < 1) refuse(where + "start must be at least 0 and num_tokens at least 1");
  const int64_t end = int64_t(row.start) + row.num_tokens;
  if (row.num_drafts) check_drafts(input, row, request, where);
  const int64_t known = int64_t(request.num_tokens()) + row.num_drafts;
  if (end > known) refuse(where + "positions up to " + number(end) + " but only " + number(known) + " tokens resident");
  if (end > config_.max_positions) refuse(where + "position beyond the model's " + number(config_.max_positions));
  if (row.sample && end != known) refuse(where + "only the last resident position can be sampled from");
  if (row.first_block < 0 || row.num_blocks < 0 || int64_t(row.first_block) + row.num_blocks > input.num_block_ids)
    refuse(where + "the block table lies outside the plan's block ids");
  if (int64_t(row.num_blocks) * config_.block_size < end)
    refuse(where + number(row.num_blocks) + " blocks do not cover " + number(end) + " positions");
  for (int32_t b = 0; b < row.num_blocks; ++b)
    if (const int32_t id = input.blocks[row.first_block + b]; id < 0 || id >= config_.num_blocks)
      refuse(where + "block " + number(id) + " is outside the cache of " + number(config_.num_blocks));
  if (row.mask < -1 || row.mask >= input.num_masks) refuse(where + "mask " + number(row.mask) + " does not exist");
  *total += row.num_tokens;
}

void Executor::check_drafts(const StepInput& input, const PlanRow& row, const Resident& request,
                            const std::string& where) const {
  if (row.first_draft < 0 || row.num_drafts < 0 || int64_t(row.first_draft) + row.num_drafts > input.num_drafts)
    refuse(where + "the drafts lie outside the plan's drafts");
  if (row.num_drafts >= row.num_tokens || !row.sample) refuse(where + "drafts follow a position that is sampled");
  if (row.mask >= 0) refuse(where + "a mask holds for one position only, so drafts cannot be verified under one");
  if (row.num_drafts >= request.room()) refuse(where + number(row.num_drafts) + " drafts are more than the request may hold");
  for (int32_t i = 0; i < row.num_drafts; ++i)
    if (const int32_t id = input.drafts[row.first_draft + i]; id < 0 || id >= config_.vocab)
      refuse(where + "draft " + number(id) + " is outside the vocabulary of " + number(config_.vocab));
}

void Executor::check(const StepInput& input) {
  if (records_.empty()) refuse("the executor holds no program");
  if (input.num_rows > config_.max_rows)
    refuse(number(input.num_rows) + " rows exceed the limit of " + number(config_.max_rows));
  ++step_number_;
  int64_t total = 0;
  for (int32_t i = 0; i < input.num_rows; ++i) check_row(input, i, &total);
  if (total > config_.max_rows)
    refuse(number(total) + " tokens exceed the limit of " + number(config_.max_rows) + " per step");
  for (int32_t i = 0; i < 2 * input.num_copies; ++i)
    if (input.copies[i] < 0 || input.copies[i] >= config_.num_blocks)
      refuse("copy " + number(i / 2) + ": block " + number(input.copies[i]) + " is outside the cache of " +
             number(config_.num_blocks));
}

void Executor::add_output(int32_t row, const PlanRow& plan, int32_t plan_row, int32_t position, int32_t target) {
  outputs_[step_.num_outputs] = {row, plan.slot, position, target};
  draws_[step_.num_outputs].row = plan_row;
  draws_[step_.num_outputs].target = target;
  ++step_.num_outputs;
}

void Executor::build(const StepInput& input) {
  step_ = {0, input.num_rows, 0, token_ids_.data(), positions_.data(), row_span_.data(), spans_.data(), outputs_.data(),
           0, nullptr, nullptr};
  for (int32_t i = 0; i < input.num_rows; ++i) {
    const PlanRow& plan = input.rows[i];
    Resident& request = requests_.live(plan.slot);
    const bool scores_prompt = request.sampling.prompt_logprobs >= 0;
    if (plan.num_drafts) request.guess(input.drafts + plan.first_draft, plan.num_drafts);
    spans_[i] = {plan.slot, plan.start, plan.num_tokens, step_.num_rows, input.blocks + plan.first_block, 0};
    for (int32_t t = 0; t < plan.num_tokens; ++t) {
      const int32_t position = plan.start + t, row = step_.num_rows + t;
      token_ids_[row] = request.tokens[position];
      positions_[row] = position;
      row_span_[row] = i;
      if (scores_prompt && position + 1 < request.prompt_tokens)
        add_output(row, plan, i, position, request.tokens[position + 1]);
      else if (plan.sample && t + 1 >= plan.num_tokens - plan.num_drafts)
        add_output(row, plan, i, position, -1);
    }
    step_.num_rows += plan.num_tokens;
  }
  if (sharing_) prefixes_.find(spans_.data(), config_.block_size, step_);
  list_blocks();
}

void Executor::list_blocks() {
  read_blocks_.clear();
  longest_ = 0;
  if (step_.num_rows < kFetchRows) return;
  for (int32_t i = 0; i < step_.num_prefixes; ++i) {
    const SharedPrefix& prefix = step_.prefixes[i];
    for (int32_t m = 0; m < prefix.count; ++m)
      list_span(spans_[step_.prefix_spans[prefix.first + m]], m == 0 ? 0 : prefix.keys / config_.block_size);
  }
  for (int32_t i = 0; i < step_.num_spans; ++i)
    if (!spans_[i].in_prefix) list_span(spans_[i], 0);
}

void Executor::list_span(const Span& span, int32_t first_block) {
  const int32_t context = span.start + span.num_tokens;
  longest_ = std::max(longest_, context);
  for (int32_t b = first_block; b * config_.block_size < context && read_blocks_.size() < read_blocks_.capacity(); ++b)
    read_blocks_.push_back(span.blocks[b]);
}

// Lets the worker fetch its share of what `ahead` says. What earlier ops have left over comes along.
void Executor::aim(const FetchAhead& ahead, Worker& worker) const {
  PageFetch& pages = worker.pages;
  pages.end = 0;
  if (ahead.attention < 0 || read_blocks_.empty()) return;
  const auto& attention = std::get<AttentionArgs>(records_[ahead.attention].args);
  if (attention.window > 0 && attention.window < longest_) return;  // most of the pages would not be read
  const KvCache& cache = attention.cache;
  const auto* base = reinterpret_cast<const uint8_t*>(cache.base);
  const int64_t blocks = int64_t(read_blocks_.size()), first = blocks * worker.id / worker.count;
  if (pages.base != base)
    pages = {base, cache.block_stride, read_blocks_.data() + first, kv_block_bytes(cache) / 64, 0, 0};
  const int64_t lines = (blocks * (worker.id + 1) / worker.count - first) * pages.block_lines;
  pages.end = int64_t(double(std::min(lines, kMostFetched / 64 / worker.count)) * ahead.share);
}

int32_t Executor::run(const StepInput& input) {
  check(input);
  build(input);
  prefault_.pause(kStepPause);
  const int64_t started = now_ns();
  pool_.run([&](Worker& worker) {
    const int64_t before = core_ns();
    worker.slept_ns = 0;
    walk(input, worker);
    const int64_t present = core_ns() - before + worker.slept_ns;
    missing_[worker.id].ns = std::max<int64_t>(0, now_ns() - started - present);
  });
  prefault_.pause(kIdlePause);
  append_tokens(input);
  return step_.num_outputs;
}

void Executor::walk(const StepInput& input, Worker& worker) {
  if (input.num_copies) pool_.phase(worker, [&] { copy_blocks(input, worker); });
  worker.pages = {};
  if (measure_ != Measure::Nothing && worker.id == 0) return walk_measured(input, worker);
  for (size_t i = 0; i < records_.size(); ++i) run_record(i, input, worker);
}

void Executor::walk_measured(const StepInput& input, Worker& worker) {
  const bool time = measure_ == Measure::Nanoseconds;
  std::optional<Stepping> stepping;
  int64_t before = time ? now_ns() : forno_instructions();
  for (size_t i = 0; i < records_.size(); ++i) {
    if (measure_ == Measure::Instructions && i == first_) {
      stepping.emplace();
      before = forno_instructions();
    }
    run_record(i, input, worker);
    const int64_t after = time ? now_ns() : forno_instructions();
    measured_[i] = after - before;
    before = after;
    if (stepping && i + 1 == last_) {
      stepping.reset();
      before = forno_instructions();
    }
  }
  stepping.reset();
  allocations_ = stepped_allocations();
}

void Executor::run_record(size_t index, const StepInput& input, Worker& worker) {
  const Record& record = records_[index];
  aim(record.ahead, worker);
  const bool empty = (record.axis == Axis::Rows ? step_.num_rows : step_.num_outputs) == 0;
  if (const auto* head_args = std::get_if<SampleHeadArgs>(&record.args)) head(*head_args, input, worker);
  else if (!empty) pool_.phase(worker, [&] { execute(record, input, worker); });
}

void Executor::copy_blocks(const StepInput& input, Worker& worker) {
  for_units(worker, static_cast<int32_t>(caches_.size()), [&](int32_t layer) {
    for (int32_t i = 0; i < input.num_copies; ++i)  // in the plan's order: a copy may be copied on
      kv_copy_block(caches_[layer], input.copies[2 * i], input.copies[2 * i + 1]);
  });
}

void Executor::execute(const Record& record, const StepInput& input, Worker& worker) {
  const KernelTable& kernels = *config_.kernels;
  const int32_t rows = record.axis == Axis::Rows ? step_.num_rows : step_.num_outputs;
  struct Visitor {
    Executor& self;
    const KernelTable& k;
    const StepInput& input;
    Worker& w;
    int32_t rows;
    void operator()(const EmbedArgs& a) const { k.embed(a, self.step_, w); }
    void operator()(const RmsNormArgs& a) const { k.rms_norm(a, rows, w); }
    void operator()(const QuantizeArgs& a) const { k.quantize(a, rows, w); }
    void operator()(const AddArgs& a) const { k.add(a, rows, w); }
    void operator()(const SiluMulArgs& a) const { k.silu_mul(a, rows, w); }
    void operator()(const GatherArgs& a) const { k.gather(a, self.step_, w); }
    void operator()(const RopeArgs& a) const { k.rope(a, self.step_, w); }
    void operator()(const KvWriteArgs& a) const { k.kv_write(a, self.step_, w); }
    void operator()(const QkvPrepareArgs& a) const { k.qkv_prepare(a, self.step_, w); }
    void operator()(const AttentionArgs& a) const { k.attention(a, self.step_, w); }
    void operator()(const LinearArgs& a) const { k.linear(a, rows, w); }
    void operator()(const SampleOpArgs& a) const { self.sample_rows(a.logits, 0, rows, input, w); }
    void operator()(const SampleHeadArgs&) const {}  // phases of its own: see walk
  };
  std::visit(Visitor{*this, kernels, input, worker, rows}, record.args);
}

void Executor::head(const SampleHeadArgs& args, const StepInput& input, Worker& worker) {
  LinearArgs slice = args.linear;
  for (int32_t begin = 0; begin < step_.num_outputs; begin += kHeadSlice) {
    slice.row_begin = begin;
    slice.row_end = begin + kHeadSlice < step_.num_outputs ? begin + kHeadSlice : step_.num_outputs;
    pool_.phase(worker, [&] { config_.kernels->linear(slice, slice.row_end - slice.row_begin, worker); });
    pool_.phase(worker, [&] { sample_rows(slice.out, slice.row_begin, slice.row_end, input, worker); });
  }
}

// Logits of output row `begin` are row 0 of `logits`.
void Executor::sample_rows(const View& logits, int32_t begin, int32_t end, const StepInput& input, Worker& worker) {
  const size_t mask_words = (static_cast<size_t>(config_.vocab) + 31) / 32;
  for_units(worker, end - begin, [&](int32_t unit) {
    const int32_t index = begin + unit;
    const Output& output = outputs_[index];
    const float* row = reinterpret_cast<const float*>(logits.data + unit * logits.stride);
    const int32_t mask = input.rows[draws_[index].row].mask;
    const SampleArgs args{row, config_.vocab, mask < 0 ? nullptr : input.masks + mask * mask_words, output.position + 1,
                          output.target};
    sample(args, requests_.live(output.slot), worker.scratch, draws_[index]);
    if (capturing_)
      std::memcpy(capture_.data() + index * size_t(config_.vocab) * sizeof(float), row, config_.vocab * sizeof(float));
  });
}

// A draw counts if the tokens it followed are those that the request now has: if every draft before it was what was drawn
// there. One that failed after a draft does not count either: the next step comes to it again.
void Executor::append_tokens(const StepInput& input) {
  for (int32_t i = 0; i < input.num_rows; ++i)
    if (input.rows[i].num_drafts) requests_.live(input.rows[i].slot).drop_drafts();
  for (int32_t i = 0; i < step_.num_outputs; ++i) {
    Draw& draw = draws_[i];
    if (draw.target >= 0) continue;
    const Output& output = outputs_[i];
    const PlanRow& plan = input.rows[draw.row];
    Resident& request = requests_.live(output.slot);
    const bool is_first = output.position + 1 == plan.start + plan.num_tokens - plan.num_drafts;
    const bool follows = output.position + 1 == request.num_tokens() && request.tokens.back() == token_ids_[output.row];
    if (!follows || (draw.error != DrawError::None && !is_first)) draw.error = DrawError::WrongDraft;
    else if (draw.error == DrawError::None && request.room() == 0) draw.error = DrawError::RequestFull;
    if (draw.error != DrawError::None) draw.token = -1;
    else request.append(draw.token);
  }
}

}  // namespace forno
