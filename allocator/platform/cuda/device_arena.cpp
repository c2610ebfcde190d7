// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/device_arena.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

CUmemAccessDesc full_access_of(int device) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

}  // namespace

Result<std::unique_ptr<DeviceArena>> DeviceArena::reserve(const Gpu& gpu, uint64_t bytes,
                                                          CopyPause* pause) {
  const uint64_t granularity = gpu.facts().granularity_bytes;
  const uint64_t reserved_bytes = round_up(bytes, granularity);
  CUdeviceptr base = 0;
  TENCACHE_RETURN_IF_ERROR(
      gpu.call("Cannot reserve " + format_bytes(reserved_bytes) + " of addresses on the GPU",
               [&](const DriverApi& driver) {
                 return driver.cuMemAddressReserve(&base, reserved_bytes, granularity, 0, 0);
               }));
  return std::unique_ptr<DeviceArena>(new DeviceArena(gpu, base, reserved_bytes, pause));
}

DeviceArena::DeviceArena(const Gpu& gpu, CUdeviceptr base, uint64_t bytes, CopyPause* pause)
    : gpu_(gpu),
      base_(base),
      bytes_(bytes),
      pause_(pause),
      devices_{full_access_of(gpu.device())} {}

DeviceArena::~DeviceArena() {
  const CallScope scope(gpu_.driver(), gpu_.context());
  if (scope.status().is_ok()) (void)gpu_.driver().cuMemAddressFree(base_, bytes_);
}

Status DeviceArena::map(std::span<const FramePlace> places) {
  if (places.empty()) return Status::ok();
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  Handles mapped;
  Status status = map_handles(places, &mapped);
  if (status.is_ok()) status = grant_access(places, note_mapped(mapped));
  if (status.is_ok()) return status;
  // Nobody has used the mapped handles yet, so they can be unmapped at once.
  for (const auto& [address, bytes] : mapped) {
    (void)take_mapped(address, bytes);
    const Status unmapped = cuda_status(gpu_.driver(), gpu_.driver().cuMemUnmap(address, bytes),
                                        "Cannot unmap " + format_bytes(bytes) + " of GPU memory");
    if (!unmapped.is_ok() && may_call_driver()) {
      TENCACHE_LOG_WARNING("%s", unmapped.message().c_str());
    }
  }
  return status;
}

Status DeviceArena::map_handles(std::span<const FramePlace> places, Handles* mapped) {
  const DriverApi& driver = gpu_.driver();
  for (const FramePlace& place : places) {
    TENCACHE_DCHECK(contains(place.address) && contains(place.address + place.frame.bytes - 1));
    CUdeviceptr address = place.address;
    for (const FrameHandle& handle : place.frame.handles) {
      TENCACHE_RETURN_IF_ERROR(
          cuda_status(driver, driver.cuMemMap(address, handle.bytes, 0, handle.handle, 0),
                      "Cannot map " + format_bytes(handle.bytes) + " of GPU memory"));
      mapped->emplace(address, handle.bytes);
      address += handle.bytes;
    }
  }
  return Status::ok();
}

// Makes one call for each run of neighbours.
Status DeviceArena::grant_access(std::span<const FramePlace> places,
                                 std::span<const CUmemAccessDesc> devices) {
  const CopyPause::Scope paused(pause_);
  for (size_t first = 0; first < places.size();) {
    const CUdeviceptr begin = places[first].address;
    CUdeviceptr end = begin;
    while (first < places.size() && places[first].address == end)
      end += places[first++].frame.bytes;
    TENCACHE_RETURN_IF_ERROR(grant_access(begin, end - begin, devices));
  }
  return Status::ok();
}

Status DeviceArena::grant_access(CUdeviceptr address, uint64_t bytes,
                                 std::span<const CUmemAccessDesc> devices) {
  const DriverApi& driver = gpu_.driver();
  return cuda_status(driver, driver.cuMemSetAccess(address, bytes, devices.data(), devices.size()),
                     "Cannot give the GPU access to " + format_bytes(bytes) + " of memory");
}

// Notes that these handles are mapped, and returns the devices that may use them. A device that
// becomes a peer later finds the handles noted.
std::vector<CUmemAccessDesc> DeviceArena::note_mapped(const Handles& handles) {
  MutexLock lock(mutex_);
  mapped_.insert(handles.begin(), handles.end());
  return devices_;
}

// Handles that are about to be unmapped are taken out first, so that no peer is granted access to
// them.
DeviceArena::Handles DeviceArena::take_mapped(CUdeviceptr address, uint64_t bytes) {
  MutexLock lock(mutex_);
  Handles taken;
  const auto end = mapped_.lower_bound(address + bytes);
  for (auto next = mapped_.lower_bound(address); next != end;) {
    taken.insert(mapped_.extract(next++));
  }
  return taken;
}

Status DeviceArena::add_peer(int device) {
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  const CUmemAccessDesc peer = full_access_of(device);
  MutexLock lock(mutex_);
  const CopyPause::Scope paused(pause_);
  for (auto next = mapped_.begin(); next != mapped_.end();) {
    const CUdeviceptr begin = next->first;
    CUdeviceptr end = begin;
    for (; next != mapped_.end() && next->first == end; ++next) end += next->second;
    TENCACHE_RETURN_IF_ERROR(grant_access(begin, end - begin, {&peer, 1}));
  }
  const bool is_known = std::ranges::any_of(
      devices_, [device](const CUmemAccessDesc& known) { return known.location.id == device; });
  if (!is_known) devices_.push_back(peer);
  return Status::ok();
}

Status DeviceArena::unmap(CUdeviceptr address, uint64_t bytes) {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  Handles handles = take_mapped(address, bytes);
  Status status = cuda_status(driver, driver.cuMemUnmap(address, bytes),
                              "Cannot unmap " + format_bytes(bytes) + " of GPU memory");
  if (!status.is_ok()) {
    MutexLock lock(mutex_);
    mapped_.merge(handles);
  }
  return status;
}

}  // namespace tencache
