// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/link_copies.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/move/move_request.h"

namespace tencache {
namespace {

// The speed of a link that was not measured.
constexpr double kUnknownLinkBytesPerS = 50e9;
// Requests are carried out in parts that take the link this long, so that room appears steadily.
constexpr double kAtOnceS = 300e-6;
// A kernel takes multiprocessors from the program's own, so it has to be this much faster.
constexpr double kKernelGainMin = 1.1;

bool is_worth_a_kernel(uint64_t engine_ns, uint64_t kernel_ns) {
  return static_cast<double>(kernel_ns) * kKernelGainMin < static_cast<double>(engine_ns);
}

}  // namespace

Status LinkCopies::measure(CUdeviceptr address, const HostBlock& block) {
  Times best;
  TENCACHE_RETURN_IF_ERROR(time_copies(address, block).move_to(&best));
  if (kernel_ != nullptr && block.is_pinned) {
    kernel_out_ = kernel_in_ = kernel_;
    const Result<Times> by_kernel = time_copies(address, block);
    // A kernel that is refused counts as endlessly slow, so it is not used.
    const Times times = by_kernel.is_ok() ? by_kernel.value() : Times{~0ull, ~0ull};
    kernel_out_ = is_worth_a_kernel(best.out_ns, times.out_ns) ? kernel_ : nullptr;
    kernel_in_ = is_worth_a_kernel(best.in_ns, times.in_ns) ? kernel_ : nullptr;
    if (kernel_out_ != nullptr) best.out_ns = times.out_ns;
    if (kernel_in_ != nullptr) best.in_ns = times.in_ns;
  }
  parts_.ledger.write_speed.add(block.bytes, best.out_ns);
  parts_.ledger.read_speed.add(block.bytes, best.in_ns);
  return Status::ok();
}

// Copies each way twice: the first copy pays for what the driver does once.
Result<LinkCopies::Times> LinkCopies::time_copies(CUdeviceptr address, const HostBlock& block) {
  Times times;
  for (int round = 0; round < 2; ++round) {
    const uint64_t begin_ns = now_ns();
    std::optional<StagedCopies> staged;
    Status status = queue_out(block, address);
    const Status out_done = parts_.streams.out->wait_until_idle();
    const uint64_t between_ns = now_ns();
    if (status.is_ok()) status = queue_in(block, address, *parts_.streams.in_ahead, &staged);
    const Status in_done = parts_.streams.in_ahead->wait_until_idle();
    TENCACHE_RETURN_IF_ERROR(status);
    TENCACHE_RETURN_IF_ERROR(out_done);
    TENCACHE_RETURN_IF_ERROR(in_done);
    times = {between_ns - begin_ns, now_ns() - between_ns};
  }
  return times;
}

Status LinkCopies::queue_out(const HostBlock& block, CUdeviceptr device) {
  CopyStream& out = *parts_.streams.out;
  if (block.is_pinned && kernel_out_ != nullptr) {
    return kernel_out_->to_host(out.handle(), block.memory, device, block.bytes);
  }
  if (block.is_pinned || staging_.out == nullptr) {
    return out.to_host(block.memory, device, block.bytes, block.is_pinned);
  }
  return StagedCopies(out, *staging_.out).to_host(block.memory, device, block.bytes);
}

Status LinkCopies::queue_in(const HostBlock& block, CUdeviceptr device, CopyStream& stream,
                            std::optional<StagedCopies>* staged) {
  if (block.is_pinned && kernel_in_ != nullptr) {
    return kernel_in_->to_device(stream.handle(), device, block.memory, block.bytes);
  }
  if (block.is_pinned || staging_.in == nullptr) {
    return stream.to_device(device, block.memory, block.bytes);
  }
  if (!staged->has_value()) staged->emplace(stream, *staging_.in);
  return (*staged)->to_device(device, block.memory, block.bytes);
}

uint64_t LinkCopies::bytes_in(double link_s) const {
  const double bytes_per_s = parts_.ledger.read_speed.bytes_per_s(kUnknownLinkBytesPerS);
  return static_cast<uint64_t>(bytes_per_s * link_s);
}

uint64_t LinkCopies::bytes_at_once() const { return std::min(bytes_in(kAtOnceS), kBytesAtOnceMax); }

}  // namespace tencache
