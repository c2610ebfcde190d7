// SPDX-License-Identifier: Apache-2.0
//
// The recorded history of a GPU's memory, through PyTorch's own interface: which entries there are,
// their order, streams, stacks and metadata. Nothing is recorded when the history is off.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda_allocator_fixture.h"

namespace tencache::shim {
namespace {

using Entry = CudaHistory::Entry;
using When = CudaHistory::When;

std::shared_ptr<c10::GatheredContext> gather_stack() {
  return std::make_shared<c10::GatheredContext>();
}

class CudaHistoryTest : public CudaPoolTest {
 protected:
  void record(When when, size_t entries_max = 100, const std::vector<std::string>& skipped = {}) {
    cuda_->recordHistory(true, &gather_stack, entries_max, when, true, skipped);
  }
  std::vector<Entry> entries() { return cuda_->snapshot({0, 0}, true).device_traces.at(0); }
  std::vector<Entry::Action> actions() {
    std::vector<Entry::Action> all;
    for (const Entry& entry : entries()) all.push_back(entry.action_);
    return all;
  }
};

TEST_F(CudaHistoryTest, EntriesTellWhatHappenedInItsOrder) {
  start();
  record(When::NEVER);
  EXPECT_TRUE(cuda_->isHistoryEnabled());
  cuda_->setUserMetadata("first step");
  c10::DataPtr block = allocate(1000);
  const auto address = reinterpret_cast<size_t>(block.get());
  cuda_->setUserMetadata("");
  block.clear();
  const std::vector<Entry> told = entries();
  ASSERT_EQ(told.size(), 4u);
  EXPECT_EQ(told[0].action_, Entry::SEGMENT_ALLOC);
  EXPECT_EQ(told[0].size_, 2 * kMiB);
  EXPECT_EQ(told[1].action_, Entry::ALLOC);
  EXPECT_EQ(told[2].action_, Entry::FREE_REQUESTED);
  EXPECT_EQ(told[3].action_, Entry::FREE_COMPLETED);
  for (size_t index = 1; index < 4; ++index) {
    EXPECT_EQ(told[index].addr_, address);
    EXPECT_EQ(told[index].size_, 1000u);
    EXPECT_EQ(told[index].stream_, stream_);
    EXPECT_EQ(told[index].context_, nullptr);
    EXPECT_GE(told[index].time_.t_, told[index - 1].time_.t_);
  }
  EXPECT_EQ(told[1].user_metadata_, "first step");
  EXPECT_EQ(told[2].user_metadata_, "");
  cuda_->emptyCache({0, 0});
  // The SNAPSHOT entry comes from the earlier snapshot.
  EXPECT_EQ(actions(), (std::vector<Entry::Action>{Entry::SEGMENT_ALLOC, Entry::ALLOC,
                                                   Entry::FREE_REQUESTED, Entry::FREE_COMPLETED,
                                                   Entry::SNAPSHOT, Entry::SEGMENT_FREE}));
}

// The first round frees a block of a segment, the second one an extent. Another stream uses both,
// too.
TEST_F(CudaHistoryTest, AFreeIsCompletedWhenStreamsAreDone) {
  for (const uint64_t bytes : {uint64_t{1000}, uint64_t{kExtent}}) {
    start();
    CUstream other = make_stream();
    c10::DataPtr shared = allocate(bytes);
    record(When::NEVER);
    cuda_->recordStream(shared, as_torch(other));
    driver_->hold(other);
    shared.clear();
    EXPECT_EQ(actions(), (std::vector<Entry::Action>{Entry::FREE_REQUESTED})) << bytes;
    driver_->let_go();
    driver_->wait_until_idle();
    cuda_->emptyCache({0, 0});
    EXPECT_EQ(actions(), (std::vector<Entry::Action>{Entry::FREE_REQUESTED, Entry::SNAPSHOT,
                                                     Entry::FREE_COMPLETED, Entry::SEGMENT_FREE}))
        << bytes;
    cuda_->recordHistory(false, nullptr, 0, When::NEVER, true, {});
    driver_->wait_until_idle();
    allocator_.reset();
    for (const CUstream stream : std::exchange(streams_, {})) {
      driver_->api().cuStreamDestroy(stream);
    }
    context_.reset();
  }
}

TEST_F(CudaHistoryTest, StacksAreKeptWithWhatIsAllocated) {
  start();
  const c10::DataPtr before = allocate(1000);
  record(When::STATE);
  c10::DataPtr block = allocate(2000);
  const auto stack_of = [&](const c10::DataPtr& pointer) {
    for (const auto& segment : cuda_->snapshot({0, 0}, false).segments) {
      size_t at = segment.address;
      for (const auto& seen : segment.blocks) {
        if (at == reinterpret_cast<size_t>(pointer.get())) return seen.context_when_allocated;
        at += seen.size;
      }
    }
    return std::shared_ptr<c10::GatheredContext>();
  };
  EXPECT_NE(stack_of(block), nullptr);
  EXPECT_EQ(stack_of(before), nullptr);
  EXPECT_EQ(entries().at(0).context_, nullptr) << "of the state alone";
  // A block freed after recording ended leaves no stack for the next one.
  cuda_->recordHistory(false, nullptr, 0, When::NEVER, false, {});
  EXPECT_NE(stack_of(block), nullptr);
  const void* const address = block.get();
  block.clear();
  block = allocate(2000);
  ASSERT_EQ(block.get(), address);
  EXPECT_EQ(stack_of(block), nullptr);
  EXPECT_TRUE(entries().empty());
}

TEST_F(CudaHistoryTest, TheLastEntriesAreKeptAndActionsMayBeLeftOut) {
  config_.heap.strict = true;
  start();
  record(When::ALL, 3, {"free_completed", "segment_alloc", "snapshot"});
  const c10::DataPtr first = allocate(1000);
  allocate(2000).clear();
  EXPECT_THROW((void)allocate(128 * kMiB), c10::OutOfMemoryError);
  const std::vector<Entry> told = entries();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].action_, Entry::ALLOC);
  EXPECT_EQ(told[1].action_, Entry::FREE_REQUESTED);
  EXPECT_NE(told[1].context_, nullptr);
  EXPECT_EQ(told[2].action_, Entry::OOM);
  EXPECT_EQ(told[2].size_, 128 * kMiB);
}

}  // namespace
}  // namespace tencache::shim
