#include "pool.h"

#include <sched.h>

#include <chrono>
#include <thread>

namespace {

// How long a helper polls for work before it sleeps: longer than the gap between two operations of a step, and too short for
// another process to notice.
constexpr auto POLL_TIME = std::chrono::microseconds(60);

// How long a helper computes before it yields its core: a small part of a time slice, and many times the cost of a yield.
constexpr auto YIELD_INTERVAL = std::chrono::microseconds(100);

// How often a caller polls for the end of the last tasks before it sleeps: about a millisecond, many times the length of a
// task, because a wake-up takes longer than polling.
constexpr int MAX_SPINS = 20000;

inline uint64_t share(uint64_t first, uint64_t end) { return end << 32 | first; }
inline int64_t first(uint64_t share) { return share & 0xffffffff; }
inline int64_t end(uint64_t share) { return share >> 32; }

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Pool& Pool::instance() {
    static Pool* pool = new Pool;  // never destroyed: helpers may outlive the end of main
    return *pool;
}

void Pool::set_threads(int threads) {
    std::lock_guard<std::mutex> lock(caller_);
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    for (; started_ < threads; started_++) std::thread([this, number = started_] { help(number); }).detach();
    threads_.store(threads);
}

void Pool::run(int64_t count, Task task, void* context) {
    std::unique_lock<std::mutex> lock(caller_, std::defer_lock);
    if (threads_.load(std::memory_order_relaxed) == 1 || count <= 1 || !lock.try_lock()) {
        for (int64_t index = 0; index < count; index++) {
            task(context, index);
            count_one();
        }
        return;
    }
    const int64_t threads = threads_.load(std::memory_order_relaxed);
    task_ = task;
    context_ = context;
    count_ = count;
    for (int i = 0; i < started_; i++) shares_[i].done.store(0, std::memory_order_relaxed);
    for (int64_t i = 0; i < threads; i++) shares_[i].left.store(share(count * i / threads, count * (i + 1) / threads));
    if (sleeping_.load() > 0) {
        { std::lock_guard<std::mutex> asleep(sleep_); }  // a helper about to sleep either waits already or sees the job
        awake_.notify_all();
    }
    while (take(0)) count_one();
    for (int spins = 0; !is_done(); spins++) {
        relax();
        if (spins < MAX_SPINS) continue;
        // The thread with the last task has lost its core: sleep, so that it can use this one.
        std::unique_lock<std::mutex> lock(end_);
        waits_.store(true);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // either its last count is visible here, or waits_ there
        ended_.wait(lock, [&] { return is_done(); });
        waits_.store(false);
    }
}

bool Pool::take(int number) {
    if (take(number, shares_[number])) return true;
    const int threads = threads_.load(std::memory_order_relaxed);
    for (int other = 1; other < threads; other++)
        if (take(number, shares_[(number + other) % threads])) return true;
    return false;
}

bool Pool::take(int number, Share& share) {
    Share& own = shares_[number];
    const bool is_own = &share == &own;
    uint64_t left = share.left.load(std::memory_order_acquire), rest;
    int64_t index;
    do {
        if (first(left) >= end(left)) return false;
        index = is_own ? first(left) : end(left) - 1;
        rest = is_own ? left + 1 : left - (uint64_t(1) << 32);
    } while (!share.left.compare_exchange_weak(left, rest, std::memory_order_acq_rel));
    // The job cannot end until this task is counted as done, so task_ and context_ belong to it. If a new job with the same
    // remaining tasks replaced the one that was read, the task taken is still valid.
    task_(context_, index);
    own.done.store(own.done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return true;
}

bool Pool::is_done() const {
    int64_t done = 0;
    for (int i = 0; i < started_; i++) done += shares_[i].done.load(std::memory_order_acquire);
    return done == count_;
}

bool Pool::has_task() const {
    for (int i = 0; i < threads_.load(); i++) {
        const uint64_t left = shares_[i].left.load();
        if (first(left) < end(left)) return true;
    }
    return false;
}

// A helper's core may also run the server process, which needs it for a millisecond every step to deliver tokens and would
// otherwise wait for the end of a time slice. So helpers give way: SCHED_BATCH keeps them from preempting others on wake-up,
// and they yield regularly between two tasks.
void Pool::help(int number) {
#if defined(SCHED_BATCH)
    const sched_param none{};
    sched_setscheduler(0, SCHED_BATCH, &none);
#endif
    typedef std::chrono::steady_clock Clock;
    auto since = Clock::now(), last_yield = since;
    for (unsigned spins = 0;; spins++) {
        if (number < threads_.load(std::memory_order_relaxed) && take(number)) {
            do {
                const auto now = Clock::now();
                if (now - last_yield < YIELD_INTERVAL) continue;
                sched_yield();
                last_yield = now;
            } while (take(number));
            std::atomic_thread_fence(std::memory_order_seq_cst);  // as in `run`
            if (waits_.load()) {
                { std::lock_guard<std::mutex> waiting(end_); }
                ended_.notify_one();
            }
            since = Clock::now();
        }
        relax();
        if (spins % 16 || Clock::now() - since < POLL_TIME) continue;
        std::unique_lock<std::mutex> lock(sleep_);
        sleeping_.fetch_add(1);
        awake_.wait(lock, [&] { return number < threads_.load() && has_task(); });
        sleeping_.fetch_sub(1);
        lock.unlock();
        since = Clock::now();
    }
}
