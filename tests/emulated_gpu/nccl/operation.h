// SPDX-License-Identifier: Apache-2.0
//
// NCCL's operations as values: the messages that a rank exchanges, its copies within its own
// memory, its reductions afterwards, and the device memory that all of it touches. They are made
// when the program calls NCCL, perhaps within a group, and run later on a stream's thread: once, or
// many times from a CUDA graph. Running changes nothing in them.
//
// A reduction brings all parts together before it writes its result, so every operation may work in
// place where NCCL's may.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "emulated_gpu.h"
#include "exchange.h"
#include "reduction.h"

namespace emulated_gpu::nccl {

struct Operation {
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };
  /// The parts of all ranks, each sent by its rank.
  struct Sum {
    Reduction reduction;
    const void* own = nullptr;
    void* result = nullptr;
    size_t count = 0;
  };

  /// What this rank gives, which it multiplies by its factor first.
  struct Input {
    Reduction reduction;
    const void* from = nullptr;
    size_t count = 0;
  };

  const char* name = nullptr;  // lives for ever
  std::vector<Message> messages = {};
  std::vector<EmulatedRange> ranges = {};
  std::optional<Copy> copy = std::nullopt;
  std::optional<Sum> sum = std::nullopt;
  std::optional<Input> input = std::nullopt;  // where there is a factor
};

/// The operation's name, this rank, and the number of ranks.
struct Caller {
  const char* name;
  int rank;
  int count;
};

// `count` is a number of values of the reduction's type. One message carries `count` values or
// `bytes` bytes.
Operation all_reduce(const Caller& caller, const void* from, void* to, size_t count,
                     const Reduction& reduction);
Operation reduce_to(const Caller& caller, const void* from, void* to, size_t count,
                    const Reduction& reduction, int root);
Operation reduce_scatter(const Caller& caller, const void* from, void* to, size_t count,
                         const Reduction& reduction);
Operation broadcast(const Caller& caller, const void* from, void* to, size_t bytes, int root);
Operation all_gather(const Caller& caller, const void* from, void* to, size_t bytes);
Operation gather(const Caller& caller, const void* from, void* to, size_t bytes, int root);
Operation all_to_all(const Caller& caller, const void* from, void* to, size_t bytes);
Operation send(const Caller& caller, const void* from, size_t bytes, int peer);
Operation receive(const Caller& caller, void* to, size_t bytes, int peer);

/// Multiplies inputs, moves all messages at the same time, then copies and reduces.
ncclResult_t run(Meeting* meeting, std::span<const Operation> operations);

}  // namespace emulated_gpu::nccl
