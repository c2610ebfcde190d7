// SPDX-License-Identifier: Apache-2.0
//
// How fast does the disk tier move extents? Each process makes one measurement: it takes slots in a
// spill file, writes them twice and reads them once, and prints bytes per second of each pass as
// one line of JSON. The first write goes to blocks that the file system has reserved and never
// written; the second overwrites, as an eviction does that reuses a slot. benchmarks/disk_tier.py
// runs this beside fio.
//
// Transfers are batches of slots, as the engine hands them to the tier, from two buffers in turn.
// Large transfers thus find no memory in the cache. With --hash an observer computes the content
// hash of each slot and checks reads against it, as the engine does; a wrong byte then ends the
// program. With --copy writes go through the tier's own buffers, as an eviction's do. io_uring has
// these buffers registered unless --plain-buffers is given.
#include "tier/disk_tier.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "tier/content_hash.h"

namespace tencache {
namespace {

struct Job {
  std::string directory = ".";
  uint64_t slots = 64;
  uint64_t slot_bytes = 64 * kMiB;
  uint64_t slots_per_transfer = 1;
  bool hash = false;
  bool copy = false;
  DiskTierConfig config;
};

class Buffer {
 public:
  explicit Buffer(uint64_t bytes) : bytes_(round_up(bytes, 2 * kMiB)) {
    void* memory = mmap(nullptr, bytes_ + 2 * kMiB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TENCACHE_CHECK(memory != MAP_FAILED, "no memory for %llu bytes",
                   static_cast<unsigned long long>(bytes));
    // Extents are aligned to huge pages, which makes pinning them for the disk cheap.
    data_ = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(memory), 2 * kMiB));
    madvise(data_, bytes_, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < bytes_ / 8; ++i) {
      const uint64_t word = (i + 1) * 0x9e3779b97f4a7c15;
      memcpy(data_ + i * 8, &word, 8);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return data_; }

 private:
  uint64_t bytes_;
  char* data_;
};

/// The observer of a transfer. It copies written bytes, and hashes written and read ones, each if
/// the job asks for it.
class Observer : public PieceObserver {
 public:
  Observer(const Job& job, IoDirection direction, const std::vector<IoSegment>& segments)
      : job_(job), direction_(direction), segments_(segments), hashers_(segments.size()) {}

  bool before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) override {
    if (direction_ == IoDirection::kRead) return true;
    if (job_.copy) memcpy(memory, segments_[segment].memory_at(offset), bytes);
    if (job_.hash) hashers_[segment].append(memory, bytes);
    return true;
  }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    if (direction_ == IoDirection::kWrite || !job_.hash) return;
    hashers_[segment].append(segments_[segment].memory_at(offset), bytes);
  }
  ContentHash hash(size_t segment) const { return hashers_[segment].finish(); }

 private:
  const Job& job_;
  const IoDirection direction_;
  const std::vector<IoSegment>& segments_;  // with memory
  std::vector<ContentHasher> hashers_;
};

/// Moves all slots once; returns bytes per second.
double run_pass(DiskTier& tier, const Job& job, IoDirection direction,
                const std::vector<Slot>& slots, const Buffer (&buffers)[2],
                std::vector<ContentHash>& hashes) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t first = 0; first < slots.size(); first += job.slots_per_transfer) {
    const Buffer& buffer = buffers[first / job.slots_per_transfer % 2];
    std::vector<IoSegment> segments;
    for (size_t i = 0; i < job.slots_per_transfer && first + i < slots.size(); ++i) {
      segments.push_back(
          {buffer.data() + i * job.slot_bytes, slots[first + i].offset, slots[first + i].bytes});
    }
    Observer observer(job, direction, segments);
    std::vector<IoSegment> given = segments;
    if (direction == IoDirection::kWrite && job.copy) {
      for (IoSegment& segment : given) segment.memory = nullptr;
    }
    const TransferResult result = direction == IoDirection::kWrite ? tier.write(given, &observer)
                                                                   : tier.read(given, &observer);
    TENCACHE_CHECK(result.status.is_ok(), "%s", result.status.message().c_str());
    for (size_t i = 0; job.hash && i < segments.size(); ++i) {
      const ContentHash hash = observer.hash(i);
      if (direction == IoDirection::kWrite) hashes[first + i] = hash;
      TENCACHE_CHECK(hash == hashes[first + i], "slot %zu came back different", first + i);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(job.slots * job.slot_bytes) / seconds.count();
}

void run(Job& job) {
  job.config.directory = job.directory;
  job.config.quota_bytes = job.slots * job.slot_bytes + kGiB;
  Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(job.config);
  TENCACHE_CHECK(tier.is_ok(), "%s", tier.status().message().c_str());
  std::vector<Slot> slots;
  for (uint64_t i = 0; i < job.slots; ++i) {
    Result<Slot> slot = tier.value()->allocate(job.slot_bytes);
    TENCACHE_CHECK(slot.is_ok(), "%s", slot.status().message().c_str());
    slots.push_back(slot.value());
  }
  const uint64_t transfer_bytes = job.slots_per_transfer * job.slot_bytes;
  const Buffer buffers[2] = {Buffer(transfer_bytes), Buffer(transfer_bytes)};
  std::vector<ContentHash> hashes(job.slots);
  const auto pass = [&](IoDirection direction) {
    return run_pass(*tier.value(), job, direction, slots, buffers, hashes);
  };
  const double first_write = pass(IoDirection::kWrite);
  const double write = pass(IoDirection::kWrite);
  const double read = pass(IoDirection::kRead);
  printf(
      "{\"channel\": \"%s\", \"direct_io\": %s, \"slots\": %llu, \"slot_bytes\": %llu, "
      "\"slots_per_transfer\": %llu, \"hash\": %s, \"first_write_bytes_per_s\": %.0f, "
      "\"write_bytes_per_s\": %.0f, \"read_bytes_per_s\": %.0f}\n",
      tier.value()->channel_name(), tier.value()->uses_direct_io() ? "true" : "false",
      static_cast<unsigned long long>(job.slots), static_cast<unsigned long long>(job.slot_bytes),
      static_cast<unsigned long long>(job.slots_per_transfer), job.hash ? "true" : "false",
      first_write, write, read);
}

bool parse(int count, char** words, Job& job) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const std::string_view text = equals == std::string_view::npos ? "" : word.substr(equals + 1);
    const Result<uint64_t> number = parse_bytes(text);
    if (name == "--directory" && !text.empty()) {
      job.directory = text;
    } else if (name == "--slots" && number.is_ok()) {
      job.slots = number.value();
    } else if (name == "--slot" && number.is_ok()) {
      job.slot_bytes = number.value();
    } else if (name == "--slots-per-transfer" && number.is_ok()) {
      job.slots_per_transfer = number.value();
    } else if (word == "--hash") {
      job.hash = true;
    } else if (word == "--copy") {
      job.copy = true;
    } else if (word == "--plain-buffers") {
      job.config.registers_buffers = false;
    } else if (word == "--threads") {
      job.config.io_uring = Choice::kOff;
    } else if (word == "--buffered") {
      job.config.direct_io = Choice::kOff;
    } else {
      return false;
    }
  }
  return job.slots > 0 && job.slot_bytes % kIoAlignment == 0 && job.slot_bytes > 0 &&
         job.slots_per_transfer > 0;
}

}  // namespace
}  // namespace tencache

int main(int count, char** words) {
  tencache::Job job;
  if (!tencache::parse(count, words, job)) {
    fprintf(
        stderr,
        "usage: disk_tier [--directory=DIR] [--slots=64] [--slot=64MiB] "
        "[--slots-per-transfer=1] [--hash] [--copy] [--plain-buffers] [--threads] [--buffered]\n");
    return 2;
  }
  tencache::run(job);
  return 0;
}
