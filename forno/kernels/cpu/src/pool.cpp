#include "pool.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <stdexcept>
#include <string>

#include "clock.hpp"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace forno {
namespace {

constexpr int kYields = 8;
constexpr int kPausesPerClock = 64;  // reading the clock costs as much as a pause or two

inline void pause() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

void futex(void* word, int operation, uint32_t value) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Returns once over() is true: how long it slept. `word` changes from `seen` when that happens, and whoever changes it then
// wakes sleepers.
template <class F>
int64_t wait_until(F&& over, void* word, uint32_t seen, std::atomic<int32_t>& sleepers, int64_t spin_ns) {
  if (over()) return 0;
  if (spin_ns > 0) {
    const int64_t deadline = now_ns() + spin_ns;
    do {
      for (int i = 0; i < kPausesPerClock; ++i) {
        pause();
        if (over()) return 0;
      }
    } while (now_ns() < deadline);
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (over()) return 0;
  }
  const int64_t asleep = now_ns();
  // Sequentially consistent on both sides: either the waker sees this sleeper, or this thread sees the new value.
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (!over()) futex(word, FUTEX_WAIT, seen);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return now_ns() - asleep;
}

void wake(void* word, const std::atomic<int32_t>& sleepers) {
  if (sleepers.load(std::memory_order_seq_cst) > 0) futex(word, FUTEX_WAKE, INT_MAX);
}

uint64_t float_mode() {
#if defined(__SSE2__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void set_float_mode(uint64_t mode) {
#if defined(__SSE2__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(mode));
#else
  (void)mode;
#endif
}

#if defined(__SSE2__)
constexpr uint64_t kFlushBits = 0x8040;  // MXCSR: flush to zero, denormals are zero
#elif defined(__aarch64__)
constexpr uint64_t kFlushBits = uint64_t(1) << 24;  // FPCR.FZ
#else
constexpr uint64_t kFlushBits = 0;
#endif

}  // namespace

FlushDenormals::FlushDenormals() : saved_(float_mode()) { set_float_mode(saved_ | kFlushBits); }
FlushDenormals::~FlushDenormals() { set_float_mode(saved_); }
bool FlushDenormals::active() { return (float_mode() & kFlushBits) == kFlushBits; }

void Gate::advance() {
  value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  wake(&value_, sleepers_);
}

void Gate::wait_past(uint32_t seen, int64_t spin_ns) {
  auto over = [&] { return value_.load(std::memory_order_seq_cst) != seen; };
  wait_until(over, &value_, seen, sleepers_, spin_ns);
}

Pool::Pool(int32_t workers, int32_t spin_us, size_t scratch_bytes)
    : size_(workers), spin_ns_(int64_t(spin_us) * 1000), owner_(getpid()) {
  if (workers < 1 || workers > 1024) throw std::invalid_argument("a pool has 1 to 1024 workers");
  const size_t each = (scratch_bytes < kScratchBytes ? kScratchBytes : scratch_bytes + 4095) / 4096 * 4096;
  scratch_ = Arena(each * workers);
  tickets_ = Arena(size_t(2) * workers * kTicketStride * sizeof(int32_t));
  seats_.resize(workers);
  for (int32_t i = 0; i < workers; ++i)
    seats_[i] = Seat{this, Worker{i, workers, scratch_.data() + each * i, each, nullptr}, pthread_t{}, 0};
  start_threads();
}

void Pool::start_threads() {
  // Signals are for the thread that runs Python. Faults stay deliverable, so that a crash is reported where it happens.
  sigset_t all, before;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  for (int32_t i = 1; i < size_ && error == 0; ++i) {
    error = pthread_create(&seats_[i].thread, nullptr, thread_main, &seats_[i]);
    started_ += error == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) return;
  stop_threads();
  throw std::runtime_error("cannot start " + std::to_string(size_) + " compute threads; use fewer (--threads)");
}

void Pool::stop_threads() {
  stop_ = true;
  start_.advance();
  for (int32_t i = 1; i <= started_; ++i) pthread_join(seats_[i].thread, nullptr);
}

Pool::~Pool() {
  if (getpid() == owner_) stop_threads();  // a forked child has no threads to stop
}

void* Pool::thread_main(void* seat) {
  Worker& worker = static_cast<Seat*>(seat)->worker;
  Pool& pool = *static_cast<Seat*>(seat)->pool;
  pthread_setname_np(pthread_self(), "forno-worker");  // as tools for people show it
  FlushDenormals flush;
  for (uint32_t seen = 0;; ++seen) {
    pool.start_.wait_past(seen, pool.spin_ns_);
    if (pool.stop_) return nullptr;
    pool.body_(pool.context_, worker);
    pool.barrier();
  }
}

void Pool::run_erased(Body body, void* context) {
  if (getpid() != owner_)
    throw std::runtime_error("the compute threads did not survive fork(); create the runner in the child process");
  FlushDenormals flush;
  body_ = body;
  context_ = context;
  if (size_ > 1) start_.advance();
  body(context, seats_[0].worker);
  barrier();
}

void Pool::barrier() {
  if (size_ == 1) return;
  const uint32_t seen = done_.value();  // cannot advance before this worker has arrived
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    done_.advance();
  } else {
    done_.wait_past(seen, spin_ns_);
  }
}

int32_t* Pool::tickets(uint32_t phase) const {
  return reinterpret_cast<int32_t*>(tickets_.data()) + (phase & 1) * size_ * kTicketStride;
}

bool Pool::enter(Worker& worker) {
  const uint32_t mine = seats_[worker.id].phase++;
  uint64_t now = phase_.load(std::memory_order_acquire);
  while (uint32_t(now >> 32) == mine)
    if (phase_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      worker.ticket = tickets(mine);
      return true;
    }
  return false;  // it ended without this worker
}

void Pool::leave(Worker& worker) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the number is the upper half of phase_");
  const uint32_t mine = seats_[worker.id].phase - 1;
  uint32_t* number = reinterpret_cast<uint32_t*>(&phase_) + 1;
  uint64_t now = phase_.load(std::memory_order_relaxed);
  for (;;) {
    const bool last = uint32_t(now) == 1;
    if (last)  // nobody has used these since the phase before; should another worker come in now, it zeroes them again
      for (int32_t i = 0; i < size_; ++i) __atomic_store_n(tickets(mine + 1) + i * kTicketStride, 0, __ATOMIC_RELAXED);
    const uint64_t next = last ? uint64_t(mine + 1) << 32 : now - 1;
    if (!phase_.compare_exchange_weak(now, next, std::memory_order_seq_cst, std::memory_order_relaxed)) continue;
    if (last) return wake(number, phase_sleepers_);
    break;
  }
  auto over = [&] { return uint32_t(phase_.load(std::memory_order_seq_cst) >> 32) != mine; };
  worker.slept_ns += wait_until(over, number, mine, phase_sleepers_, spin_ns_);
}

}  // namespace forno
