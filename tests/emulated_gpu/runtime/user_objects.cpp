// SPDX-License-Identifier: Apache-2.0
//
// The run time's functions of user objects: objects that a program lets graphs own, as NCCL's
// process groups do with the tensors of a captured collective. An object counts its references,
// which the program and graphs hold. Giving up the last one calls the program's destructor, on the
// same thread and at once; CUDA does so some time later on a thread of its own. Any thread may
// call.
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "contexts.h"
#include "errors.h"
#include "graph.h"

using namespace emulated_gpu::runtime;

namespace {

class UserObject {
 public:
  UserObject(void* value, cudaHostFn_t destroy, unsigned count)
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
  const cudaHostFn_t destroy_;
  std::atomic<unsigned> count_;
};

UserObject* object_of(cudaUserObject_t handle) { return reinterpret_cast<UserObject*>(handle); }

}  // namespace

EMULATED_PUBLIC cudaError_t cudaUserObjectCreate(cudaUserObject_t* made, void* value,
                                                 cudaHostFn_t destroy, unsigned count,
                                                 unsigned flags) {
  // CUDA requires this flag, which says that nobody can wait for the destructor.
  if (made == nullptr || destroy == nullptr || count == 0 ||
      flags != cudaUserObjectNoDestructorSync)
    return note(cudaErrorInvalidValue);
  *made = reinterpret_cast<cudaUserObject_t>(new UserObject(value, destroy, count));
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  if (object == nullptr || count == 0) return note(cudaErrorInvalidValue);
  object_of(object)->retain(count);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  if (object == nullptr || count == 0) return note(cudaErrorInvalidValue);
  object_of(object)->release(count);
  return cudaSuccess;
}
EMULATED_PUBLIC cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                      unsigned count, unsigned flags) {
  if (graph == nullptr || object == nullptr || count == 0) return note(cudaErrorInvalidValue);
  UserObject* const owned = object_of(object);
  if ((flags & cudaGraphUserObjectMove) == 0) owned->retain(count);
  reinterpret_cast<Graph*>(graph)->keep(
      std::shared_ptr<void>(owned, [owned, count](void*) { owned->release(count); }));
  return cudaSuccess;
}
