// SPDX-License-Identifier: Apache-2.0
//
// This program knows nothing of tencache: `LD_PRELOAD=$(tencache preload)` or `tencache run` brings
// it.
#include "train.h"

int main() { train(); }
