// SPDX-License-Identifier: Apache-2.0
//
// The exported C functions, and the order in which the doors are installed. First the self-test
// checks whether libtorch is laid out as expected. Then come the callbacks that the runtime calls,
// then the runtime itself, then the hooks on operators. The allocator is last, so that memory of
// the core exists only where the gate can see it.
//
// Threads: tencache_torch_install() holds a lock, and tencache_torch_describe_json() takes it for a
// moment; the other functions take none of their own.
#include <cstring>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "collectives.h"
#include "cpu_allocator.h"
#include "fork_guard.h"
#include "gate_hooks.h"
#include "layout_refusal.h"
#include "list_split.h"
#include "operator_table.h"
#include "self_test.h"
#include "tencache_torch.h"
#include "tensor_walk.h"
#include "thread_state.h"

namespace tencache::shim {
namespace {

std::mutex install_mutex;
// install_mutex guards both.
bool is_installed = false;
std::string* refusal = nullptr;  // why PyTorch refused a door; never destroyed

int install(tencache_error* error) {
  const std::string difference = why_layouts_differ();
  if (!difference.empty()) return refuse(layout_refusal(difference), error);
  tencache_set_arm_callback(&arm_gate_hooks);
  tencache_set_poll_callback(&poll_collectives);
  const int code = tencache_start(error);
  if (code != TENCACHE_OK) return code;
  install_tensor_walk();
  install_fork_guard();
  install_operator_table();
  install_list_split();
  install_collectives();
  install_gate_hooks();
  // On the cuda backend CPU tensors stay with PyTorch; that backend's doors are installed next.
  if (std::strcmp(tencache_backend(), "cpu") == 0) install_cpu_allocator();
  is_installed = true;
  return TENCACHE_OK;
}

std::string describe() {
  nlohmann::ordered_json json = {{"torch", TENCACHE_TORCH_VERSION},
                                 {"backend", tencache_backend()}};
  {
    const std::lock_guard lock(install_mutex);
    json["installed"] = is_installed;
  }
  json["split"] = split_operators();
  json["left_alone"] = nlohmann::ordered_json::array();
  for (const LeftAlone& each : operators_left_alone()) {
    json["left_alone"].push_back({{"name", each.name}, {"reason", each.reason}});
  }
  json["split_calls"] = split_counts().calls;
  json["split_chunks"] = split_counts().chunks;
  json["collectives"] = collective_count();
  json["pending_collectives"] = pending_collectives();
  json["known_operators"] = operator_count();
  return json.dump();
}

}  // namespace
}  // namespace tencache::shim

using namespace tencache::shim;

extern "C" {

int tencache_torch_install(tencache_error* error) {
  const std::lock_guard lock(install_mutex);
  if (is_installed) return TENCACHE_OK;
  if (refusal == nullptr) {
    try {
      return install(error);
    } catch (const std::exception& failure) {
      // The allocator comes last, so no memory is ours yet. But doors that are installed cannot be
      // installed again.
      refusal = new std::string(failure.what());
    }
  }
  return refuse(
      "PyTorch refused a kernel or callback of tencache, which is therefore off in this process: " +
          *refusal,
      error);
}

void tencache_torch_open(const char* name, const void* const* addresses, const char* modes,
                         uint32_t count) {
  AccessList& accesses = cleared_thread_accesses();
  for (uint32_t index = 0; index < count; ++index) {
    accesses.add(addresses[index], static_cast<uint32_t>(modes[index]));
  }
  tencache_gate_open(tencache_register_op(name), accesses.data(), accesses.count());
}

uint32_t tencache_torch_depth(void) { return tencache_gate_depth(); }

void tencache_torch_close_to(uint32_t depth) {
  while (tencache_gate_depth() > depth) tencache_gate_close();
}

size_t tencache_torch_describe_json(char* buffer, size_t bytes) {
  const std::string json = describe();
  if (bytes > 0) buffer[json.copy(buffer, bytes - 1)] = '\0';
  return json.size() + 1;
}

}  // extern "C"
