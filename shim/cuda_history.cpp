// SPDX-License-Identifier: Apache-2.0
#include "cuda_history.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace tencache::shim {
namespace {

thread_local const CudaHistory::Request* current_request = nullptr;
thread_local std::string thread_metadata;
thread_local std::vector<std::string> compile_contexts;

template <typename Element>
void keep_last(std::deque<Element>& elements, size_t count) {
  while (elements.size() > count) elements.pop_front();
}

}  // namespace

CudaHistory::Scope::Scope(const Request& request) : before_(current_request) {
  current_request = &request;
}

CudaHistory::Scope::~Scope() { current_request = before_; }

void CudaHistory::configure(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder,
                            size_t entries_max, When when, bool clear,
                            const std::vector<std::string>& skipped_actions) {
  TORCH_CHECK(when == When::NEVER || recorder != nullptr,
              "A memory history with stacks needs a function that records them.");
  std::unordered_set<int> skipped;
  for (const std::string& action : skipped_actions) {
    skipped.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
  const std::lock_guard lock(mutex_);
  recorder_.store(enabled ? recorder : nullptr);
  when_.store(enabled ? when : When::NEVER);
  is_recording_.store(enabled);
  entries_max_ = entries_max;
  skipped_actions_ = std::move(skipped);
  if (!enabled || clear) {
    entries_.clear();
    annotations_.clear();
  }
  update_is_on();
}

// Reports go on while any block has a stack, even after recording has stopped: a stack goes when
// its block goes.
void CudaHistory::update_is_on() {
  is_on_.store(is_recording() || !blocks_.empty());
  if (!is_on()) segments_.clear();  // nobody will tell us when they go
}

CudaHistory::Context CudaHistory::gather(When when) const {
  if (when_.load(std::memory_order_relaxed) < when) return nullptr;
  const auto recorder = recorder_.load();
  return recorder != nullptr ? recorder() : nullptr;
}

// REQUIRES: mutex_ is held.
void CudaHistory::add(c10::DeviceIndex device, Entry::Action action, uintptr_t address,
                      size_t bytes, const Request& request) {
  if (!is_recording() || skipped_actions_.contains(action)) return;
  const size_t index = static_cast<uint8_t>(device);
  if (entries_.size() <= index) entries_.resize(index + 1);
  entries_[index].emplace_back(
      action, device, address, bytes, request.stream, request.pool, c10::getApproximateTime(),
      when_.load() >= When::ALLOC ? request.context : nullptr,
      compile_contexts.empty() ? "N/A" : compile_contexts.back(), thread_metadata);
  keep_last(entries_[index], entries_max_);
}

void CudaHistory::note_allocation(c10::DeviceIndex device, const tencache_gpu_block& block,
                                  const Request& request) {
  const std::lock_guard lock(mutex_);
  add(device, Entry::ALLOC, block.address, block.requested_bytes, request);
  if (request.context == nullptr) return;
  blocks_[block.address] = request;
  update_is_on();
}

void CudaHistory::note_free(c10::DeviceIndex device, const tencache_gpu_block& block,
                            const Request& request) {
  const std::lock_guard lock(mutex_);
  Request freed = request;
  const auto found = blocks_.find(block.address);
  if (found != blocks_.end() && freed.context == nullptr) freed.context = found->second.context;
  add(device, Entry::FREE_REQUESTED, block.address, block.requested_bytes, freed);
  if (block.is_shared != 0) {
    blocks_[block.address] = freed;
  } else {
    add(device, Entry::FREE_COMPLETED, block.address, block.requested_bytes, freed);
    if (found != blocks_.end()) blocks_.erase(found);
  }
  update_is_on();
}

void CudaHistory::note_core_event(c10::DeviceIndex device, int event, uintptr_t address,
                                  uint64_t bytes) {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  if (event == TENCACHE_FREE_COMPLETED) {
    const auto freed = blocks_.extract(address);
    add(device, Entry::FREE_COMPLETED, address, bytes, freed.empty() ? Request{} : freed.mapped());
    return update_is_on();
  }
  const Request request = current_request != nullptr ? *current_request : Request{};
  if (event == TENCACHE_SEGMENT_MADE) {
    add(device, Entry::SEGMENT_ALLOC, address, bytes, request);
    segments_[address] = request;
    return;
  }
  const auto made = segments_.extract(address);
  Request gone = made.empty() ? Request{} : made.mapped();
  gone.context = request.context;
  add(device, Entry::SEGMENT_FREE, address, bytes, gone);
}

void CudaHistory::note_out_of_memory(c10::DeviceIndex device, uint64_t free_bytes, size_t bytes) {
  const std::lock_guard lock(mutex_);
  add(device, Entry::OOM, free_bytes, bytes,
      current_request != nullptr ? *current_request : Request{});
}

void CudaHistory::note_snapshot(c10::DeviceIndex device, size_t active_bytes) {
  const std::lock_guard lock(mutex_);
  add(device, Entry::SNAPSHOT, 0, active_bytes, {});
}

void CudaHistory::note_annotation(
    c10::DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& metadata) {
  if (!is_recording()) return;
  Annotation annotation(device, c10::getApproximateTime());
  for (const auto& [name, value] : metadata) annotation.recordUserMetadata(name, value);
  const std::lock_guard lock(mutex_);
  annotations_.push_back(std::move(annotation));
  keep_last(annotations_, entries_max_);
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14)
void CudaHistory::note_remark(c10::DeviceIndex device, const tencache_gpu_block& block,
                              const Request& request, const std::string& remark) {
  const std::lock_guard lock(mutex_);
  const std::string before = std::exchange(thread_metadata, remark);
  add(device, Entry::ANNOTATE, block.address, block.requested_bytes, request);
  thread_metadata = before;
}
#endif

std::vector<std::vector<CudaHistory::Entry>> CudaHistory::entries(size_t device_count) const {
  std::function<time_t(c10::approx_time_t)> to_unix_ns;
  std::vector<std::vector<Entry>> all;
  {
    const std::lock_guard lock(mutex_);
    to_unix_ns = clock_.makeConverter();
    for (const auto& of_device : entries_) all.emplace_back(of_device.begin(), of_device.end());
  }
  all.resize(std::max(all.size(), device_count));
  for (auto& of_device : all) {
    for (Entry& entry : of_device) entry.time_.t_ = to_unix_ns(entry.time_.approx_t_) / 1000;
  }
  return all;
}

std::vector<CudaHistory::Annotation> CudaHistory::annotations() const {
  const std::lock_guard lock(mutex_);
  const auto to_unix_ns = clock_.makeConverter();
  std::vector<Annotation> all(annotations_.begin(), annotations_.end());
  for (Annotation& entry : all) entry.time_.t_ = to_unix_ns(entry.time_.approx_t_) / 1000;
  return all;
}

CudaHistory::Context CudaHistory::context_of_block(uintptr_t address) const {
  if (!is_on()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  return found != blocks_.end() ? found->second.context : nullptr;
}

CudaHistory::Context CudaHistory::context_of_segment(uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  const auto found = segments_.find(address);
  return found != segments_.end() ? found->second.context : nullptr;
}

void CudaHistory::set_user_metadata(const std::string& metadata) { thread_metadata = metadata; }

std::string CudaHistory::user_metadata() { return thread_metadata; }

void CudaHistory::push_compile_context(const std::string& context) {
  compile_contexts.push_back(context);
}

void CudaHistory::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

}  // namespace tencache::shim
