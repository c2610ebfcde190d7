// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/stream_numbers.h"

#include <bit>
#include <utility>

#include "base/check.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

constexpr uintptr_t kNone = ~uintptr_t{0};  // the handle of no stream
constexpr uint32_t kNoNumber = ~uint32_t{0};
constexpr uint32_t kEnded = uint32_t{1} << 31;  // a flag beside a number; kNoNumber has it, too
constexpr size_t kFirstEntryCount = 256;        // more than PyTorch's pools of streams need
constexpr int kTries = 2;                       // a refusal may be the error of earlier work

bool is_default(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }

uintptr_t key_of(CUstream stream) {
  TENCACHE_CHECK(stream != CU_STREAM_PER_THREAD,
                 "CU_STREAM_PER_THREAD is another stream on each thread");
  return is_default(stream) ? 0 : reinterpret_cast<uintptr_t>(stream);
}

// Handles are addresses: their low bits say little, and neighbours should not collide.
size_t first_entry(uintptr_t key, size_t entry_count) {
  return (key * 0x9E3779B97F4A7C15u >> 32) & (entry_count - 1);
}

/// All objects of the process. An object leaves once no thread tells it of an end.
struct Everywhere {
  Mutex mutex;
  CondVar is_idle;
  std::vector<StreamNumbers*> objects TENCACHE_GUARDED_BY(mutex);
  size_t tellers TENCACHE_GUARDED_BY(mutex) = 0;
};

// The object is never destroyed: streams may be destroyed while the process exits.
Everywhere& everywhere() {
  static auto* const made = new Everywhere;
  return *made;
}

}  // namespace

// ---- The table -----------------------------------------------------------------------------

StreamNumbers::Table::Table(size_t entry_count) : entries(entry_count) {
  for (Entry& entry : entries) entry.key.store(kNone, std::memory_order_relaxed);
}

uint32_t StreamNumbers::Table::find(uintptr_t key) const {
  // The loop ends because at least half of the entries are free.
  for (size_t at = first_entry(key, entries.size());; at = (at + 1) & (entries.size() - 1)) {
    const uintptr_t found = entries[at].key.load(std::memory_order_acquire);
    if (found == key) return entries[at].number.load(std::memory_order_relaxed);
    if (found == kNone) return kNoNumber;
  }
}

// A thread that names a stream has got the handle from the thread that made the stream, and so sees
// what was written before the stream was made. To store a key once more changes nothing.
void StreamNumbers::Table::set(uintptr_t key, uint32_t number) {
  size_t at = first_entry(key, entries.size());
  const auto is_taken = [&](uintptr_t found) { return found != kNone && found != key; };
  while (is_taken(entries[at].key.load(std::memory_order_relaxed)))
    at = (at + 1) & (entries.size() - 1);
  entries[at].number.store(number, std::memory_order_relaxed);
  entries[at].key.store(key, std::memory_order_release);
}

StreamNumbers::StreamNumbers(const Gpu& gpu, StreamMarks& marks) : gpu_(gpu), marks_(marks) {
  {
    MutexLock lock(mutex_);
    tables_.push_back(std::make_unique<Table>(kFirstEntryCount));
    table_.store(tables_.back().get(), std::memory_order_release);
  }
  MutexLock lock(everywhere().mutex);
  everywhere().objects.push_back(this);
}

StreamNumbers::~StreamNumbers() {
  Everywhere& all = everywhere();
  MutexLock lock(all.mutex);
  std::erase(all.objects, this);
  while (all.tellers > 0) all.is_idle.wait(all.mutex);
}

StreamSet StreamNumbers::set_of(CUstream stream) {
  const uintptr_t key = key_of(stream);
  const uint32_t number = table_.load(std::memory_order_acquire)->find(key);
  if (number < kEnded) [[likely]] {
    return set_of_number(number);
  }
  return set_of_slow(stream, key);
}

StreamSet StreamNumbers::find_set_of(CUstream stream) const {
  const uint32_t number = table_.load(std::memory_order_acquire)->find(key_of(stream));
  return number < kEnded ? set_of_number(number) : kNoStreams;
}

TENCACHE_SLOW StreamSet StreamNumbers::set_of_slow(CUstream stream, uintptr_t key) {
  uint32_t present = kNoNumber;
  {
    MutexLock lock(mutex_);
    present = tables_.back()->find(key);
    if (present == kNoNumber) return add(stream, key);
  }
  if (present < kEnded) return set_of_number(present);  // another thread was first
  return take_over(stream, key, present & ~kEnded);
}

StreamSet StreamNumbers::add(CUstream stream, uintptr_t key) {
  const auto number = static_cast<uint32_t>(streams_.size());
  streams_.push_back({.handle = is_default(stream) ? nullptr : stream});
  if (2 * streams_.size() <= tables_.back()->entries.size()) {
    tables_.back()->set(key, number);
    return set_of_number(number);
  }
  auto larger = std::make_unique<Table>(2 * tables_.back()->entries.size());
  for (uint32_t other = 0; other <= number; ++other) {
    const Stream& known = streams_[other];
    larger->set(key_of(known.handle), known.has_ended ? other | kEnded : other);
  }
  table_.store(larger.get(), std::memory_order_release);
  tables_.push_back(std::move(larger));
  return set_of_number(number);
}

CUstream StreamNumbers::stream_of(StreamSet set) const {
  if (!is_one_stream(set)) return nullptr;
  const auto number = static_cast<size_t>(std::countr_zero(set));
  MutexLock lock(mutex_);
  return number < streams_.size() ? streams_[number].handle : nullptr;
}

// ---- The ends of streams -------------------------------------------------------------------

/// The streams of a set. While this object lives, end() does not return for those of them that
/// exist, so their handles stay valid. Of those that have ended, the object keeps the last marks,
/// because their work may still be running.
class StreamNumbers::InUse {
 public:
  struct Ended {
    uint32_t number = 0;
    StreamMark last;
  };

  InUse(StreamNumbers& numbers, StreamSet set) : numbers_(numbers) {
    MutexLock lock(numbers_.mutex_);
    std::vector<Stream>& streams = numbers_.streams_;
    // All numbers from 63 on share bit 63.
    for (auto number = static_cast<uint32_t>(std::countr_zero(set)); number < streams.size();
         ++number) {
      if ((set & set_of_number(number)) != 0) take(number, streams[number]);
      if (is_one_stream(set)) break;
    }
  }
  ~InUse() {
    MutexLock lock(numbers_.mutex_);
    for (const uint32_t number : taken_) --numbers_.streams_[number].users;
    if (!taken_.empty()) numbers_.is_unused_.notify_all();
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  const std::vector<CUstream>& handles() const { return handles_; }
  const std::vector<Ended>& ended() const { return ended_; }

 private:
  void take(uint32_t number, Stream& stream) {
    if (!stream.has_ended) {
      ++stream.users;
      taken_.push_back(number);
      handles_.push_back(stream.handle);
    } else if (stream.last != StreamMark()) {
      ended_.push_back({number, stream.last});
    }
  }

  StreamNumbers& numbers_;
  std::vector<uint32_t> taken_;
  std::vector<CUstream> handles_;
  std::vector<Ended> ended_;
};

void StreamNumbers::end_everywhere(CUstream stream) {
  if (!may_call_driver()) return;
  Everywhere& all = everywhere();
  std::vector<StreamNumbers*> told;
  {
    MutexLock lock(all.mutex);
    told = all.objects;
    ++all.tellers;
  }
  for (StreamNumbers* numbers : told) numbers->end(stream);
  MutexLock lock(all.mutex);
  --all.tellers;
  all.is_idle.notify_all();
}

void StreamNumbers::end(CUstream stream) {
  if (is_default(stream) || stream == CU_STREAM_PER_THREAD) return;  // nobody can destroy it
  const uintptr_t key = key_of(stream);
  const uint32_t number = table_.load(std::memory_order_acquire)->find(key);
  if (number >= kEnded) return;
  StreamMark last = last_mark(stream);
  MutexLock lock(mutex_);
  tables_.back()->set(key, number | kEnded);
  streams_[number].has_ended = true;
  streams_[number].last = std::move(last);
  while (streams_[number].users > 0) is_unused_.wait(mutex_);
}

// Returns an empty mark, which counts as reached, where none can be made: in a broken context,
// whose results nobody will see, and for a stream that captures, because the capture would take the
// event for its own. So the work that such a stream got before its capture counts as done, though
// nobody knows that.
StreamMark StreamNumbers::last_mark(CUstream stream) const {
  const CallScope scope(gpu_.driver(), gpu_.context());
  for (int tries = 0; tries < kTries && scope.status().is_ok(); ++tries) {
    if (expect_no_capture(std::span(&stream, 1)).code() == StatusCode::kUnavailable) break;
    Result<StreamMark> mark = marks_.make(stream);
    if (mark.is_ok()) return std::move(mark).value();
  }
  return {};
}

StreamSet StreamNumbers::take_over(CUstream stream, uintptr_t key, uint32_t number) {
  StreamMark last;
  {
    MutexLock lock(mutex_);
    last = streams_[number].last;
  }
  let_follow(stream, last);
  MutexLock lock(mutex_);
  if (streams_[number].has_ended) {  // else another thread was first
    streams_[number].has_ended = false;
    streams_[number].last = {};
    tables_.back()->set(key, number);
  }
  return set_of_number(number);
}

// Makes the stream follow the mark: the device waits where it can, else this thread.
void StreamNumbers::let_follow(CUstream stream, const StreamMark& last) const {
  if (last.poll()) return;
  {
    const CallScope scope(gpu_.driver(), gpu_.context());
    if (scope.status().is_ok() && expect_no_capture(std::span(&stream, 1)).is_ok() &&
        last.hold_back(stream).is_ok()) {
      return;
    }
  }
  last.await();
}

// Gives up a last mark that is reached, so that its event may serve others.
void StreamNumbers::forget_reached(uint32_t number, const StreamMark& last) {
  StreamMark forgotten;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (streams_[number].last == last) std::swap(forgotten, streams_[number].last);
}

// ---- Calls of the driver -------------------------------------------------------------------

// The default stream cannot be captured, so it costs no call. Besides, the driver would look up its
// handle in the thread's context, which may be another GPU's.
bool StreamNumbers::is_capturing(CUstream stream) const {
  if (is_default(stream)) return false;
  return expect_no_capture(std::span(&stream, 1)).code() == StatusCode::kUnavailable;
}

std::optional<CUstreamCaptureMode> StreamNumbers::exchange_capture_mode(
    CUstreamCaptureMode mode) const {
  if (!may_call_driver()) return std::nullopt;
  if (gpu_.driver().cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return std::nullopt;
  return mode;
}

Status StreamNumbers::expect_no_capture(std::span<const CUstream> streams) const {
  const DriverApi& driver = gpu_.driver();
  for (const CUstream stream : streams) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver.cuStreamIsCapturing(stream, &status);
    // The NULL stream answers so while another stream, which waits for it, is capturing.
    const bool is_implicit = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!is_implicit) {
      TENCACHE_RETURN_IF_ERROR(
          cuda_status(driver, result, "Cannot ask whether a stream is capturing a graph"));
    }
    if (is_implicit || status != CU_STREAM_CAPTURE_STATUS_NONE) {
      return {StatusCode::kUnavailable,
              "A stream is capturing a CUDA graph, so its work cannot be waited for."};
    }
  }
  return Status::ok();
}

Status StreamNumbers::mark_all(StreamSet set, std::vector<StreamMark>* marks) {
  if (set == kNoStreams) return Status::ok();
  const InUse streams(*this, set);
  std::vector<StreamMark> made;
  if (!streams.handles().empty()) {
    const CallScope scope(gpu_.driver(), gpu_.context());
    TENCACHE_RETURN_IF_ERROR(scope.status());
    TENCACHE_RETURN_IF_ERROR(expect_no_capture(streams.handles()));
    for (const CUstream stream : streams.handles()) {
      Result<StreamMark> mark = marks_.make(stream);
      if (!mark.is_ok()) return mark.status();
      made.push_back(std::move(mark).value());
    }
    // A stream that began to capture meanwhile has taken the event for its own. Its mark is worth
    // nothing, and a stream that waited for it would join the capture.
    TENCACHE_RETURN_IF_ERROR(expect_no_capture(streams.handles()));
  }
  for (const InUse::Ended& ended : streams.ended()) {
    if (ended.last.poll()) {
      forget_reached(ended.number, ended.last);
    } else {
      made.push_back(ended.last);
    }
  }
  for (StreamMark& mark : made) marks->push_back(std::move(mark));
  return Status::ok();
}

Status StreamNumbers::hold_back(StreamSet stream, std::span<const StreamMark> marks) {
  TENCACHE_CHECK(is_one_stream(stream), "%#lx is not one stream", stream);
  if (marks.empty()) return Status::ok();
  const InUse streams(*this, stream);
  if (streams.handles().empty()) {
    return {StatusCode::kUnavailable, "The stream was destroyed, so it cannot be held back."};
  }
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(expect_no_capture(streams.handles()));
  for (const StreamMark& mark : marks) {
    TENCACHE_RETURN_IF_ERROR(mark.hold_back(streams.handles().front()));
  }
  return Status::ok();
}

bool StreamNumbers::record(CUevent event, StreamSet stream) {
  if (!is_one_stream(stream)) return false;
  const InUse streams(*this, stream);
  if (streams.handles().empty()) return false;
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  return scope.status().is_ok() && expect_no_capture(streams.handles()).is_ok() &&
         driver.cuEventRecord(event, streams.handles().front()) == CUDA_SUCCESS;
}

}  // namespace tencache
