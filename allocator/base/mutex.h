// SPDX-License-Identifier: Apache-2.0
//
// Mutex, MutexLock and CondVar with Clang's thread-safety annotations (std::mutex carries none).
// The clang build of CI enforces them with -Werror=thread-safety; for gcc the macros are empty.
//
// Note [Locks]: the order in which locks may be taken, outermost first. No lock is held across a
// copy, an I/O, a blocking system call or a callback into PyTorch, but for the exceptions below.
//   1. Runtime::mutex_            is held while options are used or change, while the cpu backend's
//                                 engine is opened, while a GPU's is added and while the disk or
//                                 the machine is probed. It is an exception: it is held across the
//                                 probes' I/O
//   2. the list of engines        its lock is held from before a fork until after it, also while
//      (engine/engine.cpp)        moves end; it is an exception, too
//      Engine::fork_mutex()       is taken after that one, guards the names of ops, and is held
//                                 while a fork copies the process
//   3. HostSpill::plan_mutex_     guards the pointer to the cursor, and is held while that names
//                                 the extents that are needed last
//   4. PlanCursor::mutex_         guards the place in a plan, and is held while fetches are
//                                 requested (evictions are requested without it)
//   5. Evictor, Prefetcher, Learner::mutex_   guard the work each is asked to do; no two are held
//                                 at once
//   6. CpuHeap, CudaHeap::mutex_  guard lists of extents (cached, live) and address ranges
//   7. DiskTier, HostTier::grow_mutex_   let one thread at a time grow the tier. They are
//                                 exceptions: they are held across fallocate, or while memory is
//                                 mapped, pinned and unpinned
//      DiskTier::sync_mutex_      lets one thread at a time wait for buffered writes. It is an
//                                 exception, too
//   8. DiskTier, HostTier::mutex_ guard slots and channels, or blocks and chunks
//   9. leaf locks                 every other mutex of allocator/, such as those of
//                                 UnannouncedWrites, Flights, Moments, StreamQuarantine, BlockPool,
//                                 FramePool, StreamNumbers and of the list of all StreamNumbers.
//                                 Two are taken with another leaf lock held: CopyPause's in
//                                 DeviceArena's, StreamQuarantine's in PinnedPool's. PinnedPool's
//                                 destructor alone takes HostTier's with its own held
//  10. ProgramUse::mutex_         guards counts of the program's use, and is taken with one leaf
//                                 lock held
//      FreeMarks::mutex_          guards what is known of the frees that the device has come to,
//                                 and is taken with a leaf lock or a heap's held
// The log takes no lock.
//
// Some state needs no lock. An extent's state is one atomic word, its copies below belong to
// whoever holds its `busy` flag (memory/extent.h), and the device tier's budget is a few atomic
// numbers.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TENCACHE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TENCACHE_THREAD_ANNOTATION(x)
#endif

#define TENCACHE_CAPABILITY(x) TENCACHE_THREAD_ANNOTATION(capability(x))
#define TENCACHE_SCOPED_CAPABILITY TENCACHE_THREAD_ANNOTATION(scoped_lockable)
#define TENCACHE_GUARDED_BY(x) TENCACHE_THREAD_ANNOTATION(guarded_by(x))
#define TENCACHE_REQUIRES(...) TENCACHE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TENCACHE_EXCLUDES(...) TENCACHE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define TENCACHE_ACQUIRE(...) TENCACHE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TENCACHE_RELEASE(...) TENCACHE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TENCACHE_TRY_ACQUIRE(...) TENCACHE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define TENCACHE_ACQUIRED_BEFORE(...) TENCACHE_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
#define TENCACHE_NO_THREAD_SAFETY_ANALYSIS TENCACHE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace tencache {

class TENCACHE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() TENCACHE_ACQUIRE() { mutex_.lock(); }
  void unlock() TENCACHE_RELEASE() { mutex_.unlock(); }
  bool try_lock() TENCACHE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class TENCACHE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TENCACHE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() TENCACHE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A condition variable to wait on with a Mutex held. A wait may end for no reason: call it in a
/// loop that tests the condition.
class CondVar {
 public:
  void wait(Mutex& mutex) TENCACHE_REQUIRES(mutex) TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
    // gcc 12 gives condition_variable::wait() a symbol that older versions of libstdc++ lack.
    pthread_cond_wait(condition_.native_handle(), mutex.mutex_.native_handle());
  }
  /// Returns after `timeout` at the latest.
  void wait_for(Mutex& mutex, std::chrono::nanoseconds timeout)
      TENCACHE_REQUIRES(mutex) TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, timeout);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace tencache
