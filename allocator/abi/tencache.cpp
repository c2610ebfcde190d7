// SPDX-License-Identifier: Apache-2.0
//
// The C ABI over the runtime. It only converts: names and numbers to values, Status to
// tencache_error, text to the caller's buffers. Nothing may throw across it.
#include "abi/tencache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "abi/accesses.h"
#include "abi/enable.h"
#include "abi/error_text.h"
#include "abi/plan_json.h"
#include "abi/runtime.h"
#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/reading.h"
#include "learn/trace_writer.h"
#include "platform/output_file.h"

namespace {

using tencache::as_accesses;
using tencache::Engine;
using tencache::EngineHolds;
using tencache::Engines;
using tencache::Extent;
using tencache::Reading;
using tencache::report;
using tencache::Runtime;
using tencache::Status;

// The Runtime's engines. cpu_engine() is null before start and on the cuda backend.
Engine* cpu_engine() { return Runtime::instance().cpu_engine(); }
Engines& engines() { return Runtime::instance().engines(); }

size_t copy_text(const std::string& text, char* buffer, size_t bytes) {
  if (buffer != nullptr && bytes > 0) {
    const size_t length = std::min(text.size(), bytes - 1);
    memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
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

void tencache_set_label(const char* label) { tencache::set_log_label(label); }

int tencache_start(tencache_error* error) { return report(Runtime::instance().start(), error); }

int tencache_enable(tencache_error* error) {
  return report(tencache::enable(Runtime::instance()), error);
}

int tencache_is_started(void) { return Runtime::instance().is_started() ? 1 : 0; }

const char* tencache_backend(void) {
  if (tencache_is_started() == 0) return "";
  return cpu_engine() != nullptr ? "cpu" : "cuda";
}

const tencache_arena* tencache_get_arena(void) { return Runtime::instance().arena(); }

void* tencache_allocate(size_t bytes, tencache_error* error) {
  Engine* cpu = cpu_engine();
  if (cpu != nullptr) return tencache::value_or_null(cpu->allocate(bytes), error);
  report(Status(tencache::StatusCode::kFailedPrecondition,
                "this process keeps GPU memory, so there is no budget of DRAM to allocate from; "
                "use the backend cpu for that"),
         error);
  return nullptr;
}

void tencache_free(void* address) {
  if (address != nullptr) cpu_engine()->free(address);
}

uint32_t tencache_register_op(const char* name) { return engines().register_op(name); }

TENCACHE_HOT void tencache_gate_open(uint32_t op, const tencache_access* accesses, uint32_t count) {
  engines().open(op, as_accesses(accesses, count));
}

TENCACHE_HOT void tencache_gate_close(void) { engines().close(); }

uint32_t tencache_gate_depth(void) { return Engines::depth(); }

tencache_hold* tencache_hold_accesses(const tencache_access* accesses, uint32_t count,
                                      int and_inner) {
  return reinterpret_cast<tencache_hold*>(
      engines().hold(as_accesses(accesses, count), and_inner != 0));
}

void tencache_unhold(tencache_hold* hold) { Engines::unhold(reinterpret_cast<EngineHolds*>(hold)); }

void tencache_begin_reading(const void* const* addresses, uint32_t count,
                            tencache_reading** reading) {
  *reading = nullptr;
  Engine* cpu = cpu_engine();
  if (cpu == nullptr || cpu->mover() == nullptr) return;
  *reading = reinterpret_cast<tencache_reading*>(
      std::make_unique<Reading>(*cpu, std::span(addresses, count)).release());
}

void tencache_end_reading(tencache_reading** reading) {
  const std::unique_ptr<Reading> owned(
      reinterpret_cast<Reading*>(std::exchange(*reading, nullptr)));
}

void tencache_keep_resident(const tencache_access* accesses, uint32_t count) {
  engines().keep_resident(as_accesses(accesses, count));
}

int tencache_exchange_capture_mode(int mode) {
  return engines().exchange_capture_mode(mode).value_or(-1);
}

void tencache_mark_step(void) { engines().on_step(); }

void tencache_set_stream_callback(void* (*current_stream)(int ordinal)) {
  engines().set_current_stream(current_stream);
}

void tencache_set_arm_callback(void (*arm)(void)) { Runtime::instance().set_arm_callback(arm); }

void tencache_set_poll_callback(void (*poll)(void)) { Runtime::instance().set_poll_callback(poll); }

uint64_t tencache_distinct_bytes(const tencache_access* accesses, uint32_t count) {
  std::unordered_set<const Extent*> distinct;
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const Extent* extent = engines().find(accesses[index].address);
    if (extent != nullptr && distinct.insert(extent).second) bytes += extent->bytes;
  }
  return bytes;
}

uint64_t tencache_chunk_bytes(void) { return Runtime::instance().chunk_bytes(); }

void tencache_expect(const tencache_access* accesses, uint32_t count) {
  engines().expect(as_accesses(accesses, count));
}

int tencache_begin_in_place(const tencache_access* accesses, uint32_t count,
                            tencache_error* error) {
  const Status admitted = engines().admit(as_accesses(accesses, count));
  if (admitted.is_ok()) tencache::Heap::begin_whole_op();
  return report(admitted, error);
}

void tencache_end_in_place(void) { tencache::Heap::end_whole_op(); }

uint64_t tencache_extent_bytes(const void* address) {
  const Extent* extent = engines().find(address);
  return extent != nullptr ? extent->bytes : 0;
}

const void* tencache_extent_begin(const void* address) {
  const Extent* extent = engines().find(address);
  return extent != nullptr ? extent->address : nullptr;
}

int tencache_is_armed(void) { return engines().is_armed() ? 1 : 0; }

size_t tencache_stats_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().stats_json(), buffer, bytes);
}

size_t tencache_history_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().watch().history_json(), buffer, bytes);
}

uint64_t tencache_empty_cache(void) { return engines().empty_caches(); }

void tencache_reset_peak_stats(void) { engines().reset_peaks(); }

size_t tencache_doctor_json(char* buffer, size_t bytes) {
  return copy_text(Runtime::instance().doctor_json(), buffer, bytes);
}

void tencache_name_extent(const void* address, const char* name) {
  for (const tencache::EngineEntry& entry : engines().all()) {
    if (entry.engine->is_passive()) continue;
    const Extent* extent = entry.engine->heap().find(address);
    if (extent != nullptr) entry.engine->recorder().name_extent(extent->id, name);
  }
}

int tencache_write_trace(const char* path, tencache_error* error) {
  const std::vector<tencache::EngineEntry> open = engines().all();
  if (open.empty() || open.front().engine->is_passive()) {
    return report(Status(tencache::StatusCode::kFailedPrecondition,
                         "there is no trace: tencache is not enabled in this process, or it has "
                         "used no GPU"),
                  error);
  }
  Engine& engine = *open.front().engine;
  const tencache::TraceSource source = {
      .recorder = engine.recorder(),
      .moves = engine.mover() != nullptr ? &engine.mover()->ledger().log : nullptr,
      .below = engine.device().host() != nullptr ? "host" : "disk",
      .run_id = Runtime::instance().run_id()};
  return report(tencache::write_trace(source, path), error);
}

int tencache_write_file(const char* path, const char* text, size_t bytes, tencache_error* error) {
  const Status written =
      tencache::write_output_file(path, [text, bytes](tencache::OutputText& file) {
        file.append({text, bytes});
      });
  return report(written, error);
}

int tencache_try_file(const char* path, tencache_error* error) {
  return report(tencache::try_output_file(path), error);
}

int tencache_is_shared_output(const char* path) { return tencache::is_shared_output(path) ? 1 : 0; }

int tencache_is_same_output(const char* one, const char* other) {
  return tencache::is_same_output(one, other) ? 1 : 0;
}

int tencache_recorded(void) { return static_cast<int>(Runtime::instance().recorded()); }

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

int tencache_learn_from(const tencache_period* period, const char* const* op_names,
                        tencache_error* error) {
  return report(Runtime::instance().learn_from(*period, op_names), error);
}

uint64_t tencache_evict_all(void) { return engines().evict_all(); }

int tencache_is_cold(const void* address) {
  const Extent* extent = engines().find(address);
  if (extent == nullptr) return -1;
  return extent->state() == tencache::ExtentState::kCold ? 1 : 0;
}

}  // extern "C"
