// Threads that share the tasks of one operation. Each begins with a share of its own, in order, so that it can fetch what
// it will need next; who is done takes from the end of another's share. Nobody is waited for who has not taken a task, so
// a helper that sleeps, or whose core somebody else uses, costs its help and nothing more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

class Pool {
  public:
    typedef void (*Task)(void* context, int64_t index);

    static Pool& instance();

    // Threads that compute, the caller's included; at most MOST_THREADS.
    void set_threads(int threads);
    int threads() const { return threads_.load(std::memory_order_relaxed); }  // those

    // From now on the caller of `run` adds to *counter after each task that it has done itself: its progress inside a long
    // operation, for a watchdog in another process. Null: nothing is counted outside.
    void count_tasks(uint64_t* counter) { counter_.store(counter ? counter : &uncounted_, std::memory_order_relaxed); }

    // Runs task(context, 0..count-1), each once, in any order, and returns when all are done. While one caller is served
    // another one does its tasks by itself.
    void run(int64_t count, Task task, void* context);

    template <class F>
    void each(int64_t count, const F& f) {
        // A copy, as `f` lies among what the caller writes to while others read it. What it refers to does too: operations of
        // many short tasks capture values.
        struct alignas(APART) Alone {
            F f;
        } alone{f};
        run(count, [](void* context, int64_t index) { static_cast<const Alone*>(context)->f(index); }, &alone);
    }

  private:
    static constexpr int APART = 128;  // bytes between what is written to by different threads: caches fetch lines in pairs

    Pool() = default;
    // A thread's share of the job in hand: tasks that nobody has taken yet, in one word: the last one's index + 1 (upper
    // half), and the first one's. And how many of all tasks this thread has done: one count for all threads would be
    // fetched from another core after every task.
    struct alignas(APART) Share {
        std::atomic<uint64_t> left{0};
        std::atomic<int64_t> done{0};
    };

    static constexpr int MOST_THREADS = 256;

    // One thread writes, so this is a load and a store without a lock.
    void count_one() {
        uint64_t* const counter = counter_.load(std::memory_order_relaxed);
        __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    }

    bool take(int number);                  // runs one task of the job in hand for this thread; false if there is none
    bool take(int number, Share& share);    // of one share
    bool has_task() const;
    bool is_done() const;
    void help(int number);  // a helper's life

    Share shares_[MOST_THREADS];  // of the job in hand, one for each thread
    alignas(APART) int64_t count_ = 0;
    Task task_ = nullptr;
    void* context_ = nullptr;
    alignas(APART) std::atomic<int> sleeping_{0};
    std::atomic<int> threads_{1};  // helpers of this number and above rest
    int started_ = 1;
    uint64_t uncounted_ = 0;
    std::atomic<uint64_t*> counter_{&uncounted_};
    alignas(APART) std::atomic<bool> waits_{false};  // the caller, for the last tasks
    std::mutex caller_, sleep_, end_;
    std::condition_variable awake_, ended_;
};
