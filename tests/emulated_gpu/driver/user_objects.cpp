// SPDX-License-Identifier: Apache-2.0
//
// User objects: objects that a program lets graphs own, as NCCL's process groups do with the
// tensors of a captured collective. An object counts its references, which the program and graphs
// hold. Giving up the last one calls the program's destructor, on the same thread and at once; CUDA
// does so some time later on a thread of its own.
#include <atomic>
#include <memory>

#include "driver/functions.h"
#include "support/cuda/simulated_graph.h"

namespace tencache {
namespace {

class UserObject {
 public:
  UserObject(void* value, CUhostFn destroy, unsigned count)
      : value_(value), destroy_(destroy), count_(count) {}

  void retain(unsigned count) { count_ += count; }
  void release(unsigned count) {
    if (count_.fetch_sub(count) != count) return;
    destroy_(value_);
    delete this;
  }

 private:
  ~UserObject() = default;

  void* const value_;
  const CUhostFn destroy_;
  std::atomic<unsigned> count_;
};

UserObject* object_of(CUuserObject handle) { return reinterpret_cast<UserObject*>(handle); }

}  // namespace

CUresult create_user_object(SimulatedDriver& /*driver*/, CUuserObject* made, void* value,
                            CUhostFn destroy, unsigned count, unsigned flags) {
  // CUDA requires this flag, which says that nobody can wait for the destructor.
  if (made == nullptr || destroy == nullptr || count == 0 ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *made = reinterpret_cast<CUuserObject>(new UserObject(value, destroy, count));
  return CUDA_SUCCESS;
}

CUresult retain_user_object(SimulatedDriver& /*driver*/, CUuserObject object, unsigned count) {
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  object_of(object)->retain(count);
  return CUDA_SUCCESS;
}

CUresult release_user_object(SimulatedDriver& /*driver*/, CUuserObject object, unsigned count) {
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  object_of(object)->release(count);
  return CUDA_SUCCESS;
}

CUresult keep_user_object(SimulatedDriver& /*driver*/, CUgraph graph, CUuserObject object,
                          unsigned count, unsigned flags) {
  if (graph == nullptr || object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  UserObject* const owned = object_of(object);
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) owned->retain(count);
  reinterpret_cast<SimulatedGraph*>(graph)->keep(
      std::shared_ptr<void>(owned, [owned, count](void*) { owned->release(count); }));
  return CUDA_SUCCESS;
}

}  // namespace tencache
