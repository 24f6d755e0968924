#include "isa.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace forno {
namespace {

struct Features {
  bool avx2 = false, avx512 = false;
};

#if defined(__x86_64__)
uint64_t saved_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

Features detect() {
  Features f;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const bool fma = c & bit_FMA, osxsave = c & bit_OSXSAVE, avx = c & bit_AVX, f16c = c & bit_F16C;
  if (!(fma && osxsave && avx && f16c)) return f;
  const uint64_t saved = saved_state();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;  // XMM and YMM; and the opmask, upper ZMM and ZMM16-31 states
  uint32_t b7, c7, d7, a71, b71, c71, d71;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return f;
  if (!__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71)) a71 = 0;
  f.avx2 = (saved & kYmm) == kYmm && (b7 & bit_AVX2) && (b7 & bit_BMI2);
  constexpr uint32_t kBase = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  constexpr uint32_t kBf16 = 1u << 5;
  f.avx512 = f.avx2 && (saved & kZmm) == kZmm && (b7 & kBase) == kBase && (c7 & bit_AVX512VNNI) &&
             (c7 & bit_AVX512VBMI) && (a71 & kBf16);
  return f;
}
#else
Features detect() { return {}; }
#endif

}  // namespace

std::vector<const char*> available_isas() {
  const Features f = detect();
  std::vector<const char*> names;
  if (f.avx512 && kernels_avx512()) names.push_back("avx512");
  if (f.avx2 && kernels_avx2()) names.push_back("avx2");
  names.push_back("portable");
  return names;
}

const KernelTable* kernels_for(const char* name) {
  const std::vector<const char*> names = available_isas();
  if (!*name || !std::strcmp(name, "auto")) name = names.front();
  for (const char* available : names) {
    if (std::strcmp(available, name)) continue;
    if (!std::strcmp(name, "avx512")) return kernels_avx512();
    if (!std::strcmp(name, "avx2")) return kernels_avx2();
    return kernels_portable();
  }
  return nullptr;
}

}  // namespace forno
