// Thread pool that shares the tasks of one operation. Each thread starts with its own share, in order, so that it can
// prefetch for its next task; an idle thread steals from the end of another share. The caller waits only for threads that
// have taken a task, so a helper that sleeps or has lost its core costs nothing but its help.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

class Pool {
  public:
    typedef void (*Task)(void* context, int64_t index);

    static Pool& instance();

    // Number of computing threads, including the caller's; at most MAX_THREADS.
    void set_threads(int threads);
    int threads() const { return threads_.load(std::memory_order_relaxed); }

    // Make the caller of `run` increment *counter after each task that it has run itself: its progress inside a long
    // operation, for a watchdog in another process. Null disables this.
    void count_progress(uint64_t* counter) { counter_.store(counter ? counter : &uncounted_, std::memory_order_relaxed); }

    // Run task(context, 0..count-1), each once, in any order, and return when all are done. A concurrent second caller runs
    // its tasks on its own thread.
    void run(int64_t count, Task task, void* context);

    template <class F>
    void each(int64_t count, const F& f) {
        // Copy `f` to its own cache line, because the caller writes to the memory around it while other threads read it. The
        // same applies to objects it refers to, so operations with many short tasks capture by value.
        struct alignas(SEPARATION_BYTES) Alone {
            F f;
        } alone{f};
        run(count, [](void* context, int64_t index) { static_cast<const Alone*>(context)->f(index); }, &alone);
    }

  private:
    // Distance between data written by different threads: caches fetch lines in pairs.
    static constexpr int SEPARATION_BYTES = 128;

    Pool() = default;
    // A thread's share of the current job. left: tasks not yet taken, in one word: last index + 1 (upper half) and first
    // index (lower half). done: tasks that this thread has run; a shared count would move between cores after every task.
    struct alignas(SEPARATION_BYTES) Share {
        std::atomic<uint64_t> left{0};
        std::atomic<int64_t> done{0};
    };

    static constexpr int MAX_THREADS = 256;

    // Only one thread writes, so a relaxed load and store suffice.
    void count_one() {
        uint64_t* const counter = counter_.load(std::memory_order_relaxed);
        __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    }

    bool take(int number);                  // run one task of the current job on this thread; false if none is left
    bool take(int number, Share& share);    // likewise, from one share
    bool has_task() const;
    bool is_done() const;
    void help(int number);  // main loop of a helper

    Share shares_[MAX_THREADS];  // of the current job, one per thread
    alignas(SEPARATION_BYTES) int64_t count_ = 0;
    Task task_ = nullptr;
    void* context_ = nullptr;
    alignas(SEPARATION_BYTES) std::atomic<int> sleeping_{0};
    std::atomic<int> threads_{1};  // helpers with this number or higher are idle
    int started_ = 1;
    uint64_t uncounted_ = 0;
    std::atomic<uint64_t*> counter_{&uncounted_};
    alignas(SEPARATION_BYTES) std::atomic<bool> waits_{false};  // whether the caller sleeps until the last tasks are done
    std::mutex caller_, sleep_, end_;
    std::condition_variable awake_, ended_;
};
