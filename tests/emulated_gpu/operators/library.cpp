// SPDX-License-Identifier: Apache-2.0
//
// The start of libemulated_operators.so when torch loads it, and the C functions that tests find in
// it: the list of operators, and a kernel that no operator announces. The loading thread makes the
// installer before any operator can be called, and the installer lives for ever. The list never
// changes, so any thread may read it.
#include <c10/cuda/CUDAStream.h>

#include "emulated_gpu.h"
#include "operators/installer.h"

#define EMULATED_PUBLIC extern "C" __attribute__((visibility("default")))

namespace emulated_gpu::operators {

namespace {

const Installer& installer() {
  static const Installer* const installed = [] {
    auto* made = new Installer;
    made->install_all();
    return made;
  }();
  return *installed;
}

// Loading the library makes the installer.
[[maybe_unused]] const Installer& installed_when_loaded = installer();

struct Scaling {
  float* data;
  uint64_t count;
  float factor;
};

void scale(void* state) {
  const auto* scaling = static_cast<Scaling*>(state);
  for (uint64_t i = 0; i < scaling->count; ++i) scaling->data[i] *= scaling->factor;
}

void destroy_scaling(void* state) { delete static_cast<Scaling*>(state); }

}  // namespace

}  // namespace emulated_gpu::operators

EMULATED_PUBLIC void emulated_gpu_operators(void (*show)(const char* name, const char* fate,
                                                         uint64_t calls)) {
  for (const auto& installed : emulated_gpu::operators::installer().installed()) {
    show(installed.name.c_str(), installed.fate,
         installed.kernel != nullptr ? installed.kernel->calls() : 0);
  }
}

// Acts as a kernel of an extension: data[i] *= factor in the current stream.
EMULATED_PUBLIC int emulated_gpu_unannounced_scale(uint64_t address, uint64_t count, float factor) {
  using namespace emulated_gpu::operators;
  const EmulatedTask task = {"emulated_gpu_unannounced_scale", scale, destroy_scaling,
                             new Scaling{reinterpret_cast<float*>(address), count, factor}};
  const EmulatedRange range = {address, count * sizeof(float), 1};
  return emulated_gpu_launch(c10::cuda::getCurrentCUDAStream().stream(), &task, &range, 1);
}
