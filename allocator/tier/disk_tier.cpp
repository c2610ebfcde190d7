// SPDX-License-Identifier: Apache-2.0
//
// Slots, growth and transfers of the spill file; forks are in fork_epochs.cpp.
//
// Growth. The file grows by steps that are larger than most extents, so that fallocate is rare, and
// never shrinks: a slot that is written again costs less than a new one, because its blocks have
// been written before. Only what a step got before it failed goes back to the disk, where other
// programs may wait for it. A full disk shows at growth, where the extent is still resident, and
// not in a write, unless the file system lacks fallocate.
//
// Buffered I/O, where the file system refuses O_DIRECT, is made to behave like direct I/O. A write
// waits until the disk has the bytes, because a later error would come too late: the extent's
// memory would be gone. Both directions drop the page cache, which would take the freed memory.
#include "tier/disk_tier.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/log.h"
#include "base/shown_text.h"
#include "base/units.h"
#include "tier/bounce_ring.h"
#include "tier/spill_file.h"

namespace tencache {
namespace {

constexpr uint64_t kGrowthStepBytes = 64 * kMiB;

// Without a quota, one part in this many of the disk is left to others.
constexpr uint64_t kReserveShare = 10;

// A call that signals interrupt again and again must end in an error, not in a loop.
constexpr int kTriesMax = 1000;

// No file is larger than this, so sums of such sizes do not overflow.
constexpr uint64_t kSlotBytesMax = uint64_t{1} << 62;

// At 1 MiB a request, more threads than this add context switches and no bandwidth.
constexpr unsigned kThreadsMax = 8;

/// Whether the errno says that the file system lacks fallocate, or that a container's seccomp
/// profile forbids it.
bool lacks_fallocate(int error_number) {
  return error_number == EOPNOTSUPP || error_number == ENOSYS || error_number == EPERM ||
         error_number == EINVAL;
}

/// Extends the file. Returns 0 or the errno.
int extend_file(int fd, uint64_t file_bytes, uint64_t grown_bytes) {
  int error_number = EINTR;
  for (int tries = 0; error_number == EINTR && tries < kTriesMax; ++tries) {
    const int result =
        fallocate(fd, 0, static_cast<off_t>(file_bytes), static_cast<off_t>(grown_bytes));
    error_number = result == 0 ? 0 : errno;
  }
  if (!lacks_fallocate(error_number)) return error_number;
  // Without fallocate the file only gets its length, and a full disk shows in the write after all.
  return ftruncate(fd, static_cast<off_t>(file_bytes + grown_bytes)) == 0 ? 0 : errno;
}

}  // namespace

DiskTier::DiskTier(DiskTierConfig config)
    : config_(std::move(config)), shown_directory_(shown(config_.directory)), ranges_(0) {}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskTierConfig& config) {
  TENCACHE_CHECK(config.depth > 0);
  if (config.quota_bytes && *config.quota_bytes < kIoAlignment) {
    return Status(StatusCode::kInvalidArgument,
                  "The quota of the disk tier is " + format_bytes(*config.quota_bytes) +
                      ", which holds nothing. Raise --disk-space or TENCACHE_DISK_SPACE.");
  }
  Result<SpillDirectory> directory = open_spill_directory(config.directory);
  if (!directory.is_ok()) return directory.status();
  Result<SpillFile> file = open_spill_file(directory.value(), config.directory, config.direct_io);
  if (!file.is_ok()) return file.status();

  std::unique_ptr<DiskTier> tier(new DiskTier(config));
  tier->hold_ = std::move(file.value().hold);
  tier->file_ = KeptFd(std::move(file.value().fd));
  tier->owner_pid_ = getpid();
  tier->direct_io_ = file.value().direct_io;
  Result<std::unique_ptr<IoChannel>> channel = tier->make_channel();
  if (!channel.is_ok()) return channel.status();
  tier->channel_name_ = channel.value()->name();
  tier->return_channel(std::move(channel).value(), /*with_buffers=*/false);
  return tier;
}

DiskTier::~DiskTier() {
  if (getpid() != owner_pid_) {
    // The io_urings and threads of the channels belong to the parent; the bounce rings are not even
    // mapped here.
    for (std::unique_ptr<IoChannel>& channel : idle_channels_) (void)channel.release();
    for (std::unique_ptr<IoChannel>& channel : idle_buffered_channels_) (void)channel.release();
  }
}

// ---- Slots ---------------------------------------------------------------------------------

Slot DiskTier::take_slot(uint64_t bytes) {
  const std::optional<uint64_t> unit = ranges_.allocate(bytes / kIoAlignment);
  if (!unit) return {};
  peak_used_ = std::max(peak_used_, ranges_.used() * kIoAlignment);
  return {*unit * kIoAlignment, bytes, epoch_};
}

Result<Slot> DiskTier::allocate(uint64_t bytes) {
  Status failure;
  Result<Slot> slot = take_or_grow(bytes, &failure);
  if (!failure.is_ok()) note_outcome(failure);
  return slot;
}

Result<Slot> DiskTier::allocate_ahead(uint64_t bytes) {
  Status failure;
  return take_or_grow(bytes, &failure);
}

// Takes a slot, and grows the file where there is no room for it. Sets `failure` where the disk
// takes nothing now; a quota that was given is no such failure.
Result<Slot> DiskTier::take_or_grow(uint64_t bytes, Status* failure) {
  TENCACHE_CHECK(bytes > 0, "a slot of 0 bytes was requested");
  const uint64_t rounded = round_up(std::min(bytes, kSlotBytesMax), kIoAlignment);
  {
    MutexLock lock(mutex_);
    reclaim_childless_epochs();
    if (const Slot slot = take_slot(rounded); slot.is_valid()) return slot;
  }
  return grow_and_take(rounded, failure);
}

Result<Slot> DiskTier::grow_and_take(uint64_t bytes, Status* failure) {
  require_own_file();
  MutexLock grow_lock(grow_mutex_);
  // Other threads may take the free space at the end of the file while it grows; then this thread
  // tries again.
  for (;;) {
    const uint64_t file_bytes = this->file_bytes();  // changes only with grow_mutex_ held
    const Quota quota = quota_of(file_bytes);
    uint64_t wanted_bytes = 0;
    uint64_t enough_bytes = 0;
    Status refused;
    {
      MutexLock lock(mutex_);
      if (const Slot slot = take_slot(bytes); slot.is_valid()) return slot;
      enough_bytes = bytes - ranges_.free_at_end() * kIoAlignment;
      const uint64_t room_bytes = quota.bytes - std::min(quota.bytes, file_bytes);
      if (enough_bytes > room_bytes) refused = quota_exhausted(bytes, quota);
      wanted_bytes = std::min(std::max(enough_bytes, kGrowthStepBytes), room_bytes);
    }
    if (!refused.is_ok()) {
      if (quota.follows_disk) *failure = refused;
      return refused;
    }
    uint64_t grown_bytes = 0;
    TENCACHE_RETURN_IF_ERROR(
        grow_file(file_bytes, wanted_bytes, enough_bytes, grown_bytes, failure));
    MutexLock lock(mutex_);
    ranges_.grow((file_bytes + grown_bytes) / kIoAlignment);
    if (const Slot slot = take_slot(bytes); slot.is_valid()) return slot;
  }
}

Status DiskTier::grow_file(uint64_t file_bytes, uint64_t wanted_bytes, uint64_t enough_bytes,
                           uint64_t& grown_bytes, Status* failure) {
  require_own_file();
  grown_bytes = wanted_bytes;
  int error_number = extend_file(file_.get(), file_bytes, wanted_bytes);
  if (error_number == 0) return Status::ok();
  if (enough_bytes < wanted_bytes) {
    // The second attempt finds the blocks that the first one got. If those were given back before,
    // they would not be free until the file system has written its journal.
    grown_bytes = enough_bytes;
    error_number = extend_file(file_.get(), file_bytes, enough_bytes);
  }
  give_back_beyond(file_bytes + (error_number == 0 ? enough_bytes : 0));
  if (error_number == 0) return Status::ok();
  const std::string attempt = "Cannot grow the spill file in " + shown_directory_ + " from " +
                              format_bytes(file_bytes) + " by " + format_bytes(enough_bytes);
  const Status failed = status_from_errno(error_number, attempt);
  if (error_number == EFBIG) {
    return {StatusCode::kNoSpace, failed.message() + ". The file system allows no more."};
  }
  Status status(failed.code(),
                failed.message() +
                    ". Free space there, or choose another directory with --spill-dir or "
                    "TENCACHE_SPILL_DIR.");
  *failure = status;
  return status;
}

// Cuts the file to this size after a failed growth: file systems keep the blocks that they found
// before the disk was full, and some keep the length as well.
void DiskTier::give_back_beyond(uint64_t file_bytes) const {
  require_own_file();
  if (ftruncate(file_.get(), static_cast<off_t>(file_bytes)) != 0) {
    TENCACHE_LOG_DEBUG("the spill file keeps what a failed growth got (errno %d)", errno);
  }
}

DiskTier::Quota DiskTier::quota_of(uint64_t file_bytes) const {
  Quota quota;
  if (config_.quota_bytes) {
    quota = {*config_.quota_bytes, "Raise --disk-space or TENCACHE_DISK_SPACE.", false};
  } else {
    const uint64_t all_bytes = file_bytes + free_bytes();
    quota = {all_bytes - all_bytes / kReserveShare,
             "It leaves a tenth of the disk to others: free space there, or set --disk-space or "
             "TENCACHE_DISK_SPACE.",
             true};
  }
  if (const uint64_t limit_bytes = file_size_limit_bytes(); limit_bytes < quota.bytes) {
    quota = {limit_bytes, "The limit on file sizes of this process (ulimit -f) allows no more.",
             false};
  }
  quota.bytes -= quota.bytes % kIoAlignment;
  return quota;
}

uint64_t DiskTier::quota_bytes() const { return quota_of(file_bytes()).bytes; }

uint64_t DiskTier::free_bytes() const {
  if (config_.free_bytes) return config_.free_bytes();
  struct statvfs space = {};
  if (fstatvfs(file_.get(), &space) != 0) return 0;
  return uint64_t{space.f_bavail} * uint64_t{space.f_frsize};
}

Status DiskTier::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

void DiskTier::note_outcome(const Status& status) {
  if (status.is_ok() && !is_failing()) return;
  MutexLock lock(mutex_);
  failure_ = status;
  is_failing_.store(!status.is_ok(), std::memory_order_relaxed);
}

Status DiskTier::quota_exhausted(uint64_t bytes, const Quota& quota) const {
  std::string message = "The disk tier in " + shown_directory_ + " has no room for " +
                        format_bytes(bytes) + ": " + format_bytes(ranges_.used() * kIoAlignment) +
                        " of its quota of " + format_bytes(quota.bytes) + " are in use";
  if (const uint64_t frozen = frozen_bytes(); frozen > 0) {
    message += " (" + format_bytes(frozen) + " of them held for forked processes)";
  }
  message += " and the largest free piece is " +
             format_bytes(ranges_.largest_free() * kIoAlignment) + ". " + quota.remedy;
  return {StatusCode::kNoSpace, std::move(message)};
}

uint64_t DiskTier::frozen_bytes() const {
  uint64_t bytes = 0;
  for (const ForkEpoch& fork : fork_epochs_) {
    for (const Slot& slot : fork.waiting) bytes += slot.bytes;
  }
  return bytes;
}

void DiskTier::drop_page_cache(const Slot& slot) const {
  require_own_file();
  // The call is only advice: a refusal leaves the pages to the kernel's own reclaim.
  (void)posix_fadvise(file_.get(), static_cast<off_t>(slot.offset), static_cast<off_t>(slot.bytes),
                      POSIX_FADV_DONTNEED);
}

uint64_t DiskTier::used_bytes() const {
  MutexLock lock(mutex_);
  return ranges_.used() * kIoAlignment;
}

uint64_t DiskTier::peak_used_bytes() const {
  MutexLock lock(mutex_);
  return peak_used_;
}

void DiskTier::reset_peak() {
  MutexLock lock(mutex_);
  peak_used_ = ranges_.used() * kIoAlignment;
}

uint64_t DiskTier::file_bytes() const {
  MutexLock lock(mutex_);
  return ranges_.limit() * kIoAlignment;
}

// ---- Transfers -----------------------------------------------------------------------------

/// Forwards to another observer and notes the segments that it adds.
class DiskTier::AddedSegments final : public PieceObserver {
 public:
  AddedSegments(const DiskTier& disk, PieceObserver* observer) : disk_(disk), observer_(observer) {}

  std::span<const IoSegment> segments() const { return segments_; }

  bool before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) override {
    return observer_->before_submit(segment, offset, memory, bytes);
  }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    observer_->after_complete(segment, offset, bytes);
  }
  bool next_segment(IoSegment* segment) override {
    if (!observer_->next_segment(segment)) return false;
    disk_.check_range(*segment);
    segments_.push_back(*segment);
    return true;
  }

 private:
  const DiskTier& disk_;
  PieceObserver* const observer_;
  std::vector<IoSegment> segments_;
};

TransferResult DiskTier::write(std::span<const IoSegment> segments, PieceObserver* observer) {
  return transfer(IoDirection::kWrite, segments, observer);
}

TransferResult DiskTier::read(std::span<const IoSegment> segments, PieceObserver* observer) {
  return transfer(IoDirection::kRead, segments, observer);
}

void DiskTier::check_range(const IoSegment& segment) const {
  const uint64_t limit_bytes = file_bytes();
  TENCACHE_CHECK(segment.bytes <= limit_bytes && segment.offset <= limit_bytes - segment.bytes,
                 "segment of %lu bytes at %lu in a spill file of %lu", segment.bytes,
                 segment.offset, limit_bytes);
}

TransferResult DiskTier::transfer(IoDirection direction, std::span<const IoSegment> segments,
                                  PieceObserver* observer) {
  if (getpid() != owner_pid_) {
    return {Status(StatusCode::kFailedPrecondition,
                   "A forked process has no disk tier: the spill file belongs to process " +
                       std::to_string(owner_pid_) + "."),
            false, 0};
  }
  require_own_file();
  for (const IoSegment& segment : segments) check_range(segment);
  AddedSegments added(*this, observer);
  const uint64_t sync_failures_before = sync_failures_.load();  // before a byte is written
  const bool with_buffers = has_segment_without_memory(segments);
  Result<std::unique_ptr<IoChannel>> channel = borrow_channel(with_buffers);
  if (!channel.is_ok()) return {channel.status(), false, 0};
  TransferResult result =
      channel.value()->transfer(direction, segments, observer == nullptr ? nullptr : &added);
  return_channel(std::move(channel).value(), with_buffers);

  if (result.status.is_ok() && !direct_io_) {
    result.status = direction == IoDirection::kWrite
                        ? end_buffered_write(segments, added.segments(), sync_failures_before)
                        : end_buffered(direction, segments, added.segments());
  }
  if (!result.status.is_ok()) {
    result.status = Status(result.status.code(), "Spill file in " + shown_directory_ + ": " +
                                                     result.status.message() + ".");
  }
  const bool tells = !result.status.is_ok() || !result.cancelled;
  if (direction == IoDirection::kWrite && tells) note_outcome(result.status);
  return result;
}

// Waits until the disk has the bytes of a write. If a write did not reach the disk, the kernel says
// so once for the whole file, to the thread that waits next, whoever wrote those bytes. So one
// thread waits at a time, and after a failure nothing is trusted that was being written meanwhile.
Status DiskTier::end_buffered_write(std::span<const IoSegment> segments,
                                    std::span<const IoSegment> added, uint64_t failures_before) {
  start_write_back(segments);
  start_write_back(added);
  MutexLock lock(sync_mutex_);
  Status status = end_buffered(IoDirection::kWrite, segments, added);
  if (!status.is_ok()) {
    sync_failures_.fetch_add(1);
  } else if (sync_failures_.load() != failures_before) {
    status = Status(StatusCode::kIoError,
                    "bytes could not be brought to the disk while another transfer waited, and "
                    "those of this transfer may be among them");
  }
  return status;
}

// Starts the writing, so that the disk has a queue; a failure shows in the wait.
void DiskTier::start_write_back(std::span<const IoSegment> segments) const {
  require_own_file();
  for (const IoSegment& segment : segments) {
    if (segment.bytes == 0) continue;
    (void)sync_file_range(file_.get(), static_cast<off_t>(segment.offset),
                          static_cast<off_t>(segment.bytes), SYNC_FILE_RANGE_WRITE);
  }
}

Status DiskTier::end_buffered(IoDirection direction, std::span<const IoSegment> segments,
                              std::span<const IoSegment> added) const {
  TENCACHE_RETURN_IF_ERROR(end_buffered(direction, segments));
  return end_buffered(direction, added);
}

// After a write, waits until the bytes are on the disk. In either direction, takes them out of the
// page cache.
Status DiskTier::end_buffered(IoDirection direction, std::span<const IoSegment> segments) const {
  require_own_file();
  const int fd = file_.get();
  for (const IoSegment& segment : segments) {
    const auto offset = static_cast<off_t>(segment.offset);
    const auto bytes = static_cast<off_t>(segment.bytes);
    if (bytes == 0) continue;  // 0 would mean "to the end of the file"
    constexpr unsigned kWriteAndWait =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (direction == IoDirection::kWrite &&
        sync_file_range(fd, offset, bytes, kWriteAndWait) != 0) {
      return status_from_errno(errno, "cannot bring " + format_bytes(segment.bytes) +
                                          " at file offset " + std::to_string(segment.offset) +
                                          " to the disk");
    }
    (void)posix_fadvise(fd, offset, bytes, POSIX_FADV_DONTNEED);
  }
  return Status::ok();
}

Result<std::unique_ptr<IoChannel>> DiskTier::make_channel() const {
  require_own_file();
  if (config_.channel_factory) return config_.channel_factory(file_.get());
  if (config_.io_uring != Choice::kOff) {
    Result<std::unique_ptr<IoChannel>> channel =
        make_uring_channel(file_.get(), config_.depth, config_.registers_buffers);
    if (channel.is_ok()) return channel;
    if (config_.io_uring == Choice::kOn) {
      return Status(channel.status().code(),
                    "io_uring is on, but " + channel.status().message() + ". Set it to auto.");
    }
    TENCACHE_LOG_DEBUG("%s; the disk tier uses threads", channel.status().message().c_str());
  }
  return make_thread_channel(file_.get(), std::min(config_.depth, kThreadsMax));
}

Result<std::unique_ptr<IoChannel>> DiskTier::borrow_channel(bool with_buffers) {
  {
    MutexLock lock(mutex_);
    auto& idle =
        with_buffers && !idle_buffered_channels_.empty() ? idle_buffered_channels_ : idle_channels_;
    if (!idle.empty()) {
      std::unique_ptr<IoChannel> channel = std::move(idle.back());
      idle.pop_back();
      return channel;
    }
  }
  return make_channel();
}

void DiskTier::return_channel(std::unique_ptr<IoChannel> channel, bool with_buffers) {
  MutexLock lock(mutex_);
  (with_buffers ? idle_buffered_channels_ : idle_channels_).push_back(std::move(channel));
}

}  // namespace tencache
