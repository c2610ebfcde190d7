// SPDX-License-Identifier: Apache-2.0
//
// The C ABI over the runtime. Conversions only: names and numbers to values, Status to
// tencache_error, text to caller's buffers. Nothing may throw across it.
#include "abi/tencache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "abi/accesses.h"
#include "abi/error_text.h"
#include "abi/plan_json.h"
#include "abi/runtime.h"
#include "base/units.h"
#include "learn/trace_writer.h"

namespace {

using tencache::as_accesses;
using tencache::CpuEngine;
using tencache::Extent;
using tencache::GpuEngines;
using tencache::GpuHold;
using tencache::report;
using tencache::Runtime;
using tencache::Status;

// Null on the cuda backend.
CpuEngine* engine() { return Runtime::instance().engine(); }
GpuEngines& gpus() { return Runtime::instance().gpus(); }

size_t copy_text(const std::string& text, char* buffer, size_t bytes) {
  if (buffer != nullptr && bytes > 0) {
    const size_t length = std::min(text.size(), bytes - 1);
    memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
}

// A handle is a Hold or a GpuHold, as the process's one backend says.
tencache_hold* as_handle(void* hold) { return static_cast<tencache_hold*>(hold); }

Extent* find_extent(const void* address) {
  CpuEngine* cpu = engine();
  return cpu != nullptr ? cpu->heap().find(address) : gpus().find(address);
}

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

size_t tencache_option_text(const char* name, char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().option_text(name), buffer, bytes);
}

int tencache_parse_bytes(const char* text, uint64_t* bytes, tencache_error* error) {
  const tencache::Result<uint64_t> parsed = tencache::parse_bytes(text);
  if (parsed.is_ok()) *bytes = parsed.value();
  return report(parsed.status(), error);
}

int tencache_start(tencache_error* error) { return report(Runtime::instance().start(), error); }

int tencache_is_started(void) { return Runtime::instance().is_started() ? 1 : 0; }

const char* tencache_backend(void) {
  if (tencache_is_started() == 0) return "";
  return engine() != nullptr ? "cpu" : "cuda";
}

const tencache_arena* tencache_get_arena(void) { return Runtime::instance().arena(); }

void* tencache_allocate(size_t bytes, tencache_error* error) {
  CpuEngine* cpu = engine();
  if (cpu == nullptr) {
    report(Status(tencache::StatusCode::kFailedPrecondition,
                  "this process keeps GPU memory, so there is no budget of DRAM to allocate from; "
                  "use the backend cpu for that"),
           error);
    return nullptr;
  }
  const tencache::Result<void*> address = cpu->allocate(bytes);
  if (address.is_ok()) return address.value();
  report(address.status(), error);
  return nullptr;
}

void tencache_free(void* address) {
  if (address != nullptr) engine()->free(address);
}

uint32_t tencache_register_op(const char* name) {
  // The registry's lock may have been held by another thread when this child was forked.
  CpuEngine* cpu = engine();
  if (cpu == nullptr) return gpus().register_op(name);
  return cpu->is_passive() ? 0 : cpu->recorder().register_op(name);
}

void tencache_gate_open(uint32_t op, const tencache_access* accesses, uint32_t count) {
  if (CpuEngine* cpu = engine()) {
    cpu->gate().open(op, as_accesses(accesses, count));
  } else {
    gpus().open(op, as_accesses(accesses, count));
  }
}

void tencache_gate_close(void) {
  if (CpuEngine* cpu = engine()) {
    cpu->gate().close();
  } else {
    gpus().close();
  }
}

tencache_hold* tencache_hold_accesses(const tencache_access* accesses, uint32_t count,
                                      int and_inner) {
  if (CpuEngine* cpu = engine()) {
    return as_handle(cpu->gate().hold(as_accesses(accesses, count), and_inner != 0));
  }
  return as_handle(gpus().hold(as_accesses(accesses, count), and_inner != 0));
}

void tencache_unhold(tencache_hold* hold) {
  if (CpuEngine* cpu = engine()) {
    cpu->gate().unhold(reinterpret_cast<tencache::Hold*>(hold));
  } else {
    GpuEngines::unhold(reinterpret_cast<GpuHold*>(hold));
  }
}

void tencache_keep_resident(const tencache_access* accesses, uint32_t count) {
  if (CpuEngine* cpu = engine()) {
    cpu->gate().keep_resident(as_accesses(accesses, count));
  } else {
    gpus().keep_resident(as_accesses(accesses, count));
  }
}

void tencache_mark_step(void) {
  if (CpuEngine* cpu = engine()) {
    cpu->gate().on_step();
  } else {
    gpus().on_step();
  }
}

void tencache_set_stream_callback(void* (*current_stream)(int ordinal)) {
  gpus().set_current_stream(current_stream);
}

void tencache_set_arm_callback(void (*arm)(void)) { Runtime::instance().set_arm_callback(arm); }

void tencache_set_poll_callback(void (*poll)(void)) { Runtime::instance().set_poll_callback(poll); }

uint64_t tencache_distinct_bytes(const tencache_access* accesses, uint32_t count) {
  std::unordered_set<const Extent*> distinct;
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const Extent* extent = find_extent(accesses[index].address);
    if (extent != nullptr && distinct.insert(extent).second) bytes += extent->bytes;
  }
  return bytes;
}

uint64_t tencache_chunk_bytes(void) { return Runtime::instance().chunk_bytes(); }

uint64_t tencache_extent_bytes(const void* address) {
  const Extent* extent = find_extent(address);
  return extent != nullptr ? extent->bytes : 0;
}

int tencache_is_armed(void) {
  CpuEngine* cpu = engine();
  if (cpu == nullptr) return gpus().is_armed() ? 1 : 0;
  return !cpu->is_passive() && cpu->migrator().is_armed() ? 1 : 0;
}

size_t tencache_stats_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().stats_json(), buffer, bytes);
}

size_t tencache_doctor_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().doctor_json(), buffer, bytes);
}

int tencache_write_trace(const char* path, tencache_error* error) {
  tencache::Engine* current = engine();
  const std::vector<tencache::GpuEngine> open = gpus().all();
  if (!open.empty()) current = open.front().engine;
  if (current == nullptr || current->is_passive()) {
    return report(Status(tencache::StatusCode::kFailedPrecondition,
                         "there is no trace: tencache is not enabled in this process, or it has "
                         "used no GPU"),
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
  CpuEngine* cpu = engine();
  if (cpu == nullptr) return gpus().evict_all();
  return cpu->is_passive() ? 0 : cpu->migrator().evict_all();
}

int tencache_is_cold(const void* address) {
  const Extent* extent = find_extent(address);
  if (extent == nullptr) return -1;
  return extent->state() == tencache::ExtentState::kCold ? 1 : 0;
}

}  // extern "C"
