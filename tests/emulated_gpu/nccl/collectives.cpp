// SPDX-License-Identifier: Apache-2.0
//
// The exported functions that move and reduce data. Each checks its arguments and puts an operation
// into the thread's group; outside of a group it is queued in the stream at once. Nothing waits.
#include <cstring>

#include "errors.h"
#include "group.h"
#include "handle.h"

using namespace emulated_gpu::nccl;

namespace {

// The arguments that all calls have in common.
struct Call {
  const char* name;
  ncclComm_t handle;
  cudaStream_t stream;
  ncclDataType_t type;
};

// Queues the operation that `make` returns. `make` gets the caller and the bytes of a value.
template <typename Make>
ncclResult_t queue(const Call& call, int peer, const Make& make) {
  const size_t bytes = bytes_of(call.type);
  if (call.handle == nullptr || call.handle->communicator == nullptr || bytes == 0 || peer < 0 ||
      peer >= call.handle->communicator->count()) {
    return note_in_group(fail(ncclInvalidArgument, "%s: no communicator, rank or type", call.name));
  }
  const std::shared_ptr<Communicator>& communicator = call.handle->communicator;
  return launch_in_group(communicator, call.stream, make(communicator->caller(call.name), bytes));
}

// Queues the operation that `make` returns. `make` gets the caller and the reduction.
template <typename Make>
ncclResult_t queue_reduction(const Call& call, ncclRedOp_t operation, int root, const Make& make) {
  std::optional<Reduction> reduction;
  if (call.handle != nullptr && call.handle->communicator != nullptr) {
    reduction = call.handle->communicator->find_reduction(operation, call.type);
  }
  if (!reduction.has_value()) {
    return note_in_group(fail(ncclInvalidArgument, "%s does not reduce type %d by operation %d",
                              call.name, static_cast<int>(call.type), static_cast<int>(operation)));
  }
  return queue(call, root, [&](const Caller& caller, size_t) { return make(caller, *reduction); });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  return queue_reduction({__func__, handle, stream, type}, operation, 0,
                         [&](const Caller& caller, const Reduction& reduction) {
                           return all_reduce(caller, from, to, count, reduction);
                         });
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t handle, cudaStream_t stream) {
  return queue_reduction({__func__, handle, stream, type}, operation, root,
                         [&](const Caller& caller, const Reduction& reduction) {
                           return reduce_to(caller, from, to, count, reduction, root);
                         });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  return queue_reduction({__func__, handle, stream, type}, operation, 0,
                         [&](const Caller& caller, const Reduction& reduction) {
                           return reduce_scatter(caller, from, to, count, reduction);
                         });
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t handle, cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, root, [&](const Caller& caller, size_t bytes) {
    return broadcast(caller, from, to, count * bytes, root);
  });
}

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t handle,
                       cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, root, [&](const Caller& caller, size_t bytes) {
    return broadcast(caller, buffer, buffer, count * bytes, root);
  });
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t handle, cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, 0, [&](const Caller& caller, size_t bytes) {
    return all_gather(caller, from, to, count * bytes);
  });
}

ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                        ncclComm_t handle, cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, root, [&](const Caller& caller, size_t bytes) {
    return gather(caller, from, to, count * bytes, root);
  });
}

ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t handle, cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, 0, [&](const Caller& caller, size_t bytes) {
    return all_to_all(caller, from, to, count * bytes);
  });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t handle, cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, peer, [&](const Caller& caller, size_t bytes) {
    return send(caller, from, count * bytes, peer);
  });
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  return queue({__func__, handle, stream, type}, peer, [&](const Caller& caller, size_t bytes) {
    return receive(caller, to, count * bytes, peer);
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* operation, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  if (operation == nullptr || scalar == nullptr || !is_reducible(type) || handle == nullptr ||
      handle->communicator == nullptr) {
    return fail(ncclInvalidArgument, "%s: no scalar, communicator or type", __func__);
  }
  Factor factor;
  if (residence == ncclScalarDevice) {
    factor.address = scalar;
  } else {
    memcpy(factor.value, scalar, bytes_of(type));
  }
  *operation = handle->communicator->add_factor(type, factor);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t operation, ncclComm_t handle) {
  const bool is_known = handle != nullptr && handle->communicator != nullptr &&
                        handle->communicator->remove_factor(operation);
  return is_known ? ncclSuccess : ncclInvalidArgument;
}

}  // extern "C"
#pragma GCC visibility pop
