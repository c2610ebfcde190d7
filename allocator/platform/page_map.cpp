// SPDX-License-Identifier: Apache-2.0
#include "platform/page_map.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "platform/address_arena.h"

namespace tencache {
namespace {

constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

}  // namespace

Result<std::unique_ptr<PageMap>> PageMap::open() {
  KeptFd file(UniqueFd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)));
  if (!file.is_valid()) return status_from_errno(errno, "opening /proc/self/pagemap");
  std::unique_ptr<PageMap> page_map(new PageMap(std::move(file)));
  // A sandbox may let us open the file and then refuse to read it, so try it on our own stack.
  uint64_t probe = kPresent;
  TouchedPages touched;
  const auto address = reinterpret_cast<uintptr_t>(&probe) & ~(kPageBytes - 1);
  Status status = page_map->scan(reinterpret_cast<const char*>(address), kPageBytes, &touched);
  if (!status.is_ok()) return status;
  if (touched.written.size() != 1) {
    return Status(StatusCode::kUnavailable,
                  "/proc/self/pagemap does not say which pages are private");
  }
  return page_map;
}

Status PageMap::scan(const char* address, uint64_t bytes, TouchedPages* touched) const {
  Status status = read(address, bytes, touched);
  // A look at the descriptor after the read is enough: the read does no harm to another file.
  if (file_.is_ours()) return status;
  return {StatusCode::kUnavailable, "the program has closed descriptor " +
                                        std::to_string(file_.get()) +
                                        ", which was /proc/self/pagemap"};
}

Status PageMap::read(const char* address, uint64_t bytes, TouchedPages* touched) const {
  std::array<uint64_t, 1024> entries;
  const uint64_t first_page = reinterpret_cast<uintptr_t>(address) / kPageBytes;
  const uint64_t page_count = bytes / kPageBytes;
  for (uint64_t page = 0; page < page_count;) {
    const uint64_t wanted = std::min<uint64_t>(entries.size(), page_count - page);
    const ssize_t got = pread(file_.get(), entries.data(), wanted * sizeof(uint64_t),
                              static_cast<off_t>((first_page + page) * sizeof(uint64_t)));
    if (got < 0 && errno == EINTR) continue;
    if (got < static_cast<ssize_t>(sizeof(uint64_t))) {
      return status_from_errno(got < 0 ? errno : EIO, "reading /proc/self/pagemap");
    }
    const uint64_t entry_count = static_cast<uint64_t>(got) / sizeof(uint64_t);
    for (uint64_t index = 0; index < entry_count; ++index) {
      const uint64_t entry = entries[index];
      if ((entry & (kPresent | kSwapped)) == 0) continue;
      if ((entry & kOfFile) != 0) {
        ++touched->read_count;
      } else {
        touched->written.push_back(static_cast<uint32_t>(page + index));
      }
    }
    page += entry_count;
  }
  return Status::ok();
}

}  // namespace tencache
