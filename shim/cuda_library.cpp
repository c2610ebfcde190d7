// SPDX-License-Identifier: Apache-2.0
//
// The exported C functions of the library for GPU memory. They test torch's layouts, then install
// the hooks, and the doors last, so that memory of the core exists only where the gate can see it.
//
// Threads: any. install_mutex is held during every install.
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

#include "cuda_allocator.h"
#include "cuda_calls.h"
#include "cuda_doors.h"
#include "cuda_self_test.h"
#include "layout_refusal.h"
#include "pinned_allocator.h"
#include "tencache_torch.h"
#include "tencache_torch_cuda.h"

namespace tencache::shim {
namespace {

std::mutex install_mutex;
bool has_doors = false;                              // guarded by install_mutex
PinnedAllocator* the_pinned_allocator = nullptr;     // likewise; once made, never destroyed
std::atomic<CudaAllocator*> the_allocator{nullptr};  // likewise, but any thread reads it

int test_layouts(tencache_error* error) {
  const std::string difference = why_cuda_layouts_differ();
  if (difference.empty()) return TENCACHE_OK;
  return refuse(layout_refusal(difference), error);
}

// Starts the runtime, the hooks and the allocator, but no doors. REQUIRES: install_mutex is held.
int start(tencache_error* error) {
  if (the_allocator.load() != nullptr) return TENCACHE_OK;
  const int code = tencache_torch_install(error);
  if (code != TENCACHE_OK) return code;
  if (std::strcmp(tencache_backend(), "cuda") != 0) {
    return refuse(std::string("tencache is enabled with backend=") + tencache_backend() +
                      " in this process, and keeps no memory of GPUs; enable it once, with "
                      "backend=cuda.",
                  error);
  }
  the_allocator.store(new CudaAllocator(torch_cuda_calls(), &tencache_open_gpu));
  return TENCACHE_OK;
}

int install(tencache_error* error) {
  const std::lock_guard lock(install_mutex);
  if (has_doors) return TENCACHE_OK;
  // Check before starting anything: a start cannot be undone.
  int code = test_layouts(error);
  if (code != TENCACHE_OK) return code;
  const std::string reason = why_no_cuda_doors(torch_cuda_calls());
  if (!reason.empty()) return refuse(reason, error);
  code = start(error);
  if (code != TENCACHE_OK) return code;
  if (the_pinned_allocator == nullptr) {
    the_pinned_allocator =
        new PinnedAllocator(torch_cuda_calls(), &tencache_pinned_open, present_pinned_allocator());
  }
  install_cuda_doors(*the_allocator.load(), torch_cuda_calls());
  install_pinned_door(*the_pinned_allocator);
  has_doors = true;
  return TENCACHE_OK;
}

// Returns the allocator, and starts it first for a program that calls neither
// tencache_torch_cuda_install() nor Python's enable().
CudaAllocator& started_allocator() {
  if (CudaAllocator* const allocator = the_allocator.load()) return *allocator;
  const std::lock_guard lock(install_mutex);
  tencache_error error = {};
  int code = test_layouts(&error);
  if (code == TENCACHE_OK && tencache_is_started() == 0) {
    code = tencache_read_environment(&error);
    if (code == TENCACHE_OK) code = tencache_set_option("backend", "cuda", &error);
  }
  if (code == TENCACHE_OK) code = start(&error);
  TORCH_CHECK(code == TENCACHE_OK, error.message);
  CudaAllocator& allocator = *the_allocator.load();
  install_stream_callback(torch_cuda_calls());
  if (!allocator.initialized()) allocator.init(torch_cuda_calls().device_count());
  return allocator;
}

}  // namespace
}  // namespace tencache::shim

using namespace tencache::shim;

extern "C" {

int tencache_torch_cuda_install(tencache_error* error) {
  try {
    return install(error);
  } catch (const std::exception& failure) {
    return refuse(std::string("PyTorch refused tencache's CUDA allocator: ") + failure.what(),
                  error);
  }
}

void* tencache_torch_cuda_allocator(void) {
  return static_cast<cuda_api::CUDAAllocator*>(the_allocator.load());
}

void* tencache_cuda_malloc(size_t bytes, int device, tencache_cuda_stream stream) {
  return started_allocator().allocate_on(static_cast<c10::DeviceIndex>(device), bytes, stream);
}

void tencache_cuda_free(void* address, size_t /*bytes*/, int /*device*/,
                        tencache_cuda_stream /*stream*/) {
  started_allocator().raw_delete(address);
}

}  // extern "C"
