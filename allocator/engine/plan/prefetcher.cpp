// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/service_thread.h"
#include "base/stats.h"
#include "base/units.h"

namespace tencache {
namespace {

// Requests come in the order in which they are needed, so of more than this many the last are
// dropped: their ops fetch them, or the plan requests them again.
constexpr size_t kRequestsMax = 65'536;
// Room also appears unannounced, when the program frees, and an op's fetch ends unannounced, too.
// The worker notices room within the time in which the link moves this many bytes, or after
// kRoomPollMax at the latest, and the end of such a fetch within kDemandPoll.
constexpr double kRoomPollBytes = 5e6;
constexpr std::chrono::microseconds kRoomPollMax{500};
constexpr std::chrono::microseconds kDemandPoll{50};

std::chrono::nanoseconds room_poll(Mover& mover) {
  const double ns_per_byte = mover.ledger().read_speed.ns_per_byte(1e9);
  return std::min<std::chrono::nanoseconds>(
      kRoomPollMax, std::chrono::nanoseconds(static_cast<int64_t>(kRoomPollBytes * ns_per_byte)));
}

bool is_over(const MoveRequest& request) {
  return !request.is_current() || request.extent->state() == ExtentState::kResident;
}

// Counts fetches as uses, so that a request calls off an eviction that is requested or under way.
void count_as_uses(std::span<const MoveRequest> fetches) {
  for (const MoveRequest& fetch : fetches) raise_to(fetch.extent->last_use_at, fetch.given_at);
}

}  // namespace

Prefetcher::~Prefetcher() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

void Prefetcher::start() {
  worker_ = start_service_thread("tencache-fetch", [this] { work(); });
}

void Prefetcher::request(std::span<const MoveRequest> fetches) {
  MutexLock lock(mutex_);
  if (requests_.size() + fetches.size() > kRequestsMax) [[unlikely]] {
    std::erase_if(requests_, is_over);
    const size_t room = kRequestsMax - std::min(requests_.size(), kRequestsMax);
    fetches = fetches.first(std::min(fetches.size(), room));
  }
  count_as_uses(fetches);
  requests_.insert(requests_.end(), fetches.begin(), fetches.end());
  changed_.notify_one();
}

void Prefetcher::guess(std::vector<MoveRequest> fetches) {
  count_as_uses(fetches);
  MutexLock lock(mutex_);
  guesses_.assign(std::make_move_iterator(fetches.begin()), std::make_move_iterator(fetches.end()));
  has_guesses_.store(!guesses_.empty(), std::memory_order_relaxed);
  if (is_guess_) is_called_off_ = true;
  changed_.notify_one();
}

uint64_t Prefetcher::guessed_bytes() const {
  if (!has_guesses_.load(std::memory_order_relaxed)) return 0;
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const MoveRequest& request : guesses_) {
    if (request.is_current() && request.extent->state() == ExtentState::kCold) {
      bytes += request.bytes;
    }
  }
  return bytes;
}

void Prefetcher::forget() {
  MutexLock lock(mutex_);
  requests_.clear();
  if (!is_guess_) is_called_off_ = true;
}

bool Prefetcher::has_requests() const {
  MutexLock lock(mutex_);
  return is_at_work_ || !requests_.empty();
}

bool Prefetcher::has_requests_for(std::span<Extent* const> extents) const {
  MutexLock lock(mutex_);
  const auto is_for_one = [extents](const MoveRequest& request) {
    return std::ranges::find(extents, request.extent) != extents.end() && request.is_current() &&
           request.extent->state() == ExtentState::kCold;
  };
  return (in_hand_ && is_for_one(*in_hand_)) || std::ranges::any_of(requests_, is_for_one);
}

bool Prefetcher::is_at_work() const {
  MutexLock lock(mutex_);
  return is_at_work_;
}

void Prefetcher::on_room() {
  MutexLock lock(mutex_);
  if (has_work()) changed_.notify_one();
}

std::optional<MoveRequest> Prefetcher::take() {
  if (mover_.ledger().is_demanded()) return std::nullopt;
  MutexLock lock(mutex_);
  const bool is_guess = requests_.empty();
  if (is_stopping_ || (is_guess && !has_room_for_guess())) return std::nullopt;
  is_guess_ = is_guess;
  std::deque<MoveRequest>& from = is_guess ? guesses_ : requests_;
  MoveRequest request = std::move(from.front());
  from.pop_front();
  has_guesses_.store(!guesses_.empty(), std::memory_order_relaxed);
  is_called_off_ = false;
  if (!is_guess) in_hand_ = request;
  return request;
}

// Whether the first guess has room beside the headroom. Returns false also where nothing is
// guessed. Cached memory is room, too, where it serves any request.
bool Prefetcher::has_room_for_guess() const {
  if (guesses_.empty()) return false;
  const Budget& budget = heap_.budget();
  const uint64_t cached_bytes = heap_.can_use_any_cached() ? heap_.cached_bytes() : 0;
  const uint64_t needed_bytes = guesses_.front().bytes + headroom_of(budget.limit());
  return budget.free() + cached_bytes >= needed_bytes;
}

void Prefetcher::put_back(const MoveRequest& request) {
  MutexLock lock(mutex_);
  in_hand_.reset();
  if (is_called_off_) return;
  (is_guess_ ? guesses_ : requests_).push_front(request);
  has_guesses_.store(!guesses_.empty(), std::memory_order_relaxed);
}

void Prefetcher::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!is_stopping_ && !has_work()) changed_.wait(mutex_);
      while (!is_stopping_ && mover_.ledger().is_demanded()) changed_.wait_for(mutex_, kDemandPoll);
      if (is_stopping_) return;
      is_at_work_ = true;
    }
    const uint64_t lacking_bytes = mover_.prefetch(*this);
    // Freed memory is given back only where the request then has room.
    const bool is_enough = heap_.budget().free() + heap_.cached_bytes() >= lacking_bytes;
    const bool has_dropped =
        lacking_bytes > 0 && is_enough && heap_.drop_idle_cached(lacking_bytes) > 0;
    MutexLock lock(mutex_);
    is_at_work_ = false;
    in_hand_.reset();
    // Where nothing is lacking, guesses that are left have no room beside the headroom.
    const bool is_short = lacking_bytes > 0 ? !has_dropped : requests_.empty();
    if (is_short && has_work() && !is_stopping_) changed_.wait_for(mutex_, room_poll(mover_));
  }
}

}  // namespace tencache
