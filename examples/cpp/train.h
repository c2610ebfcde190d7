// SPDX-License-Identifier: Apache-2.0
//
// The training loop of both programs. It prints each step's loss and a hash of the trained
// parameters, so that two runs can be compared bit by bit.
#pragma once

void train();
