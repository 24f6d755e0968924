#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace forno {
namespace {

constexpr int32_t kBlock = 64;  // logits whose maximum is kept, so that later passes skip what cannot matter
constexpr int32_t kLanes = 8;   // of sums and maxima: explicit, so that their order is fixed and they still become SIMD
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;  // temperatures this low differ from greedy only by overflow

int32_t num_blocks(int32_t vocab) { return (vocab + kBlock - 1) / kBlock; }

struct Candidate {
  float logit;
  int32_t id;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

struct Scratch {
  float* adjusted;        // [vocab]
  float* raw_max;         // [blocks]
  float* adjusted_max;    // [blocks]
  float* selected;        // [blocks]
  double* mass;           // [blocks]
  Candidate* candidates;  // [vocab]
};

Scratch carve(char* memory, int32_t vocab) {
  const size_t row = static_cast<size_t>(num_blocks(vocab)) * kBlock, blocks = row / kBlock;
  auto take = [&memory](size_t bytes) {
    char* p = memory;
    memory += (bytes + 63) / 64 * 64;
    return p;
  };
  Scratch s;
  s.adjusted = reinterpret_cast<float*>(take(row * sizeof(float)));
  s.raw_max = reinterpret_cast<float*>(take(blocks * sizeof(float)));
  s.adjusted_max = reinterpret_cast<float*>(take(blocks * sizeof(float)));
  s.selected = reinterpret_cast<float*>(take(blocks * sizeof(float)));
  s.mass = reinterpret_cast<double*>(take(blocks * sizeof(double)));
  s.candidates = reinterpret_cast<Candidate*>(take(row * sizeof(Candidate)));
  return s;
}

// A row of logits with the maximum of each block.
struct Row {
  const float* logits;
  int32_t vocab;
  float* block_max;
  float max = -kInf;
  bool finite = true;  // no NaN and no infinity of either sign

  int32_t blocks() const { return num_blocks(vocab); }
  int32_t begin(int32_t block) const { return block * kBlock; }
  int32_t end(int32_t block) const { return std::min(vocab, (block + 1) * kBlock); }
};

// Maximum of `count` logits; `*check` becomes NaN if one is not finite (infinity minus itself is NaN).
inline float scan_block(const float* x, int32_t count, float* check) {
  float most[kLanes], differences[kLanes] = {};
  for (float& m : most) m = -kInf;
  int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int32_t l = 0; l < kLanes; ++l) {
      most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
      differences[l] += x[i + l] - x[i + l];
    }
  for (int32_t l = 0; i < count; ++i, ++l) {
    most[l] = x[i] > most[l] ? x[i] : most[l];
    differences[l] += x[i] - x[i];
  }
  float result = -kInf;
  for (int32_t l = 0; l < kLanes; ++l) {
    result = std::max(result, most[l]);
    *check += differences[l];
  }
  return result;
}

Row scan(const float* logits, int32_t vocab, float* block_max) {
  Row row{logits, vocab, block_max};
  float check = 0.0f;
  for (int32_t b = 0; b < row.blocks(); ++b) {
    block_max[b] = scan_block(logits + row.begin(b), row.end(b) - row.begin(b), &check);
    row.max = std::max(row.max, block_max[b]);
  }
  row.finite = check == 0.0f;
  return row;
}

// exp(x) for x <= 0, relative error about 1e-7, 0 below -87. Straight-line, so that loops over it become SIMD in the
// baseline instruction set, the same on every machine.
inline float exp_negative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  const uint32_t scale_bits = static_cast<uint32_t>(bits + 127) << 23;  // the low bits of `shifted` are n
  float scale;
  std::memcpy(&scale, &scale_bits, 4);
  return x < -87.0f ? 0.0f : p * scale;
}

inline bool keeps(const Candidate& threshold, float logit, int32_t id) {
  return (logit > threshold.logit) | ((logit == threshold.logit) & (id <= threshold.id));
}

// Sum of exp((logit - max) / temperature) over the kept tokens of one block.
double block_mass(const Row& row, int32_t block, float inverse_temperature, const Candidate& threshold) {
  float lanes[kLanes] = {};
  const int32_t begin = row.begin(block), end = row.end(block);
  int32_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    for (int32_t l = 0; l < kLanes; ++l) {
      const float x = row.logits[i + l];
      const float w = exp_negative((x - row.max) * inverse_temperature);
      lanes[l] += keeps(threshold, x, i + l) ? w : 0.0f;
    }
  for (int32_t l = 0; i < end; ++i, ++l)
    if (keeps(threshold, row.logits[i], i)) lanes[l] += exp_negative((row.logits[i] - row.max) * inverse_temperature);
  double total = 0.0;
  for (float lane : lanes) total += lane;
  return total;
}

constexpr Candidate kKeepAll{-kInf, std::numeric_limits<int32_t>::max()};

double total_mass(const Row& row, float inverse_temperature) {
  double total = 0.0;
  for (int32_t b = 0; b < row.blocks(); ++b) total += block_mass(row, b, inverse_temperature, kKeepAll);
  return total;
}

// Tokens with logit >= bound, in id order.
int32_t gather(const Row& row, float bound, Candidate* out) {
  int32_t count = 0;
  for (int32_t b = 0; b < row.blocks(); ++b) {
    if (row.block_max[b] < bound) continue;
    for (int32_t i = row.begin(b); i < row.end(b); ++i)
      if (row.logits[i] >= bound && row.logits[i] > -kInf) out[count++] = {row.logits[i], i};
  }
  return count;
}

// At least k tokens reach the k-th largest of the blocks' maxima, and usually few more do.
int32_t gather_top(const Row& row, int32_t k, const Scratch& scratch) {
  float bound = -kInf;
  if (k <= row.blocks()) {
    std::copy(row.block_max, row.block_max + row.blocks(), scratch.selected);
    std::nth_element(scratch.selected, scratch.selected + k - 1, scratch.selected + row.blocks(),
                     [](float a, float b) { return a > b; });
    bound = scratch.selected[k - 1];
  }
  const int32_t count = gather(row, bound, scratch.candidates);
  if (count <= k) return count;
  std::nth_element(scratch.candidates, scratch.candidates + k - 1, scratch.candidates + count, before);
  return k;
}

double mass_of(const Candidate* first, const Candidate* last, float max, float inverse_temperature) {
  double total = 0.0;
  for (; first != last; ++first) total += exp_negative((first->logit - max) * inverse_temperature);
  return total;
}

// The last token of the shortest prefix, in the total order, whose mass reaches `need`. Halves with nth_element, so
// it is linear in the number of candidates.
Candidate nucleus_end(Candidate* candidates, int32_t count, double need, float max, float inverse_temperature) {
  Candidate *low = candidates, *high = candidates + count;
  while (high - low > 1) {
    Candidate* middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, before);
    const double mass = mass_of(low, middle, max, inverse_temperature);
    if (mass >= need) {
      high = middle;
    } else {
      need -= mass;
      low = middle;
    }
  }
  return *low;
}

Candidate strictest(const Candidate& a, const Candidate& b) { return before(a, b) ? a : b; }

// The last token that survives top-k, then top-p among those, then min-p.
Candidate find_threshold(const Row& row, const Sampling& sampling, const Scratch& scratch) {
  const float inverse_temperature = 1.0f / sampling.temperature;
  Candidate threshold = kKeepAll;
  int32_t count = -1;  // candidates gathered
  if (sampling.top_k > 0 && sampling.top_k < row.vocab) {
    count = gather_top(row, sampling.top_k, scratch);
    threshold = *std::max_element(scratch.candidates, scratch.candidates + count, before);
  }
  if (sampling.top_p < 1.0) {
    double total;
    if (count >= 0) {
      total = mass_of(scratch.candidates, scratch.candidates + count, row.max, inverse_temperature);
    } else {
      // All tokens lighter than (1 - p) / vocab of the total weigh less than 1 - p together: none is in the nucleus.
      total = total_mass(row, inverse_temperature);
      const double least = (1.0 - sampling.top_p) * total / row.vocab;
      const float bound = row.max + sampling.temperature * static_cast<float>(std::log(least)) - 1e-3f;
      count = gather(row, bound, scratch.candidates);
    }
    const Candidate end =
        nucleus_end(scratch.candidates, count, sampling.top_p * total, row.max, inverse_temperature);
    threshold = strictest(threshold, end);
  }
  if (sampling.min_p > 0.0f) {
    const float least = row.max + sampling.temperature * std::log(sampling.min_p);
    threshold = strictest(threshold, {least, kKeepAll.id});
  }
  return threshold;
}

// Inverse of the cumulative distribution over the kept tokens, in id order.
int32_t draw_token(const Row& row, const Candidate& threshold, float inverse_temperature, double u, double* mass) {
  double total = 0.0;
  for (int32_t b = 0; b < row.blocks(); ++b) {
    mass[b] = row.block_max[b] < threshold.logit ? 0.0 : block_mass(row, b, inverse_temperature, threshold);
    total += mass[b];
  }
  const double target = u * total;
  double sum = 0.0;
  int32_t chosen = -1;
  for (int32_t b = 0; b < row.blocks(); ++b) {
    if (mass[b] == 0.0) continue;
    if (sum + mass[b] <= target) {
      sum += mass[b];
      continue;
    }
    for (int32_t i = row.begin(b); i < row.end(b); ++i) {
      if (!keeps(threshold, row.logits[i], i)) continue;
      const float w = exp_negative((row.logits[i] - row.max) * inverse_temperature);
      if (w == 0.0f) continue;
      chosen = i;
      sum += w;
      if (sum > target) return i;
    }
    return chosen;  // rounding left the target just above the block's own sum
  }
  for (int32_t i = 0; i < row.vocab; ++i)  // rounding left the target at the very end
    if (keeps(threshold, row.logits[i], i) && row.logits[i] - row.max > -87.0f / inverse_temperature) chosen = i;
  return chosen;
}

int32_t best_token(const Row& row) {
  for (int32_t b = 0; b < row.blocks(); ++b)
    if (row.block_max[b] == row.max)
      for (int32_t i = row.begin(b); i < row.end(b); ++i)
        if (row.logits[i] == row.max) return i;
  return -1;
}

bool ends_masked(const SampleArgs& args, const Resident& request) {
  return args.position - request.prompt_tokens < request.sampling.min_tokens;
}

bool must_adjust(const SampleArgs& args, const Resident& request) {
  const Sampling& s = request.sampling;
  return args.mask || !s.bias.empty() || !request.seen.empty() || (ends_masked(args, request) && !s.ends.empty());
}

// Of a token in the prompt or the output, where it was generated so many times.
void penalize(float& x, const Sampling& s, int32_t generated) {
  x = x > 0.0f ? x / s.repetition_penalty : x * s.repetition_penalty;
  if (generated > 0) x -= s.frequency_penalty * static_cast<float>(generated) + s.presence_penalty;
}

// Drafts before the token to draw count as generated; `seen` does not know them yet.
void penalize_all(float* logits, const SampleArgs& args, const Resident& request) {
  const int32_t* end = request.tokens.data() + args.position;
  const int32_t* drafts = request.tokens.data() + request.num_tokens() - request.drafts;
  for (const Occurrence& o : request.seen)
    penalize(logits[o.token], request.sampling, o.generated + int32_t(std::count(drafts, end, o.token)));
  for (const int32_t* t = drafts; t < end; ++t)
    if (request.seen_index[*t] < 0 && std::find(drafts, t, *t) == t)
      penalize(logits[*t], request.sampling, int32_t(std::count(t, end, *t)));
}

// Logit bias, penalties, then the masks of min_tokens and of a constraint.
void adjust(float* logits, const SampleArgs& args, const Resident& request) {
  const Sampling& s = request.sampling;
  for (const auto& [token, bias] : s.bias) logits[token] += bias;
  if (!request.seen.empty()) penalize_all(logits, args, request);
  if (ends_masked(args, request))
    for (int32_t token : s.ends) logits[token] = -kInf;
  if (!args.mask) return;
  for (int32_t i = 0; i < args.vocab; ++i) logits[i] = (args.mask[i >> 5] >> (i & 31)) & 1u ? logits[i] : -kInf;
}

int32_t rank_of(const Row& row, int32_t token) {
  const Candidate self{row.logits[token], token};
  int32_t rank = 1;
  for (int32_t b = 0; b < row.blocks(); ++b) {
    if (row.block_max[b] < self.logit) continue;
    for (int32_t i = row.begin(b); i < row.end(b); ++i) rank += before({row.logits[i], i}, self);
  }
  return rank;
}

// Log-softmax of the raw logits, before temperature and penalties, as OpenAI's and vLLM's APIs report it.
void score(const Row& raw, int32_t wanted, const Scratch& scratch, Draw& draw) {
  const double log_total = raw.max + std::log(total_mass(raw, 1.0f));
  draw.logprob = static_cast<float>(raw.logits[draw.token] - log_total);
  draw.rank = rank_of(raw, draw.token);
  const int32_t top = std::min({wanted, kMaxLogprobs, raw.vocab});
  if (top <= 0) return;
  draw.num_top = gather_top(raw, top, scratch);
  std::sort(scratch.candidates, scratch.candidates + draw.num_top, before);
  for (int32_t i = 0; i < draw.num_top; ++i) {
    draw.top_ids[i] = scratch.candidates[i].id;
    draw.top_logprobs[i] = static_cast<float>(scratch.candidates[i].logit - log_total);
  }
}

int32_t choose(const Row& row, const Sampling& sampling, int32_t position, const Scratch& scratch) {
  if (sampling.temperature < kGreedyBelow) return best_token(row);
  const Candidate threshold = find_threshold(row, sampling, scratch);
  return draw_token(row, threshold, 1.0f / sampling.temperature, uniform(sampling.seed, position), scratch.mass);
}

}  // namespace

double uniform(uint64_t seed, int32_t position) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c[4] = {static_cast<uint32_t>(position), 0, 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(a)};
    std::memcpy(c, next, sizeof(c));
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t(c[0] >> 5) << 26) | (c[1] >> 6);
  return static_cast<double>(bits) * 0x1p-53;
}

size_t sampler_scratch_bytes(int32_t vocab) {
  const size_t row = static_cast<size_t>(num_blocks(vocab)) * kBlock, blocks = row / kBlock;
  return row * (sizeof(float) + sizeof(Candidate)) + blocks * (3 * sizeof(float) + sizeof(double)) + 8 * 64;
}

void sample(const SampleArgs& args, const Resident& request, char* memory, Draw& draw) {
  draw.token = -1;
  draw.error = DrawError::None;
  draw.logprob = std::numeric_limits<float>::quiet_NaN();
  draw.rank = 0;
  draw.num_top = 0;
  const Scratch scratch = carve(memory, args.vocab);
  const Row raw = scan(args.logits, args.vocab, scratch.raw_max);
  if (!raw.finite) {
    draw.error = DrawError::NotFinite;
    return;
  }
  if (args.target >= 0) {
    draw.token = args.target;
    score(raw, request.sampling.prompt_logprobs, scratch, draw);
    return;
  }
  Row row = raw;
  if (must_adjust(args, request)) {
    std::copy(args.logits, args.logits + args.vocab, scratch.adjusted);
    adjust(scratch.adjusted, args, request);
    row = scan(scratch.adjusted, args.vocab, scratch.adjusted_max);
    if (!(std::fabs(row.max) < kInf)) {
      draw.error = row.max == -kInf ? DrawError::NothingAllowed : DrawError::NotFinite;
      return;
    }
  }
  draw.token = choose(row, request.sampling, args.position, scratch);
  if (request.sampling.logprobs >= 0) score(raw, request.sampling.logprobs, scratch, draw);
}

}  // namespace forno
