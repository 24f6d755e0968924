// From a block table to pages the micro-kernels can read: finding them, widening types the instruction set cannot
// multiply, and hiding non-finite values that belong to masked tokens.
#pragma once
#include "attention_query.hpp"

namespace forno {
namespace {
namespace attention {

FORNO_INLINE char* page_of(const KvCache& cache, const int32_t* blocks, int32_t position, int32_t kv_head) {
  int32_t block = position / kPage, page = 0;
  if (cache.block_size != kPage) block = position / cache.block_size, page = position % cache.block_size / kPage;
  return cache.base + blocks[block] * cache.block_stride + kv_head * cache.head_stride + page * cache.page_stride;
}

#if defined(FORNO_AVX512)
struct Bf16OfInt { alignas(64) uint8_t low[128], high[128]; };

// The two bytes of each of 0 .. 127 as bf16 (exact: seven bits of magnitude fit the significand).
constexpr Bf16OfInt make_bf16_of_int() {
  Bf16OfInt t{};
  for (int n = 1; n < 128; ++n) {
    int log = 0;
    while (n >> (log + 1)) ++log;
    const int bits = (127 + log) << 7 | ((n << (7 - log)) & 0x7f);
    t.low[n] = uint8_t(bits & 0xff);
    t.high[n] = uint8_t(bits >> 8);
  }
  return t;
}
constexpr Bf16OfInt kBf16OfInt = make_bf16_of_int();

// [count][length][4] bytes -> [2 * count][length][2] bf16. Fetches what lies at `next` meanwhile.
inline void unpack_bytes(const char* in, int count, int length, char* out, const char* next) {
  const __m512i low0 = _mm512_load_si512(kBf16OfInt.low), low1 = _mm512_load_si512(kBf16OfInt.low + 64);
  const __m512i high0 = _mm512_load_si512(kBf16OfInt.high), high1 = _mm512_load_si512(kBf16OfInt.high + 64);
  const __m512i sign = _mm512_set1_epi8(char(0x80));
  for (int i = 0; i < count; ++i, out += length * 8) {
    for (int j = 0; j < length; j += kLanes, in += 64, next += 64) {
      __builtin_prefetch(next);
      const __m512i x = _mm512_loadu_si512(in), magnitude = _mm512_abs_epi8(x);
      const __m512i low = _mm512_permutex2var_epi8(low0, magnitude, low1);
      __m512i high = _mm512_permutex2var_epi8(high0, magnitude, high1);
      high = _mm512_ternarylogic_epi32(high, x, sign, 0xF8);  // high | (x & sign)
      const __m512 a = (__m512)_mm512_unpacklo_epi8(low, high), b = (__m512)_mm512_unpackhi_epi8(low, high);
      _mm512_storeu_ps(out + j * 4, _mm512_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
      _mm512_storeu_ps(out + (length + j) * 4, _mm512_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    }
  }
}
#else
// [count][length][2] bf16 -> [2 * count][length] fp32.
inline void unpack_pairs(const char* in, int count, int length, char* out_bytes) {
  float* out = reinterpret_cast<float*>(out_bytes);
  for (int i = 0; i < count; ++i, out += 2 * length)
    for (int j = 0; j < length; j += kLanes, in += kLanes * 4) {
      const vi b = vload_words(in);
      vstore(out + j, vlow_bf16(b));
      vstore(out + length + j, vhigh_bf16(b));
    }
}

// [count][length][4] bytes -> [4 * count][length] fp32: the bits of `flip` in each byte flipped, then times what
// scale(row, column) holds for a vector of columns.
template <class F>
FORNO_INLINE void unpack_bytes(const char* in, int count, int length, uint8_t flip, F scale, char* out_bytes) {
  float* out = reinterpret_cast<float*>(out_bytes);
  for (int i = 0; i < count; ++i, out += 4 * length)
    for (int j = 0; j < length; j += kLanes, in += kLanes * 4) {
      const vi b = vload_words(in);
      for (int k = 0; k < 4; ++k) {
        const vi flipped = b ^ vset_words(int32_t(0x01010101u * flip));
        vstore(out + k * length + j, vfloat((flipped << (24 - 8 * k)) >> 24) * scale(4 * i + k, j));
      }
    }
}
#endif

using attention_plan::SegmentWalk;

struct PageRange { int first, last; };

// The pages of a segment that some row of its stretch sees. (Of a shared prefix all rows see all.)
FORNO_INLINE PageRange pages_seen(const SegmentWalk& at, int32_t group, int32_t window) {
  const int32_t begin = at.index * kSegment, first = at.s.span->start + at.s.token;
  const int32_t lowest = window > 0 && first + 1 > window ? first + 1 - window - begin : 0;
  const int32_t end = first + at.s.rows / group - begin;
  return {lowest > 0 ? lowest / kPage : 0, end < kSegment ? (end + kPage - 1) / kPage : kSegmentPages};
}

// The halves (K or V) of pages in the order in which a worker reads them, from a segment of a unit into what follows.
struct HalfPages {
  static constexpr int kAhead = 4;  // the distance of prefetches, in halves: far enough to hide memory's latency
  static constexpr int kMost = 2 * kSegmentPages + kAhead;
  const char* at[kMost];
  int count = 0;
  bool values_first = false;        // they are unpacked before K is read

  FORNO_INLINE void add(const KvCache& cache, const SegmentWalk& walk, PageRange pages, int32_t kv_head) {
    for (int half = 0; half < 2; ++half) {
      const int64_t offset = (half == 0) == values_first ? cache.v_offset : 0;
      for (int i = pages.first; i < pages.last && count < kMost; ++i)
        at[count++] = page_of(cache, walk.s.span->blocks, walk.index * kSegment + i * kPage, kv_head) + offset;
    }
  }
};

// The halves of the segment `at` and of those after it, into the worker's next unit.
inline HalfPages halves_from(const Job& job, SegmentWalk at, PageRange pages) {
  const KvCache& cache = job.args.cache;
  HalfPages halves;
  halves.values_first = kNative && cache.dtype == KvDType::INT8;
  halves.add(cache, at, pages, job.unit.kv_head);
  const int wanted = halves.count + HalfPages::kAhead;
  const Unit* unit = &job.unit;
  while (halves.count < wanted) {
    if (at.next()) {
      halves.add(cache, at, pages_seen(at, job.group, job.args.window), unit->kv_head);
    } else if (unit == &job.unit && job.next != nullptr) {
      unit = job.next;
      at = SegmentWalk{{&unit->tile, job.group, unit->part}};
    } else {
      halves.at[halves.count] = halves.at[halves.count - 1];
      ++halves.count;
    }
  }
  return halves;
}

// The pages of a segment; widened copies go to job.pages, which holds kSegment * (kp + vp) floats.
inline Pages find_pages(const Job& job, const SegmentWalk& at) {
  const KvCache& cache = job.args.cache;
  const PageRange seen = pages_seen(at, job.group, job.args.window);
  const HalfPages halves = halves_from(job, at, seen);
  const int count = seen.last - seen.first;
  const char *const *here = halves.at, *const *ahead = here + HalfPages::kAhead;
  Pages pages{};
  pages.first = seen.first;
  pages.last = seen.last;
  for (int i = seen.first; i < seen.last; ++i, ++here, ++ahead) {
    const char* page = *here - (halves.values_first ? cache.v_offset : 0);
    pages.k[i] = page;
    pages.v[i] = page + cache.v_offset;
    pages.during_scores[i] = ahead[0];
    pages.during_sums[i] = ahead[count];
    if (cache.dtype == KvDType::F32 || (cache.dtype == KvDType::BF16 && kNative)) continue;
    char* k = job.pages + int64_t(i) * kPage * (job.kp + job.vp) * 4;
    char* v = k + int64_t(kPage) * job.kp * 4;
    if (cache.dtype == KvDType::INT8) {
      pages.k_scale[i] = reinterpret_cast<const uint16_t*>(page + cache.k_scale_offset);
      pages.v_scale[i] = reinterpret_cast<const uint16_t*>(page + cache.v_scale_offset);
    }
#if defined(FORNO_AVX512)
    unpack_bytes(pages.v[i], kPage / 4, job.vp, v, ahead[0]);
    pages.during_scores[i] = ahead[count];
#else
    if (cache.dtype == KvDType::INT8) {
      const uint16_t *k_scale = pages.k_scale[i], *v_scale = pages.v_scale[i];
      auto of_keys = [=](int d, int t) { return vload_bf16(k_scale + d / kKvGroup * kPage + t); };
      auto of_values = [=](int t, int d) { return vlow_bf16(vset_words(v_scale[d / kKvGroup * kPage + t])); };
      unpack_bytes(pages.k[i], job.kp / 4, kPage, 0x80, of_keys, k);
      unpack_bytes(pages.v[i], kPage / 4, job.vp, 0, of_values, v);
    } else {
      unpack_pairs(pages.k[i], job.kp / 2, kPage, k);
      unpack_pairs(pages.v[i], kPage / 2, job.vp, v);
    }
    pages.k[i] = k;
    pages.during_scores[i] = v;
#endif
    pages.v[i] = pages.during_sums[i] = v;
  }
  return pages;
}

// Whether some value of V in the pages [first, last) is infinite or NaN. A masked token has weight 0, but 0 times such a value is NaN: a block
// may hold what an earlier owner, or a later token of this request, left there.
template <KvDType kType>
bool has_non_finite(const Pages& pages, int first, int last, int vp) {
  const vi upper = vset_words(0x7f800000), lower = vset_words(0x7f80);
  vi found{};
  for (int page = first; page < last; ++page) {
    const int bytes = kPage * vp * (kPairs<kType> ? 2 : 4);
    for (int at = 0; at < bytes; at += kLanes * 4) {
      const vi b = vload_words(pages.v[page] + at);
      found |= (b & upper) == upper;
      if (kPairs<kType>) found |= (b & lower) == lower;
    }
  }
  return vmax_lane(found & 1) != 0;
}

// V with the tokens outside [lo, hi) set to zero, in `buffer` (kSegment * vp floats).
template <KvDType kType>
Pages without_masked_tokens(const Pages& pages, int vp, int lo, int hi, char* buffer) {
  Pages clean = pages;
  const int64_t bytes = int64_t(kPage) * vp * (kPairs<kType> ? 2 : 4);
  for (int page = pages.first; page < pages.last; ++page) {
    char* v = buffer + page * bytes;
    __builtin_memcpy(v, pages.v[page], size_t(bytes));
    for (int t = 0; t < kPage; ++t) {
      const int token = page * kPage + t;
      if (token >= lo && token < hi) continue;
      if (!kPairs<kType>) __builtin_memset(v + int64_t(t) * vp * 4, 0, size_t(vp) * 4);
      else for (int c = 0; c < vp; ++c) __builtin_memset(v + ((t / 2) * vp + c) * 4 + (t & 1) * 2, 0, 2);
    }
    clean.v[page] = v;
  }
  return clean;
}

}  // namespace attention
}  // namespace
}  // namespace forno
