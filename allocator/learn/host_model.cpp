// SPDX-License-Identifier: Apache-2.0
#include "learn/host_model.h"

#include <algorithm>

#include "base/check.h"

namespace tencache {

HostModel::HostModel(const Trace& trace, const Machine& machine)
    : trace_(trace),
      machine_(machine),
      window_bytes_(bytes_needed_next(machine.host_bytes, machine.host_headroom_bytes)),
      copies_(trace.tensors.size()),
      fetched_bytes_(machine.host_bytes) {
  TENCACHE_CHECK(machine.host_bytes > machine.host_headroom_bytes);
}

uint64_t HostModel::take_room(uint32_t tensor, uint64_t now_ns) {
  const uint64_t room_ns = make_room(bytes_of(tensor), now_ns);
  copies_[tensor].is_in_host = true;
  copies_[tensor].ready_ns = 0;
  return room_ns;
}

void HostModel::become_cold(uint32_t tensor, uint64_t next_use) {
  Copy& copy = copies_[tensor];
  spare_.erase(tensor);
  copy.is_cold = true;
  copy.next_use = next_use;
  cold_list_of(copy).emplace(next_use, tensor);
  // Room was promised to those that were still leaving; now one of the cold ones can give it.
  make_room(0, now_ns_);
}

uint64_t HostModel::fetch(uint32_t tensor, uint64_t now_ns) {
  Copy& copy = copies_[tensor];
  cold_list_of(copy).erase({copy.next_use, tensor});
  copy.is_cold = false;
  fetched_bytes_ += bytes_of(tensor);
  if (!copy.is_in_host) read(tensor, make_room(bytes_of(tensor), now_ns));
  return std::max(now_ns, copy.ready_ns);
}

void HostModel::become_resident(uint32_t tensor) {
  if (copies_[tensor].is_in_host) spare_.insert(tensor);
}

void HostModel::forget(uint32_t tensor) {
  Copy& copy = copies_[tensor];
  if (copy.is_cold) cold_list_of(copy).erase({copy.next_use, tensor});
  spare_.erase(tensor);
  if (copy.is_in_host) used_bytes_ -= bytes_of(tensor);
  copy = {};
}

void HostModel::advance(uint64_t until_ns) {
  // The engine looks each time that this much was fetched, until it finds nothing more to read.
  while (fetched_bytes_ >= machine_.host_headroom_bytes / 4) {
    if (std::max(read_free_ns_, now_ns_) >= until_ns) break;
    const std::optional<uint32_t> next = first_to_read();
    if (!next) {
      fetched_bytes_ = 0;
      break;
    }
    // The tensor leaves the list first, so that it is not the one that makes room.
    const uint64_t next_use = copies_[*next].next_use;
    on_disk_.erase({next_use, *next});
    read(*next, make_room(bytes_of(*next), now_ns_));
    in_host_.emplace(next_use, *next);
  }
  now_ns_ = std::max(now_ns_, until_ns);
}

// Returns the time from which on there is room.
uint64_t HostModel::make_room(uint64_t bytes, uint64_t now_ns) {
  uint64_t room_ns = now_ns;
  while (used_bytes_ + bytes > capacity_bytes()) {
    if (drop_spare_copy()) continue;
    if (in_host_.empty()) break;
    const uint32_t last = in_host_.rbegin()->second;
    Copy& copy = copies_[last];
    in_host_.erase(std::prev(in_host_.end()));
    if (!copy.is_on_disk) {
      const uint64_t begin_ns = std::max({write_free_ns_, now_ns, copy.ready_ns});
      write_free_ns_ = begin_ns + transfer_ns(bytes_of(last), machine_.disk_write_bytes_per_s);
      bytes_written_ += bytes_of(last);
      copy.is_on_disk = true;
      const uint64_t ahead_ns =
          transfer_ns(machine_.host_headroom_bytes, machine_.disk_write_bytes_per_s);
      if (write_free_ns_ > now_ns + ahead_ns) room_ns = write_free_ns_ - ahead_ns;
    }
    give_back(last);
    on_disk_.emplace(copy.next_use, last);
  }
  used_bytes_ += bytes;
  return room_ns;
}

bool HostModel::drop_spare_copy() {
  if (spare_.empty()) return false;
  const uint32_t tensor = *spare_.begin();
  spare_.erase(spare_.begin());
  give_back(tensor);
  return true;
}

void HostModel::give_back(uint32_t tensor) {
  copies_[tensor].is_in_host = false;
  used_bytes_ -= bytes_of(tensor);
}

void HostModel::read(uint32_t tensor, uint64_t now_ns) {
  Copy& copy = copies_[tensor];
  read_free_ns_ = std::max(read_free_ns_, now_ns) +
                  transfer_ns(bytes_of(tensor), machine_.disk_read_bytes_per_s);
  bytes_read_ += bytes_of(tensor);
  copy.is_in_host = true;
  copy.ready_ns = read_free_ns_;
}

// Among the tensors needed next, the first that is only on disk.
std::optional<uint32_t> HostModel::first_to_read() const {
  if (on_disk_.empty()) return std::nullopt;
  const auto& [next_use, tensor] = *on_disk_.begin();
  uint64_t next_bytes = bytes_of(tensor);
  for (const auto& [use, other] : in_host_) {
    if (use > next_use || next_bytes > window_bytes_) break;
    next_bytes += bytes_of(other);
  }
  return next_bytes <= window_bytes_ ? std::optional(tensor) : std::nullopt;
}

}  // namespace tencache
