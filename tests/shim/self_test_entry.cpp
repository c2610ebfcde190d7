// SPDX-License-Identifier: Apache-2.0
//
// The C door into a self-test that was compiled against other headers (tests/shim/CMakeLists.txt).
// Threads: one.
#include <string>

#include "self_test.h"

extern "C" __attribute__((visibility("default"))) const char* why_layouts_differ() {
  static const std::string difference = tencache::shim::why_layouts_differ();
  return difference.c_str();
}
