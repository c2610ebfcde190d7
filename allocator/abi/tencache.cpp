// SPDX-License-Identifier: Apache-2.0
//
// The C ABI over the runtime. Conversions only: names and numbers to values, Status to
// tencache_error, text to caller's buffers. Nothing may throw across it.
#include "abi/tencache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <unordered_set>

#include "abi/error_text.h"
#include "abi/plan_json.h"
#include "abi/runtime.h"
#include "learn/trace_writer.h"

namespace {

using tencache::Access;
using tencache::AccessMode;
using tencache::CpuEngine;
using tencache::Extent;
using tencache::report;
using tencache::Runtime;
using tencache::Status;

CpuEngine* engine() { return Runtime::instance().engine(); }

// Written once, before the first tencache_start() returns.
tencache_arena g_arena = {0, 0};

size_t copy_text(const std::string& text, char* buffer, size_t bytes) {
  if (buffer != nullptr && bytes > 0) {
    const size_t length = std::min(text.size(), bytes - 1);
    memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
}

// The C struct and its mode bits are the C++ one, so that the gate's hot path converts nothing.
static_assert(sizeof(Access) == sizeof(tencache_access));
static_assert(offsetof(Access, address) == offsetof(tencache_access, address));
static_assert(offsetof(Access, mode) == offsetof(tencache_access, mode));
static_assert(static_cast<uint32_t>(AccessMode::kRead) == TENCACHE_READ);
static_assert(static_cast<uint32_t>(AccessMode::kWrite) == TENCACHE_WRITE);
static_assert(static_cast<uint32_t>(AccessMode::kName) == TENCACHE_NAME);

std::span<const Access> as_span(const tencache_access* accesses, uint32_t count) {
  return {reinterpret_cast<const Access*>(accesses), count};
}

tencache_hold* as_handle(tencache::Hold* hold) { return reinterpret_cast<tencache_hold*>(hold); }

}  // namespace

extern "C" {

const char* tencache_version(void) { return tencache::kVersion; }

const char* tencache_option_table(void) {
  static const std::string* table = new std::string(tencache::option_table_json());
  return table->c_str();
}

int tencache_read_environment(tencache_error* error) {
  return report(Runtime::instance().read_environment(), error);
}

int tencache_set_option(const char* name, const char* text, tencache_error* error) {
  return report(Runtime::instance().set_option(name, text), error);
}

int tencache_check_option(const char* name, const char* text, tencache_error* error) {
  return report(Runtime::check_option(name, text), error);
}

int tencache_start(tencache_error* error) {
  const Status status = Runtime::instance().start();
  static std::once_flag arena_is_known;
  if (status.is_ok()) {
    std::call_once(arena_is_known, [] {
      const tencache::AddressArena& arena = engine()->arena();
      g_arena = {reinterpret_cast<uintptr_t>(arena.base()), arena.bytes()};
    });
  }
  return report(status, error);
}

int tencache_is_started(void) { return engine() != nullptr ? 1 : 0; }

const tencache_arena* tencache_get_arena(void) { return &g_arena; }

void* tencache_allocate(size_t bytes, tencache_error* error) {
  const tencache::Result<void*> address = engine()->allocate(bytes);
  if (address.is_ok()) return address.value();
  report(address.status(), error);
  return nullptr;
}

void tencache_free(void* address) { engine()->free(address); }

uint32_t tencache_register_op(const char* name) {
  // The registry's lock may have been held by another thread when this child was forked.
  return engine()->is_passive() ? 0 : engine()->recorder().register_op(name);
}

void tencache_gate_open(uint32_t op, const tencache_access* accesses, uint32_t count) {
  engine()->gate().open(op, as_span(accesses, count));
}

void tencache_gate_open_transparent(void) { engine()->gate().open_transparent(); }

void tencache_gate_close(void) { engine()->gate().close(); }

tencache_hold* tencache_hold_accesses(const tencache_access* accesses, uint32_t count,
                                      int and_inner) {
  return as_handle(engine()->gate().hold(as_span(accesses, count), and_inner != 0));
}

void tencache_unhold(tencache_hold* hold) {
  engine()->gate().unhold(reinterpret_cast<tencache::Hold*>(hold));
}

void tencache_keep_resident(const tencache_access* accesses, uint32_t count) {
  engine()->gate().keep_resident(as_span(accesses, count));
}

void tencache_mark_step(void) { engine()->gate().on_step(); }

void tencache_set_arm_callback(void (*arm)(void)) { Runtime::instance().set_arm_callback(arm); }

void tencache_set_poll_callback(void (*poll)(void)) { Runtime::instance().set_poll_callback(poll); }

uint64_t tencache_distinct_bytes(const tencache_access* accesses, uint32_t count) {
  std::unordered_set<const Extent*> distinct;
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const Extent* extent = engine()->heap().find(accesses[index].address);
    if (extent != nullptr && distinct.insert(extent).second) bytes += extent->bytes;
  }
  return bytes;
}

uint64_t tencache_chunk_bytes(void) { return Runtime::instance().chunk_bytes(); }

uint64_t tencache_extent_bytes(const void* address) {
  const Extent* extent = engine()->heap().find(address);
  return extent != nullptr ? extent->bytes : 0;
}

int tencache_is_armed(void) {
  CpuEngine* current = engine();
  return current != nullptr && !current->is_passive() && current->migrator().is_armed() ? 1 : 0;
}

size_t tencache_stats_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().stats_json(), buffer, bytes);
}

size_t tencache_doctor_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().doctor_json(), buffer, bytes);
}

int tencache_write_trace(const char* path, tencache_error* error) {
  CpuEngine* current = engine();
  if (current == nullptr || current->is_passive()) {
    return report(Status(tencache::StatusCode::kFailedPrecondition,
                         "there is no trace: tencache is not enabled in this process"),
                  error);
  }
  return report(tencache::write_trace(current->recorder(), path), error);
}

int tencache_plan(const tencache_period* period, const tencache_machine* machine, char* buffer,
                  size_t bytes, tencache_error* error) {
  const tencache::Result<std::string> json = tencache::plan_json(*period, *machine);
  if (!json.is_ok()) return report(json.status(), error);
  if (copy_text(json.value(), buffer, bytes) <= bytes) return TENCACHE_OK;
  return report(Status(tencache::StatusCode::kInvalidArgument,
                       "a buffer of " + std::to_string(bytes) +
                           " bytes does not hold a prediction; give TENCACHE_PLAN_JSON_BYTES"),
                error);
}

size_t tencache_plan_timeline(const tencache_period* period, const tencache_machine* machine,
                              char* buffer, size_t bytes, tencache_error* error) {
  const tencache::Result<std::string> json = tencache::timeline_json(*period, *machine);
  if (json.is_ok()) return copy_text(json.value(), buffer, bytes);
  report(json.status(), error);
  return 0;
}

uint64_t tencache_evict_all(void) {
  return engine()->is_passive() ? 0 : engine()->migrator().evict_all();
}

int tencache_is_cold(const void* address) {
  const Extent* extent = engine()->heap().find(address);
  if (extent == nullptr) return -1;
  return extent->state() == tencache::ExtentState::kCold ? 1 : 0;
}

}  // extern "C"
