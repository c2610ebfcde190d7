// SPDX-License-Identifier: Apache-2.0
//
// Messages between ranks, in pieces through the mailboxes. All messages of one exchange move at the
// same time, as those of an NCCL group must. Messages between the same two ranks in the same lane
// and direction arrive in the order in which they were given. A message that is longer or shorter
// than its receiver expects is an error, where NCCL would hang or spoil memory. The calling thread,
// a stream's, waits until all have moved.
#pragma once

#include <cstddef>
#include <vector>

#include "meeting.h"

namespace emulated_gpu::nccl {

struct Message {
  Lane lane = Lane::kCollective;
  bool is_sent = false;
  int peer = 0;  // may be the rank itself
  char* bytes = nullptr;
  size_t count = 0;
};

/// Moves all messages, and waits until they have moved. `what` names the exchange in errors.
ncclResult_t exchange(Meeting* meeting, const char* what, const std::vector<Message>& messages);

}  // namespace emulated_gpu::nccl
