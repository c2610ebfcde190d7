// SPDX-License-Identifier: Apache-2.0
//
// The steps of the model. A system call on an extent that is inside a protected window is refused
// with EFAULT (docs/cpu.md); the model repeats it, as a program would have to.
#include "support/allocation_model.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tencache {
namespace {

constexpr uint64_t kPipeBytesMax = 32 * kKiB;  // fits into a pipe's buffer

std::string describe(const char* what, const char* address, uint64_t bytes, uint64_t offset) {
  char text[160];
  snprintf(text, sizeof text, "%s: allocation %p of %llu bytes differs at offset %llu", what,
           static_cast<const void*>(address), static_cast<unsigned long long>(bytes),
           static_cast<unsigned long long>(offset));
  return text;
}

}  // namespace

AllocationModel::AllocationModel(TestEngine& engine, Random& random, const Limits& limits)
    : engine_(engine), random_(random), limits_(limits) {
  TENCACHE_CHECK(pipe(pipe_) == 0, "errno %d", errno);
}

AllocationModel::~AllocationModel() {
  while (!frames_.empty()) (void)close();
  while (!holds_.empty()) (void)unhold();
  for (const auto& allocation : live_) engine_.free(allocation->address);
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

void AllocationModel::share(const char* address, uint64_t bytes, uint64_t seed) {
  shared_.push_back({address, bytes, seed});
}

std::string AllocationModel::step() {
  const StepWeights& weights = limits_.weights;
  const std::pair<unsigned, std::string (AllocationModel::*)()> actions[] = {
      {weights.allocate, &AllocationModel::allocate},
      {weights.free, &AllocationModel::free_one},
      {weights.open, &AllocationModel::open},
      {weights.close, &AllocationModel::close},
      {weights.raw_read, &AllocationModel::raw_read},
      {weights.raw_write, &AllocationModel::raw_write},
      {weights.system_read, &AllocationModel::system_read},
      {weights.system_write, &AllocationModel::system_write},
      {weights.hold, &AllocationModel::hold},
      {weights.unhold, &AllocationModel::unhold},
      {weights.keep_resident, &AllocationModel::keep_resident},
  };
  unsigned total = weights.evict_all + weights.drop_cached + weights.step_mark;
  for (const auto& [weight, action] : actions) total += weight;
  auto draw = static_cast<unsigned>(random_.between(0, total - 1));
  for (const auto& [weight, action] : actions) {
    if (draw < weight) return (this->*action)();
    draw -= weight;
  }
  if (draw < weights.evict_all) {
    engine_->evictor().evict_all();
  } else if (draw < weights.evict_all + weights.drop_cached) {
    engine_->heap().drop_cached(random_.between(1, 8 * kMiB));
  } else {
    engine_->gate().on_step();
  }
  return "";
}

std::string AllocationModel::finish() {
  while (!frames_.empty()) {
    if (std::string fault = close(); !fault.empty()) return fault;
  }
  while (!holds_.empty()) (void)unhold();
  for (const auto& allocation : live_) {
    const Access access = {allocation->address, AccessMode::kRead};
    engine_->gate().open(0, {&access, 1});
    std::string fault = compare_whole(*allocation);
    engine_->gate().close();
    if (!fault.empty()) return "at the end, " + fault;
  }
  return "";
}

// Most sizes are up to 32 pages; some are small blocks, odd sizes, or about as large as a huge
// page.
uint64_t AllocationModel::random_bytes() {
  const uint64_t draw = random_.between(0, 99);
  if (draw < 8) return random_.between(1, kPageBytes - 1);
  if (draw < 20) return kPageBytes;
  if (draw < 40) return random_.between(kPageBytes, 64 * kKiB);
  if (draw < 96) return kPageBytes * random_.between(1, 32);
  if (draw < 98) return random_.between(kMiB, 3 * kMiB);
  return kGranuleBytes;
}

std::string AllocationModel::allocate() {
  const uint64_t bytes = random_bytes();
  while (live_bytes_ + bytes > limits_.live_bytes_max) {
    if (std::string fault = free_one(); !fault.empty()) return fault;
  }
  const Result<void*> address = engine_->allocate(bytes);
  if (!address.is_ok()) {
    if (address.status().code() != StatusCode::kOutOfMemory) return address.status().message();
    ++refused_;
    return live_.empty() ? "" : free_one();
  }
  auto allocation = std::make_unique<Allocation>();
  allocation->address = static_cast<char*>(address.value());
  allocation->bytes = bytes;
  allocation->copy.resize(bytes);
  const Extent* extent = engine_.extent(allocation->address);
  if (extent == nullptr) small_bytes_ += malloc_usable_size(allocation->address);
  live_bytes_ += bytes;
  live_.push_back(std::move(allocation));
  write({live_.back().get(), 0, bytes});
  return "";
}

std::string AllocationModel::free_one() {
  if (live_.empty()) return "";
  const size_t index = random_.between(0, live_.size() - 1);
  const std::unique_ptr<Allocation> allocation = std::move(live_[index]);
  live_[index] = std::move(live_.back());
  live_.pop_back();
  // This happens under an open gate too: an op's inputs may die before it ends.
  if (engine_.extent(allocation->address) == nullptr) {
    small_bytes_ -= malloc_usable_size(allocation->address);
  } else {
    for (Frame& frame : frames_) std::erase(frame.pinned, engine_.extent(allocation->address));
  }
  live_bytes_ -= allocation->bytes;
  if (allocation->is_kept) kept_bytes_ -= allocation->bytes;
  engine_.free(allocation->address);
  return "";
}

std::string AllocationModel::open() {
  if (live_.empty() || frames_.size() >= limits_.depth_max) return close();
  Frame frame;
  std::vector<Access> accesses;
  std::vector<Allocation*> written;
  std::vector<Allocation*> used;
  for (uint64_t count = random_.between(1, 5); count > 0; --count) {
    Allocation& allocation = random_allocation();
    const auto mode = static_cast<AccessMode>(random_.between(1, 4));
    accesses.push_back({allocation.address + random_.between(0, allocation.bytes - 1), mode});
    if (mode == AccessMode::kName) continue;
    used.push_back(&allocation);
    if (is_write(mode)) written.push_back(&allocation);
    const Extent* extent = engine_.extent(allocation.address);
    if (extent != nullptr) frame.pinned.push_back(extent);
  }
  for (const Shared& shared : shared_) {
    if (random_.chance(0.2)) accesses.push_back({shared.address, AccessMode::kRead});
  }
  engine_->gate().open(static_cast<uint32_t>(random_.between(0, 3)), accesses);
  frames_.push_back(std::move(frame));
  if (std::string fault = check_pinned(); !fault.empty()) return fault;
  for (const Allocation* allocation : used) {
    if (std::string fault = compare_whole(*allocation); !fault.empty()) return "in an op, " + fault;
  }
  for (const Shared& shared : shared_) {
    const bool named = std::ranges::any_of(
        accesses, [&](const Access& access) { return access.address == shared.address; });
    if (!named) continue;
    const uint64_t offset = first_difference(shared.address, shared.bytes, shared.seed);
    if (offset != shared.bytes) return describe("shared", shared.address, shared.bytes, offset);
  }
  for (Allocation* allocation : written) {
    const uint64_t offset = random_.between(0, allocation->bytes - 1);
    write({allocation, offset, random_.between(1, allocation->bytes - offset)});
  }
  return "";
}

std::string AllocationModel::close() {
  if (frames_.empty()) return "";
  std::string fault = check_pinned();
  frames_.pop_back();
  engine_->gate().close();
  return fault;
}

std::string AllocationModel::check_pinned() const {
  for (const Frame& frame : frames_) {
    for (const Extent* extent : frame.pinned) {
      if (!Extent::usable_in(extent->state())) return "a pinned extent is not resident";
    }
  }
  return "";
}

AllocationModel::Slice AllocationModel::random_slice(uint64_t bytes_max) {
  Allocation& allocation = random_allocation();
  const uint64_t offset = random_.between(0, allocation.bytes - 1);
  const uint64_t left = std::min(allocation.bytes - offset, bytes_max);
  return {&allocation, offset, random_.between(1, left)};
}

std::string AllocationModel::compare(const Slice& slice) const {
  if (memcmp(slice.address(), slice.copy(), slice.bytes) == 0) return "";
  uint64_t index = 0;
  while (index < slice.bytes && slice.address()[index] == slice.copy()[index]) ++index;
  return describe("slice", slice.allocation->address, slice.allocation->bytes,
                  slice.offset + index);
}

std::string AllocationModel::compare_whole(const Allocation& allocation) const {
  return compare({const_cast<Allocation*>(&allocation), 0, allocation.bytes});
}

void AllocationModel::write(const Slice& slice) {
  const uint64_t first = random_.next();
  char* copy = slice.copy();
  for (uint64_t index = 0; index < slice.bytes; ++index) {
    copy[index] = static_cast<char>(first + index * 7 + (index >> 8));
  }
  memcpy(slice.address(), copy, slice.bytes);
}

std::string AllocationModel::raw_read() {
  if (live_.empty()) return "";
  std::string fault = compare(random_slice(64 * kKiB));
  return fault.empty() ? "" : "unannounced read, " + fault;
}

std::string AllocationModel::raw_write() {
  if (!live_.empty()) write(random_slice(64 * kKiB));
  return "";
}

// The kernel reads an allocation: write(2) sends its bytes into a pipe.
std::string AllocationModel::system_read() {
  if (live_.empty()) return "";
  const Slice slice = random_slice(kPipeBytesMax);
  uint64_t sent = 0;
  while (sent < slice.bytes) {
    const ssize_t count = ::write(pipe_[1], slice.address() + sent, slice.bytes - sent);
    if (count < 0 && errno != EFAULT && errno != EINTR) return "write(2) failed";
    if (count > 0) sent += static_cast<uint64_t>(count);
  }
  std::vector<char> received(slice.bytes);
  uint64_t got = 0;
  while (got < slice.bytes) {
    const ssize_t count = ::read(pipe_[0], received.data() + got, slice.bytes - got);
    if (count <= 0) return "read(2) failed";
    got += static_cast<uint64_t>(count);
  }
  return memcmp(received.data(), slice.copy(), slice.bytes) == 0 ? "" : "write(2) sent other bytes";
}

// The kernel writes an allocation: read(2) fills it from a pipe.
std::string AllocationModel::system_write() {
  if (live_.empty()) return "";
  const Slice slice = random_slice(kPipeBytesMax);
  for (uint64_t index = 0; index < slice.bytes; ++index) {
    slice.copy()[index] = static_cast<char>(random_.next());
  }
  if (::write(pipe_[1], slice.copy(), slice.bytes) != static_cast<ssize_t>(slice.bytes)) {
    return "filling the pipe failed";
  }
  uint64_t got = 0;
  while (got < slice.bytes) {
    const ssize_t count = ::read(pipe_[0], slice.address() + got, slice.bytes - got);
    if (count < 0 && errno != EFAULT && errno != EINTR) return "read(2) failed";
    if (count > 0) got += static_cast<uint64_t>(count);
  }
  return "";
}

std::string AllocationModel::hold() {
  if (live_.empty() || holds_.size() >= 4) return unhold();
  std::vector<Access> accesses;
  for (uint64_t count = random_.between(1, 3); count > 0; --count) {
    accesses.push_back({random_allocation().address, AccessMode::kRead});
  }
  Hold* hold = engine_->gate().hold(accesses, random_.chance(0.5));
  if (hold == nullptr) return "";
  holds_.push_back(hold);
  for (const Access& access : accesses) {
    const Extent* extent = engine_.extent(access.address);
    if (extent != nullptr && !Extent::usable_in(extent->state())) return "a hold is not resident";
  }
  return "";
}

std::string AllocationModel::unhold() {
  if (holds_.empty()) return "";
  engine_->gate().unhold(holds_.back());
  holds_.pop_back();
  return "";
}

std::string AllocationModel::keep_resident() {
  if (live_.empty()) return "";
  Allocation& allocation = random_allocation();
  if (allocation.is_kept || kept_bytes_ + allocation.bytes > limits_.kept_bytes_max) return "";
  allocation.is_kept = true;
  kept_bytes_ += allocation.bytes;
  const Access access = {allocation.address, AccessMode::kRead};
  engine_->gate().keep_resident({&access, 1});
  return "";
}

}  // namespace tencache
