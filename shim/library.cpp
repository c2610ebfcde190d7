// SPDX-License-Identifier: Apache-2.0
//
// The exported C functions, and the order in which the doors are put in: first the callbacks that
// the runtime calls, then the runtime itself, then what looks at operators, and the allocator last,
// so that memory of the core exists only where the gate can see it.
//
// Threads: install holds a lock; the rest takes none of its own.
#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

#include "collectives.h"
#include "cpu_allocator.h"
#include "fork_guard.h"
#include "gate_hooks.h"
#include "list_split.h"
#include "operator_table.h"
#include "tencache_torch.h"
#include "tensor_walk.h"
#include "thread_state.h"

#ifndef TENCACHE_TORCH_VERSION
#define TENCACHE_TORCH_VERSION TORCH_VERSION
#endif

namespace tencache::shim {
namespace {

std::mutex install_mutex;
// Guarded by install_mutex.
bool is_installed = false;
std::string* refusal = nullptr;  // why PyTorch refused a door; never destroyed

void set_error(tencache_error* error, int code, const char* message) {
  if (error == nullptr) return;
  error->code = code;
  std::snprintf(error->message, sizeof(error->message), "%s", message);
}

int install(tencache_error* error) {
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
  // On the cuda backend CPU tensors stay with PyTorch; what puts in its doors comes next.
  if (std::strcmp(tencache_backend(), "cpu") == 0) install_cpu_allocator();
  is_installed = true;
  return TENCACHE_OK;
}

void append_quoted(const std::string& text, std::string* json) {
  json->push_back('"');
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') json->push_back('\\');
    json->push_back(letter);
  }
  json->push_back('"');
}

void append_number(const char* name, size_t number, std::string* json) {
  json->append(", \"").append(name).append("\": ").append(std::to_string(number));
}

std::string describe() {
  std::string json = "{\"torch\": ";
  append_quoted(TENCACHE_TORCH_VERSION, &json);
  json.append(", \"backend\": ");
  append_quoted(tencache_backend(), &json);
  {
    const std::lock_guard lock(install_mutex);
    json.append(", \"installed\": ").append(is_installed ? "true" : "false");
  }
  json.append(", \"split\": [");
  const char* separator = "";
  for (const std::string& name : split_operators()) {
    json.append(separator);
    append_quoted(name, &json);
    separator = ", ";
  }
  json.append("], \"left_alone\": [");
  separator = "";
  for (const LeftAlone& each : operators_left_alone()) {
    json.append(separator).append("{\"name\": ");
    append_quoted(each.name, &json);
    json.append(", \"reason\": ");
    append_quoted(each.reason, &json);
    json.push_back('}');
    separator = ", ";
  }
  json.push_back(']');
  append_number("split_calls", split_counts().calls, &json);
  append_number("split_runs", split_counts().runs, &json);
  append_number("collectives", collective_count(), &json);
  append_number("pending_collectives", pending_collectives(), &json);
  append_number("known_operators", operator_count(), &json);
  json.push_back('}');
  return json;
}

}  // namespace
}  // namespace tencache::shim

using namespace tencache::shim;

extern "C" {

const char* tencache_torch_built_for(void) { return TENCACHE_TORCH_VERSION; }

int tencache_torch_install(tencache_error* error) {
  const std::lock_guard lock(install_mutex);
  if (is_installed) return TENCACHE_OK;
  if (refusal == nullptr) {
    try {
      return install(error);
    } catch (const std::exception& failure) {
      // The allocator comes last, so no memory is ours; but doors that are in cannot be put in
      // again.
      refusal = new std::string(failure.what());
    }
  }
  set_error(error, TENCACHE_FAILED_PRECONDITION,
            ("PyTorch refused a kernel or callback of tencache, which is therefore off in this "
             "process: " +
             *refusal)
                .c_str());
  return TENCACHE_FAILED_PRECONDITION;
}

void tencache_torch_open(const char* name, const void* const* addresses, uint32_t count) {
  AccessList& accesses = cleared_thread_accesses();
  for (uint32_t index = 0; index < count; ++index) {
    accesses.add(addresses[index], TENCACHE_READ | TENCACHE_WRITE);
  }
  tencache_gate_open(tencache_register_op(name), accesses.data(), accesses.count());
}

void tencache_torch_close(void) { tencache_gate_close(); }

size_t tencache_torch_describe_json(char* buffer, size_t bytes) {
  const std::string json = describe();
  if (bytes > 0) {
    const size_t length = std::min(json.size(), bytes - 1);
    std::memcpy(buffer, json.data(), length);
    buffer[length] = '\0';
  }
  return json.size() + 1;
}

}  // extern "C"
