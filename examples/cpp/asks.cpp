// SPDX-License-Identifier: Apache-2.0
//
// This program asks for tencache itself, with the budget from the command line: asks 72MiB. Other
// options come from the variables TENCACHE_*.
#include <tencache.h>

#include <cstdio>

#include "train.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s BUDGET, for example 72MiB\n", arguments[0]);
    return 2;
  }
  // tencache must be enabled before the first tensors exist.
  tencache_error error = {};
  if (tencache_read_environment(&error) != TENCACHE_OK ||
      tencache_set_option("device_memory", arguments[1], &error) != TENCACHE_OK ||
      tencache_enable(&error) != TENCACHE_OK) {
    std::fprintf(stderr, "%s: %s\n", arguments[0], error.message);
    return 2;
  }
  train();
}
