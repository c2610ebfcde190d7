// SPDX-License-Identifier: Apache-2.0
//
// Sizes and times as people write and read them. Inside tencache, bytes and nanoseconds are their
// only units; this file converts them from and to text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tencache {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
inline constexpr uint64_t kPageBytes = 4 * kKiB;

/// Smallest multiple of `multiple` that is >= bytes. REQUIRES: multiple is a power of two.
constexpr uint64_t round_up(uint64_t bytes, uint64_t multiple) {
  return (bytes + multiple - 1) & ~(multiple - 1);
}

/// Parses "1.5GiB", "512 MiB", "2GB", "1048576", "8g". KiB/MiB/GiB/TiB and the bare letters k, m,
/// g, t are powers of 1024; kB/MB/GB/TB are powers of 1000; no unit means bytes. Case does not
/// matter, but for "Mb" and the like, which count bits. Such a unit, and negative, empty, unknown
/// or overflowing text, is kInvalidArgument with the text in the message.
Result<uint64_t> parse_bytes(std::string_view text);

/// "1.50 GiB", "640 MiB", "12 B": powers of 1024, three significant digits.
std::string format_bytes(uint64_t bytes);

/// Parses "30", "30s", "1.5s", "250ms", "5min"; a number alone means seconds. Returns nanoseconds;
/// negative, empty or unknown text is kInvalidArgument with the text in the message.
Result<uint64_t> parse_seconds(std::string_view text);

/// "30s", "0.25s": text that parse_seconds() reads back.
std::string format_seconds(uint64_t ns);

/// "1537MiB": a size in the form that an option takes, rounded up to whole MiB.
std::string option_bytes(uint64_t bytes);

}  // namespace tencache
