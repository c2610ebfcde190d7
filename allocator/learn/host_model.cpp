// SPDX-License-Identifier: Apache-2.0
#include "learn/host_model.h"

#include <algorithm>

#include "base/check.h"

namespace tencache {

HostModel::HostModel(const Trace& trace, const Machine& machine, uint64_t copy_ahead_bytes,
                     Simulation* notes)
    : trace_(trace),
      machine_(machine),
      copy_ahead_bytes_(copy_ahead_bytes),
      notes_(*notes),
      window_bytes_(bytes_needed_next(machine.host_bytes, machine.host_headroom_bytes)),
      copies_(trace.tensors.size()),
      in_host_(trace.tensors.size()),
      on_disk_(trace.tensors.size()),
      not_copied_(trace.tensors.size()),
      spare_(static_cast<uint32_t>(trace.tensors.size())),
      fetched_bytes_(machine.host_bytes) {
  TENCACHE_CHECK(machine.host_bytes > machine.host_headroom_bytes);
}

uint64_t HostModel::take_room(uint32_t tensor, uint64_t now_ns) {
  const uint64_t room_ns = enter(tensor, machine_.host_headroom_bytes, now_ns);
  copies_[tensor].ready_ns = 0;
  return room_ns;
}

void HostModel::become_cold(uint32_t tensor, uint64_t next_use) {
  remove_spare(tensor);
  copies_[tensor].next_use = next_use;
  enter_cold(tensor);
  // Room was promised to tensors that were still leaving; now a cold tensor can give it.
  make_room(0, machine_.host_headroom_bytes, now_ns_);
}

uint64_t HostModel::fetch(uint32_t tensor, uint64_t now_ns) {
  Copy& copy = copies_[tensor];
  leave_cold(tensor);
  fetched_bytes_ += bytes_of(tensor);
  if (!copy.is_in_host) read(tensor, now_ns);
  return std::max(now_ns, copy.ready_ns);
}

void HostModel::become_resident(uint32_t tensor) {
  Copy& copy = copies_[tensor];
  if (!copy.is_in_host || copy.is_spare) return;
  copy.is_spare = true;
  spare_.insert(tensor);
  spare_bytes_ += bytes_of(tensor);
}

void HostModel::forget(uint32_t tensor) {
  Copy& copy = copies_[tensor];
  if (copy.is_cold) leave_cold(tensor);
  remove_spare(tensor);
  if (copy.is_in_host) used_bytes_ -= bytes_of(tensor);
  if (copy.is_on_disk) disk_bytes_ -= bytes_of(tensor);
  copy = {};
}

void HostModel::advance(uint64_t until_ns) {
  copy_ahead(until_ns);
  read_ahead(until_ns);
  now_ns_ = std::max(now_ns_, until_ns);
}

void HostModel::copy_ahead(uint64_t until_ns) {
  while (!not_copied_.is_empty()) {
    const uint32_t last = not_copied_.last();
    const uint64_t begin_ns = std::max({write_free_ns_, now_ns_, copies_[last].ready_ns});
    if (begin_ns >= until_ns || !may_be_copied(last)) return;
    not_copied_.erase(copies_[last].next_use, last);
    write(last, begin_ns);
  }
}

void HostModel::read_ahead(uint64_t until_ns) {
  // The engine looks each time that this much was fetched, until it finds nothing more to read.
  while (fetched_bytes_ >= machine_.host_headroom_bytes / 4) {
    if (std::max(read_free_ns_, now_ns_) >= until_ns) return;
    const std::optional<uint32_t> next = first_to_read();
    if (!next || !has_room_for(*next)) {
      fetched_bytes_ = 0;
      return;
    }
    // The tensor leaves the list first, so that it is not the one that makes room.
    leave_cold(*next);
    read(*next, now_ns_);
    enter_cold(*next);
  }
}

// Returns the time from which on there is room for the tensor.
uint64_t HostModel::enter(uint32_t tensor, uint64_t kept_free_bytes, uint64_t now_ns) {
  make_room(bytes_of(tensor), kept_free_bytes, now_ns);
  used_bytes_ += bytes_of(tensor);
  copies_[tensor].is_in_host = true;
  // A tensor that was given up holds its room until it is written. As far as other room is free,
  // nobody waits for that.
  const uint64_t free_bytes = machine_.host_bytes - std::min(machine_.host_bytes, used_bytes_);
  const uint64_t free_ns = transfer_ns(free_bytes, machine_.disk_write_bytes_per_s);
  return std::max(now_ns, write_free_ns_ - std::min(write_free_ns_, free_ns));
}

// Makes room for `bytes` beside half of the headroom. Where it has to free any, it goes on until
// `kept_free_bytes` are free beside them.
void HostModel::make_room(uint64_t bytes, uint64_t kept_free_bytes, uint64_t now_ns) {
  if (used_bytes_ + bytes <= window_bytes_) return;
  while (used_bytes_ + bytes > machine_.host_bytes - kept_free_bytes) {
    if (!drop_spare_copy() && !demote_last(now_ns)) return;
  }
}

bool HostModel::drop_spare_copy() {
  const std::optional<uint32_t> tensor = spare_.at_or_after(0);
  if (!tensor) return false;
  remove_spare(*tensor);
  give_back(*tensor);
  return true;
}

// Leaves the cold tensor that is needed last on disk alone. Returns false if host memory holds no
// cold tensor.
bool HostModel::demote_last(uint64_t now_ns) {
  if (in_host_.is_empty()) return false;
  const uint32_t last = in_host_.last();
  leave_cold(last);
  if (!copies_[last].is_on_disk) {
    // A copy ahead of need would have begun as soon as the disk was free.
    const uint64_t asked_ns = may_be_copied(last) ? now_ns_ : now_ns;
    write(last, std::max({write_free_ns_, asked_ns, copies_[last].ready_ns}));
  }
  give_back(last);
  enter_cold(last);
  return true;
}

void HostModel::give_back(uint32_t tensor) {
  copies_[tensor].is_in_host = false;
  used_bytes_ -= bytes_of(tensor);
}

void HostModel::read(uint32_t tensor, uint64_t now_ns) {
  const uint64_t room_ns = enter(tensor, machine_.host_headroom_bytes / 2, now_ns);
  read_free_ns_ = std::max(read_free_ns_, room_ns) +
                  transfer_ns(bytes_of(tensor), machine_.disk_read_bytes_per_s);
  notes_.disk_bytes_read += bytes_of(tensor);
  copies_[tensor].ready_ns = read_free_ns_;
}

void HostModel::write(uint32_t tensor, uint64_t begin_ns) {
  write_free_ns_ = begin_ns + transfer_ns(bytes_of(tensor), machine_.disk_write_bytes_per_s);
  notes_.disk_bytes_written += bytes_of(tensor);
  disk_bytes_ += bytes_of(tensor);
  copies_[tensor].is_on_disk = true;
}

// Among the tensors needed next, the first that is only on disk.
std::optional<uint32_t> HostModel::first_to_read() {
  if (on_disk_.is_empty()) return std::nullopt;
  const uint32_t tensor = on_disk_.first();
  const uint64_t sooner_bytes = in_host_bytes_until(copies_[tensor].next_use);
  return bytes_of(tensor) + sooner_bytes <= window_bytes_ ? std::optional(tensor) : std::nullopt;
}

// The bytes of the cold tensors in host memory that are needed at `use` or before. Uses move on as
// the program does, so the count goes on from where it was: a sum from the start would make
// planning quadratic in the number of tensors.
uint64_t HostModel::in_host_bytes_until(uint64_t use) {
  in_host_.visit(counted_until_, use,
                 [this](uint32_t tensor) { counted_bytes_ += bytes_of(tensor); });
  in_host_.visit(use, counted_until_,
                 [this](uint32_t tensor) { counted_bytes_ -= bytes_of(tensor); });
  counted_until_ = use;
  return counted_bytes_;
}

// Whether reading the tensor takes room only from what is spare or needed later. Otherwise what
// made room would be the next to be read.
bool HostModel::has_room_for(uint32_t tensor) {
  const uint64_t free_bytes = window_bytes_ - std::min(window_bytes_, used_bytes_);
  const uint64_t later_bytes = cold_bytes_ - in_host_bytes_until(copies_[tensor].next_use);
  return free_bytes + spare_bytes_ + later_bytes >= bytes_of(tensor);
}

void HostModel::enter_cold(uint32_t tensor) {
  Copy& copy = copies_[tensor];
  copy.is_cold = true;
  cold_list_of(copy).insert(copy.next_use, tensor);
  if (is_to_copy(copy)) not_copied_.insert(copy.next_use, tensor);
  if (!copy.is_in_host) return;
  cold_bytes_ += bytes_of(tensor);
  if (copy.next_use <= counted_until_) counted_bytes_ += bytes_of(tensor);
}

void HostModel::leave_cold(uint32_t tensor) {
  Copy& copy = copies_[tensor];
  TENCACHE_DCHECK(copy.is_cold);
  copy.is_cold = false;
  cold_list_of(copy).erase(copy.next_use, tensor);
  if (is_to_copy(copy)) not_copied_.erase(copy.next_use, tensor);
  if (!copy.is_in_host) return;
  cold_bytes_ -= bytes_of(tensor);
  if (copy.next_use <= counted_until_) counted_bytes_ -= bytes_of(tensor);
}

void HostModel::remove_spare(uint32_t tensor) {
  Copy& copy = copies_[tensor];
  if (!copy.is_spare) return;
  copy.is_spare = false;
  spare_.erase(tensor);
  spare_bytes_ -= bytes_of(tensor);
}

}  // namespace tencache
