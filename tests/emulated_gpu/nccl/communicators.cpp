// SPDX-License-Identifier: Apache-2.0
//
// The exported functions that make communicators, describe them, and end them. A configuration's
// hints (channels, policies) change nothing here. A communicator that may be made without waiting
// is made before the call returns, which NCCL allows. An ncclUniqueId holds the place where the
// ranks meet.
#include <cstring>

#include "errors.h"
#include "group.h"
#include "handle.h"

using namespace emulated_gpu::nccl;

namespace {

constexpr char kIdMark[] = "emulated NCCL 1";
constexpr unsigned kConfigMagic = 0xcafebeef;

struct UniqueId {
  char mark[sizeof kIdMark];
  Place place;
};
static_assert(sizeof(UniqueId) <= sizeof(ncclUniqueId));

bool is_valid(const ncclConfig_t* config) {
  return config == nullptr || config->magic == kConfigMagic;
}

bool is_ready(ncclComm_t handle) { return handle != nullptr && handle->communicator != nullptr; }

ncclResult_t init_rank(ncclComm_t* handle, int count, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  UniqueId found;
  memcpy(&found, &id, sizeof found);
  int device = 0;
  if (handle == nullptr || count < 1 || rank < 0 || rank >= count || !is_valid(config) ||
      memcmp(found.mark, kIdMark, sizeof kIdMark) != 0) {
    return note_in_group(fail(ncclInvalidArgument, "rank %d of %d cannot be made so", rank, count));
  }
  if (cudaGetDevice(&device) != cudaSuccess) return note_in_group(ncclUnhandledCudaError);
  auto communicator = std::make_shared<Communicator>(found.place, rank, count, device);
  *handle = new ncclComm{communicator};
  return meet_in_group([communicator] { return communicator->join(); });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return ncclInvalidArgument;
  const std::optional<Place> place = make_place();
  if (!place.has_value()) return fail(ncclSystemError, "no shared memory: %s", strerror(errno));
  UniqueId made;
  memcpy(made.mark, kIdMark, sizeof kIdMark);
  made.place = *place;
  *id = {};
  memcpy(id, &made, sizeof made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int count, ncclUniqueId id, int rank) {
  return init_rank(handle, count, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int count, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return init_rank(handle, count, id, rank, config);
}

// More than one place would only spread the load of many ranks.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int count, int rank, int id_count,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  if (id_count < 1 || ids == nullptr) return ncclInvalidArgument;
  return init_rank(handle, count, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* handles, int count, const int* devices) {
  ncclUniqueId id;
  int before = 0;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) return result;
  if (cudaGetDevice(&before) != cudaSuccess) return ncclUnhandledCudaError;
  start_group();
  for (int rank = 0; rank < count; ++rank) {
    if (cudaSetDevice(devices != nullptr ? devices[rank] : rank) != cudaSuccess) {
      note_in_group(ncclUnhandledCudaError);
    } else {
      init_rank(&handles[rank], count, id, rank, nullptr);
    }
  }
  cudaSetDevice(before);
  return end_group();
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (!is_ready(handle) || made == nullptr || !is_valid(config)) return ncclInvalidArgument;
  const bool is_member = color != NCCL_SPLIT_NOCOLOR;
  *made = is_member ? new ncclComm : nullptr;
  return meet_in_group([parent = handle->communicator, child = *made, color, key] {
    std::shared_ptr<Communicator> communicator;
    const ncclResult_t result = parent->split(color, key, &communicator);
    if (child != nullptr) child->communicator = communicator;
    return result;
  });
}

// Queued operations run to their end without the handle.
ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return is_ready(handle) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (is_ready(handle)) handle->communicator->close();
  delete handle;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (is_ready(handle)) handle->communicator->abort();
  return ncclCommDestroy(handle);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  if (!is_ready(handle) || error == nullptr) return ncclInvalidArgument;
  *error = handle->communicator->asynchronous_error();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  if (!is_ready(handle) || count == nullptr) return ncclInvalidArgument;
  *count = handle->communicator->count();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  if (!is_ready(handle) || rank == nullptr) return ncclInvalidArgument;
  *rank = handle->communicator->rank();
  return ncclSuccess;
}

// NCCL gives no handle either where a buffer gains nothing by it.
ncclResult_t ncclCommRegister(const ncclComm_t handle, void*, size_t, void** registration) {
  if (!is_ready(handle) || registration == nullptr) return ncclInvalidArgument;
  *registration = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_failure(); }

ncclResult_t ncclGroupStart() {
  start_group();
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return end_group(); }

}  // extern "C"
#pragma GCC visibility pop
