// SPDX-License-Identifier: Apache-2.0
//
// The operations of the address arena. The two that replace the memory behind an address never show
// a reader anything in between.
#include "platform/address_arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/units.h"
#include "support/accessible.h"
#include "support/aligned_buffer.h"
#include "support/child_process.h"
#include "support/test_directory.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 4 * kMiB + 3 * kPageBytes;

class AddressArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<AddressArena>> arena = AddressArena::reserve(64 * kMiB, 64 * kMiB);
    ASSERT_TRUE(arena.is_ok()) << arena.status().message();
    arena_ = std::move(arena).value();
  }

  /// A file of kBytes full of `value`.
  int make_file(char value) {
    const int fd = open(directory_.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    AlignedBuffer buffer(kBytes);
    memset(buffer.data(), value, kBytes);
    EXPECT_EQ(pwrite(fd, buffer.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
    return fd;
  }

  TestDirectory directory_;
  std::unique_ptr<AddressArena> arena_;
};

TEST_F(AddressArenaTest, ReservesAlignedAddressesWithoutAccess) {
  EXPECT_EQ(arena_->bytes(), 64 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena_->base()) % kGranuleBytes, 0u);
  EXPECT_TRUE(arena_->contains(arena_->base()));
  EXPECT_TRUE(arena_->contains(arena_->base() + arena_->bytes() - 1));
  EXPECT_FALSE(arena_->contains(arena_->base() + arena_->bytes()));
  EXPECT_FALSE(arena_->contains(arena_->base() - 1));
  EXPECT_FALSE(arena_->contains(nullptr));
  EXPECT_FALSE(is_readable(arena_->base()));
}

TEST_F(AddressArenaTest, TakesLessThanItWishedWhereTheKernelRefuses) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer's address space ends before that";
  Result<std::unique_ptr<AddressArena>> arena = AddressArena::reserve(uint64_t{1} << 47, 64 * kGiB);
  ASSERT_TRUE(arena.is_ok()) << arena.status().message();
  EXPECT_LT(arena.value()->bytes(), uint64_t{1} << 47);
  EXPECT_GE(arena.value()->bytes(), 64 * kGiB);
}

TEST_F(AddressArenaTest, SaysWhatToRaiseWhenAddressesAreLimited) {
  if (kHasSanitizer) GTEST_SKIP() << "a sanitizer maps more than any limit on addresses allows";
  const int outcome = run_in_child([] {
    const rlimit limit = {4 * kGiB, 4 * kGiB};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const Result<std::unique_ptr<AddressArena>> refused =
        AddressArena::reserve(128 * kGiB, 3 * kGiB);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
    for (const char* part : {"ulimit -v", "3.00 GiB", "--device-memory", "takes half of it"}) {
      EXPECT_NE(refused.status().message().find(part), std::string::npos)
          << part << " is not in: " << refused.status().message();
    }
    // Half of what is left is taken, so that the program has addresses, too.
    const Result<std::unique_ptr<AddressArena>> arena = AddressArena::reserve(128 * kGiB, kGiB);
    ASSERT_TRUE(arena.is_ok()) << arena.status().message();
    EXPECT_GE(arena.value()->bytes(), kGiB);
    EXPECT_LE(arena.value()->bytes(), 2 * kGiB);
    void* other = mmap(nullptr, kGiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(other, MAP_FAILED);
  });
  EXPECT_EQ(outcome, 0);
}

TEST_F(AddressArenaTest, RefusesKernelsWithOtherPages) {
  EXPECT_TRUE(AddressArena::expect_page_size(4 * kKiB).is_ok());
  const Status refused = AddressArena::expect_page_size(64 * kKiB);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("64.0 KiB"));
}

TEST_F(AddressArenaTest, CommittedMemoryIsZeroAndDecommittedIsGone) {
  char* address = arena_->base() + kGranuleBytes;
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  for (uint64_t offset = 0; offset < kBytes; offset += kPageBytes) ASSERT_EQ(address[offset], 0);
  EXPECT_FALSE(is_readable(address - 1));
  EXPECT_FALSE(is_readable(address + kBytes));
  memset(address, 1, kBytes);
  ASSERT_TRUE(arena_->decommit(address, kBytes));
  EXPECT_FALSE(is_readable(address));
  EXPECT_FALSE(is_readable(address + kBytes - 1));
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  EXPECT_EQ(address[0], 0);
  EXPECT_EQ(address[kBytes - 1], 0);
}

TEST_F(AddressArenaTest, ProtectedMemoryCanBeReadOnly) {
  char* address = arena_->base();
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  memset(address, 5, kBytes);
  ASSERT_TRUE(arena_->protect(address, kBytes).is_ok());
  EXPECT_TRUE(is_readable(address));
  EXPECT_FALSE(overwrite_with_zero(address));
  EXPECT_FALSE(overwrite_with_zero(address + kBytes - 1));
  EXPECT_EQ(address[0], 5);
  ASSERT_TRUE(arena_->unprotect(address, kBytes).is_ok());
  EXPECT_TRUE(overwrite_with_zero(address));
  EXPECT_EQ(address[0], 0);
}

TEST_F(AddressArenaTest, ColdMappingShowsTheFileAndKeepsWritesPrivate) {
  const int fd = make_file(7);
  char* address = arena_->base();
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  ASSERT_TRUE(arena_->map_cold(address, kBytes, fd, 0).is_ok());
  EXPECT_EQ(address[0], 7);
  EXPECT_EQ(address[kBytes - 1], 7);
  address[kPageBytes] = 8;
  EXPECT_TRUE(overwrite_with_zero(address));
  char byte = 0;
  ASSERT_EQ(pread(fd, &byte, 1, kPageBytes), 1);
  EXPECT_EQ(byte, 7);
  close(fd);
  EXPECT_EQ(address[2 * kPageBytes], 7) << "the mapping outlives the descriptor";
  EXPECT_EQ(address[kPageBytes], 8);
}

TEST_F(AddressArenaTest, MappingOfABadDescriptorIsAnErrorThatNamesTheRange) {
  char* address = arena_->base();
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  address[0] = 3;
  const Status status = arena_->map_cold(address, kBytes, -1, 0);
  ASSERT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("mapping a slot of 4.01 MiB"), std::string::npos)
      << status.message();
  EXPECT_EQ(address[0], 3) << "nothing was replaced";
}

TEST_F(AddressArenaTest, ScratchMovesWithItsBytesAndIsGoneAfterwards) {
  char* address = arena_->base() + 2 * kGranuleBytes;
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  memset(address, 1, kBytes);
  Result<char*> scratch = arena_->make_scratch(kBytes);
  ASSERT_TRUE(scratch.is_ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.value()) % kGranuleBytes, 0u);
  EXPECT_FALSE(arena_->contains(scratch.value()));
  memset(scratch.value(), 2, kBytes);
  ASSERT_TRUE(arena_->move_onto(scratch.value(), address, kBytes).is_ok());
  for (uint64_t offset = 0; offset < kBytes; offset += kPageBytes) ASSERT_EQ(address[offset], 2);
  EXPECT_FALSE(is_readable(scratch.value()));
  EXPECT_FALSE(is_readable(address + kBytes));
}

TEST_F(AddressArenaTest, FramesMoveAndLeaveTheirOldRangeEmpty) {
  if (!arena_->can_keep_source()) GTEST_SKIP() << "the kernel has no MREMAP_DONTUNMAP";
  char* source = arena_->base();
  char* address = arena_->base() + 8 * kGranuleBytes;
  ASSERT_TRUE(arena_->commit(source, kBytes).is_ok());
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  memset(source, 2, kBytes);
  memset(address, 1, kBytes);
  ASSERT_TRUE(arena_->move_frames(source, address, kBytes).is_ok());
  for (uint64_t offset = 0; offset < kBytes; offset += kPageBytes) {
    ASSERT_EQ(address[offset], 2);
    ASSERT_EQ(source[offset], 0) << "still the arena's, so nobody else is given these addresses";
  }
}

// Invariant: there is never a moment at which an address shows wrong bytes.
TEST_F(AddressArenaTest, ReaderSeesTheSameBytesWhateverStandsBehindThem) {
  const int fd = make_file(9);
  char* address = arena_->base();
  ASSERT_TRUE(arena_->commit(address, kBytes).is_ok());
  memset(address, 9, kBytes);
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> wrong{0};
  {
    std::jthread reader([&] {
      const volatile char* bytes = address;
      while (!is_over.load()) {
        for (uint64_t offset = 0; offset < kBytes; offset += kPageBytes / 2) {
          if (bytes[offset] != 9) wrong.fetch_add(1);
        }
      }
    });
    for (int round = 0; round < 200; ++round) {
      ASSERT_TRUE(arena_->protect(address, kBytes).is_ok());
      ASSERT_TRUE(arena_->map_cold(address, kBytes, fd, 0).is_ok());
      Result<char*> scratch = arena_->make_scratch(kBytes);
      ASSERT_TRUE(scratch.is_ok());
      memset(scratch.value(), 9, kBytes);
      ASSERT_TRUE(arena_->protect(address, kBytes).is_ok());
      ASSERT_TRUE(arena_->move_onto(scratch.value(), address, kBytes).is_ok());
    }
    is_over.store(true);
  }
  EXPECT_EQ(wrong.load(), 0u);
  close(fd);
}

}  // namespace
}  // namespace tencache
