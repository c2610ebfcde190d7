// SPDX-License-Identifier: Apache-2.0
#include "abi/watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/clock.h"
#include "base/kept_fd.h"
#include "base/log.h"
#include "base/service_thread.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecond = 1e-9;  // seconds in a nanosecond

/// When the kernel started this process, in the kernel's ticks, or 0 if /proc does not tell.
uint64_t start_ticks() {
  constexpr int kFieldsBefore = 20;  // from the state on, which follows the name in parentheses
  char text[1024] = {};
  const UniqueFd file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  // The kernel answers at once, whatever locks the caller holds.
  // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
  if (!file.is_valid() || ::read(file.get(), text, sizeof text - 1) <= 0) return 0;
  const char* place = strrchr(text, ')');
  for (int field = 0; place != nullptr && field < kFieldsBefore; ++field) {
    place = strchr(place + 1, ' ');
  }
  return place != nullptr ? strtoull(place + 1, nullptr, 10) : 0;
}

/// Makes the page. Returns null, with errno set, where the kernel or the sandbox refuses. The
/// descriptor stays open for whoever looks for it.
LivePage* make_page() {
  UniqueFd made(memfd_create(kLivePageName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  UniqueFd file = above_standard(std::move(made));
  if (!file.is_valid() || ftruncate(file.get(), sizeof(LivePage)) != 0) return nullptr;
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  void* const memory =
      mmap(nullptr, sizeof(LivePage), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  // A child must not write to its parent's page.
  (void)madvise(memory, sizeof(LivePage), MADV_DONTFORK);
  (void)file.release();
  return static_cast<LivePage*>(memory);
}

/// Each word is stored after the words before it, so that a reader who sees a new word also sees
/// that the page is being written.
void store_word(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

template <typename Words>
void store_words(Words* target, const Words& source) {
  static_assert(sizeof(Words) % sizeof(uint64_t) == 0);
  uint64_t values[sizeof(Words) / sizeof(uint64_t)];
  memcpy(values, &source, sizeof values);
  auto* words = reinterpret_cast<uint64_t*>(target);
  for (const uint64_t value : values) store_word(*words++, value);
}

}  // namespace

void Watch::start(uint64_t started_ns, int rank) {
  owner_pid_ = getpid();
  started_ns_ = started_ns;
  page_ = make_page();
  if (page_ == nullptr) {
    TENCACHE_LOG_DEBUG("`tencache top` will not see this process: no page for it (errno %d)",
                       errno);
  } else {
    LivePage first;
    first.start_ticks = start_ticks();
    first.rank_plus_1 = static_cast<uint64_t>(rank) + 1;
    first.started_ns = started_ns;
    store_words(page_, first);
  }
  sample();
  try {
    thread_ = start_service_thread("tencache-watch", [this] { work(); });
  } catch (const std::system_error& error) {
    TENCACHE_LOG_DEBUG("no history is kept: no thread for it (%s)", error.what());
  }
}

// stop() does nothing in a forked child, which has the object and not the thread.
Watch::~Watch() {
  stop();
  if (thread_.joinable()) thread_.detach();
}

void Watch::stop() {
  if (getpid() != owner_pid_ || !thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    stopping_.notify_all();
  }
  thread_.join();
}

void Watch::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!is_stopping_) stopping_.wait_for(mutex_, kWatchInterval);
      if (is_stopping_) return;
    }
    sample();
  }
}

void Watch::sample() {
  const std::vector<LiveEngine> engines = sample_all();
  const uint64_t now = now_ns();
  MutexLock lock(mutex_);
  if (page_ != nullptr) publish(engines, now);
  if (samples_++ % samples_per_kept_ == 0) keep(sum_of(engines, now));
}

std::vector<LiveEngine> Watch::sample_all() const {
  std::vector<LiveEngine> engines;
  for (const EngineEntry& entry : engines_.all()) {
    if (!entry.engine->is_passive()) engines.push_back(sample_of(entry));
  }
  return engines;
}

LiveEngine Watch::sample_of(const EngineEntry& entry) {
  Engine& engine = *entry.engine;
  const Stats& stats = engine.settled_stats();
  LiveEngine seen;
  seen.ordinal = static_cast<uint64_t>(int64_t{entry.ordinal});
  seen.device_budget = engine.budget().limit();
  seen.device_used = engine.budget().used();
  seen.live = engine.heap().live_bytes();
  seen.cached = engine.heap().cached_bytes();
  if (const HostTier* host = engine.device().host()) {
    seen.host_budget = host->budget_bytes();
    seen.host_used = host->stats().asked_bytes;
  }
  if (const DiskTier* disk = engine.device().disk()) {
    seen.disk_budget = disk->quota_bytes();
    seen.disk_used = disk->used_bytes();
  }
  seen.evicted = value_of(stats.evicted_bytes);
  seen.fetched = value_of(stats.fetched_bytes);
  seen.clean_dropped = value_of(stats.clean_dropped_bytes);
  seen.disk_written = value_of(stats.disk_written_bytes);
  seen.disk_read = value_of(stats.disk_read_bytes);
  seen.early_fetches = value_of(stats.early_fetches);
  seen.late_fetches = value_of(stats.late_fetches);
  seen.wasted_fetches = value_of(stats.wasted_fetches);
  seen.stall_ns = value_of(stats.stall_ns);
  seen.thread_wait_ns = value_of(stats.thread_wait_ns);
  seen.over_budget_events = value_of(stats.over_budget_events);
  seen.ops = value_of(stats.ops);
  seen.steps = value_of(stats.steps);
  return seen;
}

void Watch::publish(const std::vector<LiveEngine>& engines, uint64_t now) {
  const uint64_t sequence = std::atomic_ref<uint64_t>(page_->sequence).load();
  store_word(page_->sequence, sequence + 1);
  store_word(page_->sampled_ns, now);
  store_word(page_->is_armed, engines_.is_armed() ? 1 : 0);
  const size_t count = std::min(engines.size(), kLiveEnginesMax);
  store_word(page_->engine_count, count);
  for (size_t index = 0; index < count; ++index) {
    store_words(&page_->engines[index], engines[index]);
  }
  store_word(page_->sequence, sequence + 2);
}

HistorySample Watch::sum_of(const std::vector<LiveEngine>& engines, uint64_t now) const {
  HistorySample sum;
  sum.at_ns = now - started_ns_;
  for (const LiveEngine& engine : engines) {
    sum.device += engine.device_used;
    sum.live += engine.live;
    sum.host += engine.host_used;
    sum.disk += engine.disk_used;
    sum.evicted += engine.evicted;
    sum.fetched += engine.fetched;
    sum.disk_written += engine.disk_written;
    sum.disk_read += engine.disk_read;
    sum.stall_ns += engine.stall_ns;
    sum.steps = std::max(sum.steps, engine.steps);
  }
  return sum;
}

void Watch::keep(const HistorySample& sample) {
  history_.push_back(sample);
  if (history_.size() < kHistorySamplesMax) return;
  for (size_t index = 0; index < history_.size() / 2; ++index) {
    history_[index] = history_[2 * index];
  }
  history_.resize(history_.size() / 2);
  samples_per_kept_ *= 2;
}

std::string Watch::history_json() {
  if (getpid() != owner_pid_) return "{}";  // not started, or a forked child
  std::vector<HistorySample> samples;
  {
    MutexLock lock(mutex_);
    samples = history_;
  }
  samples.push_back(sum_of(sample_all(), now_ns()));
  const auto column = [&samples](uint64_t HistorySample::*member, double unit = 0) {
    Json values = Json::array();
    for (const HistorySample& sample : samples) {
      const uint64_t value = sample.*member;
      values.push_back(unit > 0 ? Json(unit * static_cast<double>(value)) : Json(value));
    }
    return values;
  };
  return Json{{"at_s", column(&HistorySample::at_ns, kSecond)},
              {"device", column(&HistorySample::device)},
              {"live", column(&HistorySample::live)},
              {"host", column(&HistorySample::host)},
              {"disk", column(&HistorySample::disk)},
              {"evicted", column(&HistorySample::evicted)},
              {"fetched", column(&HistorySample::fetched)},
              {"disk_written", column(&HistorySample::disk_written)},
              {"disk_read", column(&HistorySample::disk_read)},
              {"stall_s", column(&HistorySample::stall_ns, kSecond)},
              {"steps", column(&HistorySample::steps)}}
      .dump();
}

}  // namespace tencache
