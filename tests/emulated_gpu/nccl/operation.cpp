// SPDX-License-Identifier: Apache-2.0
//
// The operations in terms of messages, and their run.
#include "operation.h"

#include <cstring>
#include <list>

namespace emulated_gpu::nccl {

namespace {

void reads(Operation* operation, const void* address, size_t bytes) {
  operation->ranges.push_back({reinterpret_cast<uint64_t>(address), bytes, 0});
}
void writes(Operation* operation, void* address, size_t bytes) {
  operation->ranges.push_back({reinterpret_cast<uint64_t>(address), bytes, 1});
}

// The address of that part. Its bytes are not const, but callers only read bytes that they send.
char* at(const void* address, int part, size_t bytes) {
  return static_cast<char*>(const_cast<void*>(address)) + static_cast<size_t>(part) * bytes;
}
void sends(Operation* operation, int peer, const void* from, size_t bytes) {
  operation->messages.push_back(
      {.is_sent = true, .peer = peer, .bytes = at(from, 0, 0), .count = bytes});
}
void receives(Operation* operation, int peer, void* to, size_t bytes) {
  operation->messages.push_back(
      {.is_sent = false, .peer = peer, .bytes = at(to, 0, 0), .count = bytes});
}

// Makes this rank give its input to a reduction.
void gives(Operation* operation, const Reduction& reduction, const void* from, size_t count) {
  reads(operation, from, count * bytes_of(reduction.type));
  if (!reduction.factor.has_value()) return;
  operation->input = Operation::Input{reduction, from, count};
  if (reduction.factor->address == nullptr) return;
  reads(operation, reduction.factor->address, bytes_of(reduction.type));
}

// The operation on its input multiplied by the factor; the products go into the buffer.
Operation scaled(const Operation& operation, std::vector<char>* buffer) {
  if (!operation.input.has_value()) return operation;
  const auto& [reduction, from, count] = *operation.input;
  buffer->resize(count * bytes_of(reduction.type));
  scale(reduction, from, buffer->data(), count);
  const auto moved = [&, from = static_cast<const char*>(from)](const void* bytes) {
    return buffer->data() + (static_cast<const char*>(bytes) - from);
  };
  Operation result = operation;
  for (Message& message : result.messages) message.bytes = moved(message.bytes);
  if (result.sum.has_value()) result.sum->own = moved(result.sum->own);
  return result;
}

// The parts of one sum: the rank's own, and buffers for the others'.
struct Parts {
  std::vector<std::vector<char>> received;
  std::vector<const void*> addresses;
};

Parts parts_of(const Operation::Sum& sum, const Meeting& meeting, std::vector<Message>* messages) {
  Parts parts;
  const size_t bytes = sum.count * bytes_of(sum.reduction.type);
  for (int rank = 0; rank < meeting.count(); ++rank) {
    std::vector<char>& buffer = parts.received.emplace_back();
    if (rank == meeting.rank()) {
      parts.addresses.push_back(sum.own);
      continue;
    }
    buffer.resize(bytes);
    parts.addresses.push_back(buffer.data());
    messages->push_back({.is_sent = false, .peer = rank, .bytes = buffer.data(), .count = bytes});
  }
  return parts;
}

}  // namespace

Operation all_reduce(const Caller& caller, const void* from, void* to, size_t count,
                     const Reduction& reduction) {
  Operation result{.name = caller.name};
  const size_t bytes = count * bytes_of(reduction.type);
  gives(&result, reduction, from, count);
  writes(&result, to, bytes);
  for (int peer = 0; peer < caller.count; ++peer) {
    if (peer != caller.rank) sends(&result, peer, from, bytes);
  }
  result.sum = Operation::Sum{reduction, from, to, count};
  return result;
}

Operation reduce_to(const Caller& caller, const void* from, void* to, size_t count,
                    const Reduction& reduction, int root) {
  Operation result{.name = caller.name};
  const size_t bytes = count * bytes_of(reduction.type);
  gives(&result, reduction, from, count);
  if (caller.rank != root) {
    sends(&result, root, from, bytes);
    return result;
  }
  writes(&result, to, bytes);
  result.sum = Operation::Sum{reduction, from, to, count};
  return result;
}

Operation reduce_scatter(const Caller& caller, const void* from, void* to, size_t count,
                         const Reduction& reduction) {
  Operation result{.name = caller.name};
  const size_t bytes = count * bytes_of(reduction.type);
  gives(&result, reduction, from, count * static_cast<size_t>(caller.count));
  writes(&result, to, bytes);
  for (int peer = 0; peer < caller.count; ++peer) {
    if (peer != caller.rank) sends(&result, peer, at(from, peer, bytes), bytes);
  }
  result.sum = Operation::Sum{reduction, at(from, caller.rank, bytes), to, count};
  return result;
}

Operation broadcast(const Caller& caller, const void* from, void* to, size_t bytes, int root) {
  Operation result{.name = caller.name};
  writes(&result, to, bytes);
  if (caller.rank != root) {
    receives(&result, root, to, bytes);
    return result;
  }
  reads(&result, from, bytes);
  for (int peer = 0; peer < caller.count; ++peer) {
    if (peer != root) sends(&result, peer, from, bytes);
  }
  result.copy = Operation::Copy{to, from, bytes};
  return result;
}

Operation all_gather(const Caller& caller, const void* from, void* to, size_t bytes) {
  Operation result{.name = caller.name};
  reads(&result, from, bytes);
  writes(&result, to, bytes * static_cast<size_t>(caller.count));
  for (int peer = 0; peer < caller.count; ++peer) {
    if (peer == caller.rank) continue;
    sends(&result, peer, from, bytes);
    receives(&result, peer, at(to, peer, bytes), bytes);
  }
  result.copy = Operation::Copy{at(to, caller.rank, bytes), from, bytes};
  return result;
}

Operation gather(const Caller& caller, const void* from, void* to, size_t bytes, int root) {
  Operation result{.name = caller.name};
  reads(&result, from, bytes);
  if (caller.rank != root) {
    sends(&result, root, from, bytes);
    return result;
  }
  writes(&result, to, bytes * static_cast<size_t>(caller.count));
  for (int peer = 0; peer < caller.count; ++peer) {
    if (peer != root) receives(&result, peer, at(to, peer, bytes), bytes);
  }
  result.copy = Operation::Copy{at(to, root, bytes), from, bytes};
  return result;
}

Operation all_to_all(const Caller& caller, const void* from, void* to, size_t bytes) {
  Operation result{.name = caller.name};
  reads(&result, from, bytes * static_cast<size_t>(caller.count));
  writes(&result, to, bytes * static_cast<size_t>(caller.count));
  for (int peer = 0; peer < caller.count; ++peer) {
    if (peer == caller.rank) continue;
    sends(&result, peer, at(from, peer, bytes), bytes);
    receives(&result, peer, at(to, peer, bytes), bytes);
  }
  result.copy = Operation::Copy{at(to, caller.rank, bytes), at(from, caller.rank, bytes), bytes};
  return result;
}

Operation send(const Caller& caller, const void* from, size_t bytes, int peer) {
  Operation result{.name = caller.name};
  reads(&result, from, bytes);
  sends(&result, peer, from, bytes);
  result.messages.back().lane = Lane::kPointToPoint;
  return result;
}

Operation receive(const Caller& caller, void* to, size_t bytes, int peer) {
  Operation result{.name = caller.name};
  writes(&result, to, bytes);
  receives(&result, peer, to, bytes);
  result.messages.back().lane = Lane::kPointToPoint;
  return result;
}

ncclResult_t run(Meeting* meeting, std::span<const Operation> given) {
  std::list<std::vector<char>> inputs;
  std::vector<Operation> operations;
  for (const Operation& operation : given) {
    operations.push_back(scaled(operation, &inputs.emplace_back()));
  }
  std::vector<Message> messages;
  std::list<Parts> sums;
  for (const Operation& operation : operations) {
    messages.insert(messages.end(), operation.messages.begin(), operation.messages.end());
    if (operation.sum.has_value()) {
      sums.push_back(parts_of(*operation.sum, *meeting, &messages));
    }
  }
  const char* name = operations.size() == 1 ? operations.front().name : "a group of operations";
  const ncclResult_t result = exchange(meeting, name, messages);
  if (result != ncclSuccess) return result;
  auto parts = sums.begin();
  for (const Operation& operation : operations) {
    if (operation.copy.has_value() && operation.copy->to != operation.copy->from) {
      memmove(operation.copy->to, operation.copy->from, operation.copy->bytes);
    }
    if (!operation.sum.has_value()) continue;
    reduce(operation.sum->reduction, (parts++)->addresses, operation.sum->result,
           operation.sum->count);
  }
  return ncclSuccess;
}

}  // namespace emulated_gpu::nccl
