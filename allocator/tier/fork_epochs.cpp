// SPDX-License-Identifier: Apache-2.0
//
// DiskTier and fork(). Note [Fork epochs]: a child sees its parent's cold extents through mappings
// of the spill file. So a slot that was in use at a fork must hold its bytes as long as a child of
// that fork lives, whatever the parent does. Each fork that finds slots in use ends an epoch. A
// slot carries the epoch in which it was taken; every living fork whose epoch is not older freezes
// it.
//
// A fork lives as long as one of its children does. A token tells whether it lives: one page of a
// memfd, mapped shared and writable just before the fork and unmapped by the parent just after it.
// The child, and processes that it forks, hold the mapping exactly as long as the mappings of the
// slots: until they exit or exec. The kernel refuses to seal a memfd against writing while anybody
// has it mapped so; the seal succeeds once all are gone. (A pipe would tell the same only until a
// child closes all its descriptors, as daemons do, and reads on.)
//
// A slot that is released while frozen waits with the newest fork that freezes it. When that fork's
// children are gone, the slot moves to the next older fork that freezes it; without one it is free.
// Forks after its release cannot map it, so they do not matter.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/kept_fd.h"
#include "base/log.h"
#include "tier/disk_tier.h"

namespace tencache {
namespace {

constexpr size_t kTokenBytes = 4096;

/// Maps a token at `address`. On failure returns an invalid descriptor, with errno set.
KeptFd make_token(void*& address) {
  KeptFd token(UniqueFd(memfd_create("tencache-fork", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!token.is_valid() || ftruncate(token.get(), kTokenBytes) != 0) return {};
  address = mmap(nullptr, kTokenBytes, PROT_READ | PROT_WRITE, MAP_SHARED, token.get(), 0);
  if (address == MAP_FAILED) {
    address = nullptr;
    return {};
  }
  return token;
}

/// Whether anybody may have the token mapped. That is so, too, when the program has closed the
/// token's descriptor: nobody can tell any more.
bool may_be_mapped(const KeptFd& token) {
  return !token.is_ours() || fcntl(token.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0;
}

}  // namespace

void DiskTier::release(const Slot& slot) {
  TENCACHE_CHECK(slot.is_valid());
  MutexLock lock(mutex_);
  reclaim_childless_epochs();
  put_back(slot, fork_epochs_.size());
}

// The slot waits with the newest of the first `fork_count` forks, if that one freezes it; else it
// is free.
void DiskTier::put_back(const Slot& slot, size_t fork_count) {
  if (fork_count > 0 && fork_epochs_[fork_count - 1].epoch >= slot.epoch) {
    fork_epochs_[fork_count - 1].waiting.push_back(slot);
  } else {
    ranges_.free(slot.offset / kIoAlignment, slot.bytes / kIoAlignment);
  }
}

bool DiskTier::is_writable(const Slot& slot) const {
  MutexLock lock(mutex_);
  return fork_epochs_.empty() || fork_epochs_.back().epoch < slot.epoch;
}

void DiskTier::freeze_before_fork() {
  // In a child there is nothing to freeze: a process that the child forks inherits the mapping of
  // the token that the child has.
  if (getpid() != owner_pid_) return;
  MutexLock lock(mutex_);
  TENCACHE_CHECK(fork_token_ == nullptr, "two forks at once");
  // This also stops the descriptors of a program that forks for ever from piling up.
  reclaim_childless_epochs();
  if (ranges_.used() == 0) return;
  KeptFd token = make_token(fork_token_);
  if (!token.is_valid()) {
    if (!fork_epochs_.empty() && !fork_epochs_.back().token.is_valid()) {
      fork_epochs_.back().epoch = epoch_++;
      return;
    }
    TENCACHE_LOG_WARNING(
        "cannot watch forked processes (errno %d): parts of the disk tier in use at a fork, now "
        "%lu bytes, are not reused until this program ends",
        errno, ranges_.used() * kIoAlignment);
  }
  fork_epochs_.push_back({epoch_++, std::move(token), {}});
}

void DiskTier::after_fork_in_parent() {
  if (getpid() != owner_pid_) return;
  MutexLock lock(mutex_);
  if (fork_token_ != nullptr) munmap(fork_token_, kTokenBytes);
  fork_token_ = nullptr;
}

void DiskTier::reclaim_childless_epochs() {
  // The loop begins with the newest fork, so that a waiting slot passes through all forks that have
  // ended.
  for (size_t i = fork_epochs_.size(); i-- > 0;) {
    const KeptFd& token = fork_epochs_[i].token;
    if (token.is_valid() && !may_be_mapped(token)) forget_epoch(i);
  }
}

void DiskTier::forget_epoch(size_t index) {
  const std::vector<Slot> waiting = std::move(fork_epochs_[index].waiting);
  fork_epochs_.erase(fork_epochs_.begin() + static_cast<std::ptrdiff_t>(index));
  for (const Slot& slot : waiting) put_back(slot, index);
}

}  // namespace tencache
