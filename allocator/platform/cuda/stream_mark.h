// SPDX-License-Identifier: Apache-2.0
//
// StreamMark: a moment in a stream, after all work that the stream had been given until then. Other
// streams wait for it on the device; threads poll it or wait on the host; nobody waits for a whole
// device. StreamMarks: makes marks from events without timing, which it reuses, because
// creating an event costs more than recording it.
//
// Threads: any. mutex_ is held for bookkeeping only. Copies of a mark are the same moment and share
// its event. StreamMarks outlives its marks.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "platform/cuda/gpu.h"

namespace tencache {

class StreamMarks;

class StreamMark {
 public:
  StreamMark() = default;  // of no stream, and so reached

  /// Whether the device has done all of the work. An error comes from queued work, whose effects
  /// are unknown then.
  Result<bool> is_reached() const;
  /// Work that the stream is given from now on begins after the mark is reached. Returns at once.
  Status hold_back(CUstream stream) const;
  /// Blocks the calling thread, without spinning, until the mark is reached.
  Status wait() const;
  /// Does what is_reached() does, where errors do not matter. Two refusals in a row mean a broken
  /// context, whose results nobody will see, and count as reached.
  bool poll() const;
  /// Does what wait() does, where errors do not matter. Two refusals in a row end the wait.
  void await() const;

  /// Whether both marks are the same moment, or both are of no stream.
  bool operator==(const StreamMark& other) const = default;

 private:
  static constexpr int kTries = 2;

  struct Event {
    Event(StreamMarks& of_marks, CUevent of_event) : marks(of_marks), event(of_event) {}
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    StreamMarks& marks;
    const CUevent event;
  };

  friend class StreamMarks;
  StreamMark(StreamMarks& marks, CUevent event)
      : event_(std::make_shared<const Event>(marks, event)) {}

  std::shared_ptr<const Event> event_;
};

class StreamMarks {
 public:
  explicit StreamMarks(const Gpu& gpu) : gpu_(gpu) {}
  /// REQUIRES: all marks are gone, unless the driver may no longer be called.
  ~StreamMarks();
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  /// REQUIRES: the stream is not capturing a graph, which would take the event for its own.
  Result<StreamMark> make(CUstream stream) TENCACHE_EXCLUDES(mutex_);

 private:
  friend class StreamMark;
  Result<CUevent> take() TENCACHE_EXCLUDES(mutex_);
  void give_back(CUevent event) TENCACHE_EXCLUDES(mutex_);

  const Gpu& gpu_;
  Mutex mutex_;
  std::vector<CUevent> free_ TENCACHE_GUARDED_BY(mutex_);
  size_t count_ TENCACHE_GUARDED_BY(mutex_) = 0;  // events in use included
};

}  // namespace tencache
