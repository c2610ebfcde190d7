// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/stream_numbers.h"

#include <utility>

#include "base/check.h"
#include "platform/cuda/call_scope.h"

namespace tencache {
namespace {

constexpr uintptr_t kNone = ~uintptr_t{0};  // the handle of no stream
constexpr uint32_t kNoNumber = ~uint32_t{0};
constexpr size_t kFirstEntryCount = 256;  // more than PyTorch's pools of streams need

uintptr_t key_of(CUstream stream) {
  TENCACHE_CHECK(stream != CU_STREAM_PER_THREAD,
                 "CU_STREAM_PER_THREAD is another stream on each thread");
  return stream == CU_STREAM_LEGACY ? 0 : reinterpret_cast<uintptr_t>(stream);
}

// Handles are addresses: their low bits say little, and neighbours should not collide.
size_t first_entry(uintptr_t key, size_t entry_count) {
  return (key * 0x9E3779B97F4A7C15u >> 32) & (entry_count - 1);
}

}  // namespace

StreamNumbers::Table::Table(size_t entry_count) : entries(entry_count) {
  for (Entry& entry : entries) entry.key.store(kNone, std::memory_order_relaxed);
}

uint32_t StreamNumbers::Table::find(uintptr_t key) const {
  // The loop ends because at least half of the entries are free.
  for (size_t at = first_entry(key, entries.size());; at = (at + 1) & (entries.size() - 1)) {
    const uintptr_t found = entries[at].key.load(std::memory_order_acquire);
    if (found == key) return entries[at].number;
    if (found == kNone) return kNoNumber;
  }
}

void StreamNumbers::Table::add(uintptr_t key, uint32_t number) {
  size_t at = first_entry(key, entries.size());
  while (entries[at].key.load(std::memory_order_relaxed) != kNone)
    at = (at + 1) & (entries.size() - 1);
  entries[at].number = number;
  entries[at].key.store(key, std::memory_order_release);
}

StreamNumbers::StreamNumbers(const Gpu& gpu, StreamMarks& marks) : gpu_(gpu), marks_(marks) {
  MutexLock lock(mutex_);
  tables_.push_back(std::make_unique<Table>(kFirstEntryCount));
  table_.store(tables_.back().get(), std::memory_order_release);
}

StreamSet StreamNumbers::set_of(CUstream stream) {
  const uintptr_t key = key_of(stream);
  const uint32_t number = table_.load(std::memory_order_acquire)->find(key);
  if (number != kNoNumber) [[likely]] {
    return set_of_number(number);
  }
  return add_slow(stream, key);
}

StreamSet StreamNumbers::find_set_of(CUstream stream) const {
  const uint32_t number = table_.load(std::memory_order_acquire)->find(key_of(stream));
  return number != kNoNumber ? set_of_number(number) : kNoStreams;
}

TENCACHE_SLOW StreamSet StreamNumbers::add_slow(CUstream stream, uintptr_t key) {
  MutexLock lock(mutex_);
  // Another thread may have been first.
  const uint32_t present = tables_.back()->find(key);
  if (present != kNoNumber) return set_of_number(present);
  const auto number = static_cast<uint32_t>(streams_.size());
  streams_.push_back(stream == CU_STREAM_LEGACY ? nullptr : stream);
  if (2 * streams_.size() <= tables_.back()->entries.size()) {
    tables_.back()->add(key, number);
    return set_of_number(number);
  }
  auto larger = std::make_unique<Table>(2 * tables_.back()->entries.size());
  for (uint32_t other = 0; other <= number; ++other) larger->add(key_of(streams_[other]), other);
  table_.store(larger.get(), std::memory_order_release);
  tables_.push_back(std::move(larger));
  return set_of_number(number);
}

std::vector<CUstream> StreamNumbers::streams_of(StreamSet set) const {
  std::vector<CUstream> streams;
  MutexLock lock(mutex_);
  for (uint32_t number = 0; number < streams_.size(); ++number) {
    if ((set & set_of_number(number)) != 0) streams.push_back(streams_[number]);
  }
  return streams;
}

CUstream StreamNumbers::stream_of(StreamSet set) const {
  if (!is_one_stream(set)) return nullptr;
  const std::vector<CUstream> streams = streams_of(set);
  return streams.empty() ? nullptr : streams.front();
}

// The default stream cannot be captured, so it costs no call. Besides, the driver would look up its
// handle in the thread's context, which may be another GPU's.
bool StreamNumbers::is_capturing(CUstream stream) const {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return false;
  return expect_no_capture(std::span(&stream, 1)).code() == StatusCode::kUnavailable;
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
  const std::vector<CUstream> streams = streams_of(set);
  if (streams.empty()) return Status::ok();
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(expect_no_capture(streams));
  std::vector<StreamMark> made;
  for (const CUstream stream : streams) {
    Result<StreamMark> mark = marks_.make(stream);
    if (!mark.is_ok()) return mark.status();
    made.push_back(std::move(mark).value());
  }
  // A stream that began to capture meanwhile has taken the event for its own. Its mark is worth
  // nothing, and a stream that waited for it would join the capture.
  TENCACHE_RETURN_IF_ERROR(expect_no_capture(streams));
  for (StreamMark& mark : made) marks->push_back(std::move(mark));
  return Status::ok();
}

Status StreamNumbers::hold_back(StreamSet stream, std::span<const StreamMark> marks) {
  TENCACHE_CHECK(is_one_stream(stream), "%#llx is not one stream",
                 static_cast<unsigned long long>(stream));
  if (marks.empty()) return Status::ok();
  const std::vector<CUstream> streams = streams_of(stream);
  TENCACHE_CHECK(streams.size() == 1, "%#llx has no number",
                 static_cast<unsigned long long>(stream));
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(expect_no_capture(streams));
  for (const StreamMark& mark : marks) TENCACHE_RETURN_IF_ERROR(mark.hold_back(streams.front()));
  return Status::ok();
}

}  // namespace tencache
