// SPDX-License-Identifier: Apache-2.0
#include "platform/bus_errors.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/log.h"
#include "platform/fault_chain.h"

namespace tencache {
namespace {

// A program whose handler goes on after each signal needs no list longer than this.
constexpr uint32_t kMessagesMax = 16;

std::atomic<uintptr_t> g_arena_base{0};
std::atomic<uint64_t> g_arena_bytes{0};
std::atomic<PageFinder> g_finder{nullptr};
std::atomic<uint32_t> g_messages{0};

/// A line of text made with nothing that a signal handler may not use (vsnprintf may allocate).
class SignalSafeLine {
 public:
  void append(const char* text) {
    const size_t bytes = std::min(strlen(text), text_.size() - 1 - bytes_);
    memcpy(text_.data() + bytes_, text, bytes);
    bytes_ += bytes;
  }
  void append(uint64_t number, unsigned base = 10) {
    std::array<char, 24> digits = {};
    size_t place = digits.size() - 1;  // the last one stays 0
    do {
      digits.at(--place) = "0123456789abcdef"[number % base];
      number /= base;
    } while (number > 0);
    append(digits.data() + place);
  }
  void send() {
    text_.at(bytes_++) = '\n';
    // If standard error is closed, nobody is left to tell.
    if (write(STDERR_FILENO, text_.data(), bytes_) < 0) return;
  }

 private:
  std::array<char, 2048> text_ = {};
  size_t bytes_ = 0;
};

void report(const LostPage& page, uintptr_t address) {
  if (g_messages.fetch_add(1, std::memory_order_relaxed) >= kMessagesMax) return;
  SignalSafeLine line;
  line.append("tencache: ");
  line.append(log_label());
  line.append("error: the spill file in ");
  line.append(page.directory);
  line.append(" cannot be read at file offset ");
  line.append(page.file_offset);
  line.append(": the disk failed, or the file is shorter than it was. The program read extent ");
  line.append(page.extent_id);
  line.append(" (");
  line.append(page.extent_bytes);
  line.append(" bytes) at 0x");
  line.append(address, 16);
  line.append(" directly, and gets SIGBUS; check the disk or choose another one with --spill-dir");
  line.send();
}

// Reports the page if it is one of the spill file. Always returns false: the signal is not done,
// because the page is not there whatever we do.
bool report_lost_page(const siginfo_t& info) {
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  const PageFinder finder = g_finder.load(std::memory_order_acquire);
  LostPage page;
  if (info.si_code > 0 && finder != nullptr &&
      address - g_arena_base.load(std::memory_order_relaxed) <
          g_arena_bytes.load(std::memory_order_relaxed) &&
      finder(info.si_addr, &page)) {
    report(page, address);
  }
  return false;
}

}  // namespace

void BusErrors::configure(const void* arena_base, uint64_t arena_bytes, PageFinder finder) {
  g_arena_base.store(reinterpret_cast<uintptr_t>(arena_base), std::memory_order_relaxed);
  g_arena_bytes.store(arena_bytes, std::memory_order_relaxed);
  g_finder.store(finder, std::memory_order_release);
}

Status BusErrors::ensure_installed() {
  return FaultChain::ensure_in_front(FaultSignal::kBus, &report_lost_page);
}

}  // namespace tencache
