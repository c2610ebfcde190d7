// SPDX-License-Identifier: Apache-2.0
//
// Bytes beyond ASCII stay as they are: most are letters in UTF-8. A text is never cut within such a
// letter. Nothing here keeps state.
//
// Threads: any.
#include "base/shown_text.h"

#include <cstdio>

namespace tencache {
namespace {

// How many bytes of a long text are shown, at its beginning and at its end. Most users' paths fit
// whole; two such texts fit into tencache_error.message beside the reason.
constexpr size_t kHeadBytes = 160;
constexpr size_t kTailBytes = 80;
constexpr size_t kLeftOutBytesMin = 40;  // leaving out less saves no more than the note takes

/// Whether the byte continues a letter of UTF-8.
bool continues_letter(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

void append_escaped(std::string& line, std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
      continue;
    }
    char escape[8];
    snprintf(escape, sizeof escape, "\\x%02x", byte);
    line += c == '\n' ? "\\n" : c == '\t' ? "\\t" : escape;
  }
}

}  // namespace

std::string shown(std::string_view text) {
  std::string line;
  if (text.size() < kHeadBytes + kTailBytes + kLeftOutBytesMin) {
    append_escaped(line, text);
    return line;
  }
  size_t head = kHeadBytes;
  size_t tail = text.size() - kTailBytes;
  // A letter takes four bytes at most; a longer row is no text and may be cut anywhere.
  for (int step = 0; step < 3 && continues_letter(text[head]); ++step) --head;
  for (int step = 0; step < 3 && continues_letter(text[tail]); ++step) ++tail;
  append_escaped(line, text.substr(0, head));
  line += " [" + std::to_string(tail - head) + " bytes left out] ";
  append_escaped(line, text.substr(tail));
  return line;
}

}  // namespace tencache
