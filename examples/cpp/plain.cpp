// SPDX-License-Identifier: Apache-2.0
//
// Knows nothing of tencache: `LD_PRELOAD=$(tencache preload)` or `tencache run` brings it.
#include "train.h"

int main() { train(); }
