// SPDX-License-Identifier: Apache-2.0
//
// Evictions and fetches one at a time: what a use, a stray write or a failing disk does in each of
// their phases. Death tests show the messages of bytes that are lost.
#include "engine/migrations.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "support/test_engine.h"
#include "tier/io_channel.h"

namespace tencache {
namespace {

/// Runs a hook between the moments in which a piece is prepared and moved, and another one after.
class HookedChannel final : public IoChannel {
 public:
  using Hook = std::function<void(IoDirection)>;
  HookedChannel(std::unique_ptr<IoChannel> channel, Hook before, Hook after)
      : channel_(std::move(channel)), before_(std::move(before)), after_(std::move(after)) {}

  TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                          PieceObserver* observer) override {
    HookedObserver hooked(*this, direction, observer);
    return channel_->transfer(direction, segments, &hooked);
  }
  const char* name() const override { return channel_->name(); }

 private:
  struct HookedObserver final : PieceObserver {
    HookedObserver(const HookedChannel& to, IoDirection towards, PieceObserver* inner)
        : channel(to), direction(towards), observer(inner) {}
    bool before_submit(size_t segment, uint64_t offset, size_t bytes) override {
      const bool goes_on = observer->before_submit(segment, offset, bytes);
      if (channel.before_) channel.before_(direction);
      return goes_on;
    }
    void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
      if (channel.after_) channel.after_(direction);
      observer->after_complete(segment, offset, bytes);
    }
    const HookedChannel& channel;
    const IoDirection direction;
    PieceObserver* const observer;
  };

  std::unique_ptr<IoChannel> channel_;
  const Hook before_;
  const Hook after_;
};

TestEngine::Adjust hooked(HookedChannel::Hook before, HookedChannel::Hook after) {
  return [before, after](EngineConfig& config) {
    config.disk->channel_factory = [before, after](int fd) -> Result<std::unique_ptr<IoChannel>> {
      return std::unique_ptr<IoChannel>(
          std::make_unique<HookedChannel>(make_thread_channel(fd, 2), before, after));
    };
  };
}

// A stray writer changes a byte while the piece is under way and changes it back before the proof:
// Note [Bounce ring].
TEST(MigrationsTest, ByteThatChangesAndChangesBackDuringTheWriteDoesNotReachTheSlot) {
  char* address = nullptr;
  const auto toggle = [&address](IoDirection direction) {
    if (direction == IoDirection::kWrite) address[100] = static_cast<char>(address[100] ^ 1);
  };
  TestEngine engine(hooked(toggle, toggle));
  address = engine.allocate(64 * kKiB);
  fill_pattern(address, 64 * kKiB, 3);
  ASSERT_TRUE(engine.evict(address));
  EXPECT_TRUE(has_pattern(address, 64 * kKiB, 3)) << "seen through the cold mapping";
  engine.use({address});
  EXPECT_TRUE(has_pattern(address, 64 * kKiB, 3));
}

}  // namespace
}  // namespace tencache
