// SPDX-License-Identifier: Apache-2.0
//
// DiskTier: one spill file cut into slots. The file is an O_TMPFILE (nothing is left after
// SIGKILL), mode 0600, close-on-exec, in a directory that belongs to the user or is sticky. Where
// the file system has fallocate, the file grows by it, so that a full disk shows when a slot is
// taken and not in the middle of a write.
//
// A slot holds the bytes of one extent. Slots are written and read with O_DIRECT where the file
// system allows it. On the cpu backend they are mapped MAP_PRIVATE over cold extents: a mapped slot
// must not be rewritten. After fork() a child maps every slot that was in use. Those slots are
// frozen: they are never rewritten, and a released one is reused only after all children of that
// fork are gone. Each child inherits the mapping of a token, which tells whether one of them lives
// (Note [Fork epochs] in fork_epochs.cpp).
//
// Before the file grows, and before and after it is read, written or mapped by the descriptor's
// number (before alone where cuFile reads it), whoever does so checks whether the number still
// stands for the file (base/kept_fd.h). If not, the process ends; only a CachedReader returns an
// error instead. A page of the file stays mapped, so that no file of the program's can pass for it.
//
// The disk may take nothing for a while: it is full, fails, or has become read-only. is_failing()
// says so from the first write or growth that fails until a write succeeds. The tier itself never
// waits; engine/plan/disk_patience.h does.
//
// Threads: every method may be called from any thread. mutex_ is held only for bookkeeping, never
// across I/O; grow_mutex_ alone serialises growing the file, and sync_mutex_ the waits for buffered
// writes to reach the disk. A transfer runs on the caller's thread over a channel that is lent for
// it. In a forked child every transfer is refused.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/kept_fd.h"
#include "base/mutex.h"
#include "base/options.h"
#include "base/range_allocator.h"
#include "base/status.h"
#include "tier/io_channel.h"

namespace tencache {

/// A place in the spill file. It is trivially copyable, and its holder owns the place.
struct Slot {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // multiple of kIoAlignment; 0 = no slot
  uint64_t epoch = 0;  // fork epoch in which it was taken
  bool is_valid() const { return bytes != 0; }
};

struct DiskTierConfig {
  std::string directory;  // must exist
  /// The file never grows beyond this. Without a quota, it leaves others a tenth of the disk, that
  /// is, of what the file and the free space come to when the file grows.
  std::optional<uint64_t> quota_bytes;
  Choice io_uring = Choice::kAuto;
  Choice direct_io = Choice::kAuto;
  bool registers_buffers = true;  // where the kernel allows it (Note [Registered buffers])
  unsigned depth = 16;            // requests in flight per channel
  /// Makes a channel for `fd`. Where this function is empty, `io_uring` decides. Tests inject
  /// faults here.
  std::function<Result<std::unique_ptr<IoChannel>>(int fd)> channel_factory;
  /// Returns the free space beside the file. Where this function is empty, the file system says it.
  std::function<uint64_t()> free_bytes = {};
};

/// The abilities of a directory, found by trying them; `tencache doctor` prints them.
struct DiskProbe {
  std::string directory;
  std::string file_system;  // "ext4", "tmpfs", ...
  uint64_t free_bytes = 0;
  // Why the directory does not offer each ability. A reason is empty where the directory offers it.
  std::string io_uring_reason;
  std::string direct_io_reason;
  std::string registered_buffers_reason;
};

/// Checks a directory for use: it exists, is a directory, is writable, is owned by the user or
/// sticky, is not in memory (such as tmpfs), has room, and its files can be mapped, written and
/// read. Each failure names path, reason and remedy (--spill-dir). Most are kInvalidArgument or
/// kNoSpace. Where a file cannot be mapped, the failure is kUnavailable; where a first write fails,
/// the failure has the code of its errno.
Result<DiskProbe> probe_directory(const std::string& directory);

/// Returns the first directory that probe_directory accepts among $TMPDIR, $XDG_CACHE_HOME or
/// ~/.cache, /var/tmp, the working directory. If it accepts none, returns kUnavailable with all
/// that were tried and why each was refused.
Result<DiskProbe> find_spill_directory();

class DiskTier {
 public:
  static Result<std::unique_ptr<DiskTier>> open(const DiskTierConfig& config);
  ~DiskTier();

  /// Takes a slot of `bytes` (rounded up to kIoAlignment). Returns kNoSpace when the quota or the
  /// file system is exhausted; the message says which, the size of the request, and what would
  /// help. Any other error of growing the file has the code of its errno.
  Result<Slot> allocate(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);
  /// Does what allocate() does, for bytes that need not be on the disk yet: a refusal is no failure
  /// of the disk.
  Result<Slot> allocate_ahead(uint64_t bytes) TENCACHE_EXCLUDES(mutex_);

  /// Gives a slot back. A frozen slot waits until the children of its fork are gone.
  void release(const Slot& slot) TENCACHE_EXCLUDES(mutex_);

  /// Whether the slot may be overwritten. It may not be once a fork froze it.
  bool is_writable(const Slot& slot) const TENCACHE_EXCLUDES(mutex_);

  /// Transfers the segments; their offsets lie inside slots that the caller holds. Segments to
  /// write may have no memory: then `observer` fills buffers of the tier (io_channel.h).
  TransferResult write(std::span<const IoSegment> segments, PieceObserver* observer);
  TransferResult read(std::span<const IoSegment> segments, PieceObserver* observer);

  /// Drops the page cache that accesses through a cold mapping of the slot left behind.
  void drop_page_cache(const Slot& slot) const;

  /// Call before fork(). Freezes every slot in use and maps the token that the child will inherit.
  /// REQUIRES: no transfer is running. If the token cannot be made, the slots are frozen for good.
  void freeze_before_fork() TENCACHE_EXCLUDES(mutex_);
  /// Call after fork() in the parent. Unmaps the parent's own mapping of the token.
  void after_fork_in_parent() TENCACHE_EXCLUDES(mutex_);

  int fd() const { return file_.get(); }
  /// Ends the process if fd() does not stand for the spill file any more.
  void require_own_file() const { file_.require_ours(kSpillFile); }
  /// Whether a growth or write failed in a way that may pass, and no write has succeeded since.
  bool is_failing() const { return is_failing_.load(std::memory_order_relaxed); }
  /// The newest failure of that kind. The status is ok unless is_failing().
  Status failure() const TENCACHE_EXCLUDES(mutex_);
  const std::string& directory() const { return config_.directory; }
  /// The directory as messages name it (base/shown_text.h).
  const std::string& shown_directory() const { return shown_directory_; }
  const char* channel_name() const { return channel_name_.c_str(); }
  bool uses_direct_io() const { return direct_io_; }
  /// The quota as it stands now, or the limit on file sizes (ulimit -f) where that is lower.
  uint64_t quota_bytes() const TENCACHE_EXCLUDES(mutex_);
  uint64_t used_bytes() const TENCACHE_EXCLUDES(mutex_);
  uint64_t peak_used_bytes() const TENCACHE_EXCLUDES(mutex_);
  /// The peak begins anew with what is used now.
  void reset_peak() TENCACHE_EXCLUDES(mutex_);
  uint64_t file_bytes() const TENCACHE_EXCLUDES(mutex_);

 private:
  /// A fork that froze every slot with an epoch up to its own, and the slots released since then.
  struct ForkEpoch {
    uint64_t epoch = 0;
    KeptFd token;  // tells whether children live; none = assume that they live for ever
    std::vector<Slot> waiting;
  };

  struct Quota {
    uint64_t bytes = 0;
    const char* remedy = "";
    bool follows_disk = false;  // the quota may grow again
  };
  class AddedSegments;

  explicit DiskTier(DiskTierConfig config);
  void check_range(const IoSegment& segment) const TENCACHE_EXCLUDES(mutex_);
  TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                          PieceObserver* observer);
  Result<std::unique_ptr<IoChannel>> make_channel() const;
  Result<std::unique_ptr<IoChannel>> borrow_channel(bool with_buffers) TENCACHE_EXCLUDES(mutex_);
  void return_channel(std::unique_ptr<IoChannel> channel, bool with_buffers)
      TENCACHE_EXCLUDES(mutex_);
  void start_write_back(std::span<const IoSegment> segments) const;
  Status end_buffered(IoDirection direction, std::span<const IoSegment> segments) const;
  Status end_buffered(IoDirection direction, std::span<const IoSegment> segments,
                      std::span<const IoSegment> added) const;
  Status end_buffered_write(std::span<const IoSegment> segments, std::span<const IoSegment> added,
                            uint64_t failures_before) TENCACHE_EXCLUDES(sync_mutex_);
  Slot take_slot(uint64_t bytes) TENCACHE_REQUIRES(mutex_);
  Result<Slot> grow_and_take(uint64_t bytes, Status* failure)
      TENCACHE_EXCLUDES(grow_mutex_, mutex_);
  Result<Slot> take_or_grow(uint64_t bytes, Status* failure) TENCACHE_EXCLUDES(mutex_);
  Quota quota_of(uint64_t file_bytes) const;
  uint64_t free_bytes() const;
  void note_outcome(const Status& status) TENCACHE_EXCLUDES(mutex_);
  Status grow_file(uint64_t file_bytes, uint64_t wanted_bytes, uint64_t enough_bytes,
                   uint64_t& grown_bytes, Status* failure) TENCACHE_REQUIRES(grow_mutex_);
  void give_back_beyond(uint64_t file_bytes) const TENCACHE_REQUIRES(grow_mutex_);
  uint64_t frozen_bytes() const TENCACHE_REQUIRES(mutex_);
  Status quota_exhausted(uint64_t bytes, const Quota& quota) const TENCACHE_REQUIRES(mutex_);
  void reclaim_childless_epochs() TENCACHE_REQUIRES(mutex_);
  void forget_epoch(size_t index) TENCACHE_REQUIRES(mutex_);
  void put_back(const Slot& slot, size_t fork_count) TENCACHE_REQUIRES(mutex_);

  // Members that are constant after open().
  DiskTierConfig config_;
  std::string shown_directory_;
  FileHold hold_;
  KeptFd file_;
  pid_t owner_pid_ = -1;  // a forked child is another process and owns nothing here
  bool direct_io_ = false;
  std::string channel_name_;

  Mutex sync_mutex_ TENCACHE_ACQUIRED_BEFORE(mutex_);  // held while buffered writes reach the disk
  std::atomic<uint64_t> sync_failures_{0};
  Mutex grow_mutex_ TENCACHE_ACQUIRED_BEFORE(mutex_);  // held across fallocate
  mutable Mutex mutex_;
  RangeAllocator ranges_ TENCACHE_GUARDED_BY(mutex_);  // in units of kIoAlignment
  std::atomic<bool> is_failing_{false};
  Status failure_ TENCACHE_GUARDED_BY(mutex_);  // ok unless is_failing_
  uint64_t peak_used_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t epoch_ TENCACHE_GUARDED_BY(mutex_) = 1;  // grows with each fork that freezes slots
  std::vector<ForkEpoch> fork_epochs_ TENCACHE_GUARDED_BY(mutex_);  // ascending
  // The channels that are not lent out. Those with bounce rings are apart, so that no more of them
  // exist than transfers that needed buffers ran at once.
  std::vector<std::unique_ptr<IoChannel>> idle_channels_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<IoChannel>> idle_buffered_channels_ TENCACHE_GUARDED_BY(mutex_);
  void* fork_token_ TENCACHE_GUARDED_BY(mutex_) = nullptr;  // mapped only around a fork
};

}  // namespace tencache
