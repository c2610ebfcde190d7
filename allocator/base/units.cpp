// SPDX-License-Identifier: Apache-2.0
//
// Conversions of text to bytes or nanoseconds, and back. Whole numbers of bytes are exact up to
// 2^64-1; a fraction is rounded down to whole bytes. Anything but a plain decimal number and a
// known unit is refused: a misread budget would be worse than an error. Nothing here keeps state.
//
// Threads: any.
#include "base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/ascii.h"
#include "base/shown_text.h"

namespace tencache {
namespace {

struct Unit {
  std::string_view name;  // lower case
  uint64_t bytes;
};

constexpr uint64_t kTiB = kKiB * kGiB;

constexpr std::array<Unit, 14> kUnits = {{
    {"", 1},
    {"b", 1},
    {"k", kKiB},
    {"m", kMiB},
    {"g", kGiB},
    {"t", kTiB},
    {"kib", kKiB},
    {"mib", kMiB},
    {"gib", kGiB},
    {"tib", kTiB},
    {"kb", 1000},
    {"mb", uint64_t{1000} * 1000},
    {"gb", uint64_t{1000} * 1000 * 1000},
    {"tb", uint64_t{1000} * 1000 * 1000 * 1000},
}};

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string quoted(std::string_view text) {
  std::string quoted = "\"";
  return quoted.append(shown(text)).append("\"");
}

Status refuse(std::string_view text, std::string_view reason) {
  return invalid_argument(quoted(text) + " is not a size: " + std::string(reason) +
                          ". Write a number and a unit, for example 1.5GiB, 512MiB or 1048576.");
}

Status refuse_time(std::string_view text, std::string_view reason) {
  return invalid_argument(quoted(text) + " is not a time: " + std::string(reason) +
                          ". Write a number and a unit, for example 30s, 500ms or 5min.");
}

/// The unit in nanoseconds, or 0 if it is unknown.
double unit_of_time(std::string_view name) {
  const std::string lower = lower_case(trim(name));
  if (lower.empty() || lower == "s") return 1e9;
  if (lower == "ms") return 1e6;
  return lower == "min" ? 60e9 : 0;
}

/// Whether a unit is one of bits, as Mb and Gib are. In mb nothing tells bits from bytes, so it
/// counts as bytes.
bool counts_bits(std::string_view name) {
  constexpr std::string_view kPrefixes = "KMGT";
  return (name.size() == 2 || (name.size() == 3 && name[1] == 'i')) && name.back() == 'b' &&
         kPrefixes.find(name.front()) != std::string_view::npos;
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  const std::string_view trimmed = trim(text);
  if (trimmed.empty()) return refuse(text, "it is empty");
  if (trimmed.front() == '-') return refuse(text, "it is negative");
  const size_t number_bytes = trimmed.find_first_not_of("0123456789.");
  const std::string_view number = trimmed.substr(0, number_bytes);
  const std::string_view unit_name =
      number_bytes == std::string_view::npos ? "" : trim(trimmed.substr(number_bytes));
  if (number.empty()) return refuse(text, "it does not start with a number");
  if (counts_bits(unit_name)) {
    const std::string prefix(unit_name.substr(0, unit_name.size() - 1));
    return refuse(text, prefix + "b counts bits, and sizes are in bytes, " + prefix + "B");
  }
  const std::string lower = lower_case(unit_name);
  const auto unit = std::ranges::find(kUnits, std::string_view(lower), &Unit::name);
  if (unit == kUnits.end()) return refuse(text, "its unit is unknown");

  const char* const end = number.data() + number.size();
  uint64_t whole = 0;
  const auto [whole_end, whole_error] = std::from_chars(number.data(), end, whole);
  if (whole_error == std::errc::result_out_of_range) return refuse(text, "it is too large");
  if (whole_error == std::errc() && whole_end == end) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(whole, unit->bytes, &bytes)) return refuse(text, "it is too large");
    return bytes;
  }
  long double fraction = 0;
  const auto [fraction_end, fraction_error] =
      std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
  if (fraction_error != std::errc() || fraction_end != end) {
    return refuse(text, "it does not start with a number");
  }
  const long double bytes = std::floor(fraction * static_cast<long double>(unit->bytes));
  if (bytes >= 0x1p64L) return refuse(text, "it is too large");
  return static_cast<uint64_t>(bytes);
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<const char*, 6> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  char buffer[32];
  if (bytes < kKiB) {
    snprintf(buffer, sizeof buffer, "%u B", static_cast<unsigned>(bytes));
    return buffer;
  }
  double value = static_cast<double>(bytes) / static_cast<double>(kKiB);
  size_t unit = 0;
  // 1023.5 and above would be shown as "1024" of the smaller unit.
  while (value >= 1023.5 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  snprintf(buffer, sizeof buffer, "%.*f %s", decimals, value, kNames[unit]);
  return buffer;
}

Result<uint64_t> parse_seconds(std::string_view text) {
  const std::string_view trimmed = trim(text);
  double number = 0;
  const char* const end = trimmed.data() + trimmed.size();
  const auto [number_end, error] =
      std::from_chars(trimmed.data(), end, number, std::chars_format::fixed);
  if (error != std::errc()) return refuse_time(text, "it does not start with a number");
  if (!std::isfinite(number) || number < 0) return refuse_time(text, "it is negative or no number");
  const double unit_ns = unit_of_time({number_end, static_cast<size_t>(end - number_end)});
  if (unit_ns == 0) return refuse_time(text, "its unit is unknown");
  const double ns = std::round(number * unit_ns);
  if (ns >= 9e18) return refuse_time(text, "it is too large");
  return static_cast<uint64_t>(ns);
}

std::string format_seconds(uint64_t ns) {
  std::array<char, 64> text;
  const double seconds = static_cast<double>(ns) / 1e9;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed);
  return std::string(text.data(), error == std::errc() ? end : text.data()) + "s";
}

std::string option_bytes(uint64_t bytes) {
  return std::to_string(bytes / kMiB + (bytes % kMiB == 0 ? 0 : 1)) + "MiB";
}

}  // namespace tencache
