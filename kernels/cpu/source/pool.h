// Threads that share the tasks of one operation. Whoever is awake takes the next task; nobody is waited for who has not
// taken one, so a helper that sleeps, or whose core somebody else uses, costs its help and nothing more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

class Pool {
  public:
    typedef void (*Task)(void* context, int64_t index);

    static Pool& instance();

    // Threads that compute, the caller's included.
    void set_threads(int threads);

    // Runs task(context, 0..count-1), each once, in any order, and returns when all are done. While one caller is served
    // another one does its tasks by itself.
    void run(int64_t count, Task task, void* context);

    int threads() const { return threads_.load(std::memory_order_relaxed); }

    template <class F>
    void each(int64_t count, const F& f) {
        run(count, [](void* context, int64_t index) { (*static_cast<const F*>(context))(index); }, (void*)&f);
    }

  private:
    Pool() = default;
    bool take();            // runs one task of the job in hand; false if there is none
    void help(int number);  // a helper's life

    // The job in hand in one word: how many tasks it has (upper half), and how many of them are taken.
    alignas(64) std::atomic<uint64_t> job_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    Task task_ = nullptr;
    void* context_ = nullptr;
    alignas(64) std::atomic<int> sleeping_{0};
    std::atomic<int> threads_{1};  // helpers of this number and above rest
    int started_ = 1;
    alignas(64) std::atomic<bool> waits_{false};  // the caller, for the last tasks
    std::mutex caller_, sleep_, end_;
    std::condition_variable awake_, ended_;
};
