// SPDX-License-Identifier: Apache-2.0
//
// Everything together under PyTorch's dispatcher, over the simulated driver. CUDA tensors come from
// our allocator, operators with CUDA kernels queue work on the current stream, and the gate's hooks
// make sure that their tensors are there. A kernel that touches a missing tensor fails the context.
// Results must equal those of the host, whatever the budget.
//
// A runtime lives as long as its process, so each body runs in a child, on one thread.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "abi/cuda/open_gpu.h"
#include "abi/error_text.h"
#include "abi/tencache.h"
#include "base/check.h"
#include "base/units.h"
#include "cuda_doors.h"
#include "list_split.h"
#include "support/child_process.h"
#include "support/cuda/simulated_driver.h"
#include "tencache_torch.h"

namespace tencache::shim {
namespace {

using Json = nlohmann::json;

constexpr int64_t kCount = 2 * kMiB / sizeof(int64_t);  // elements of a tensor: one extent

// The state that the functions of CudaCalls and the kernels see.
struct Cuda {
  SimulatedDriver* driver = nullptr;
  c10::DeviceIndex device = 0;
  std::array<CUcontext, 2> contexts = {};
  std::array<CUstream, 2> streams = {};
};
Cuda g_cuda;

CUstream stream_of(c10::DeviceIndex device) {
  return g_cuda.streams.at(static_cast<size_t>(device));
}

CudaCalls calls() {
  CudaCalls calls;
  calls.device_count = [] { return 2; };
  calls.current_device = [] { return g_cuda.device; };
  calls.current_stream = [](c10::DeviceIndex device) -> cudaStream_t { return stream_of(device); };
  calls.synchronize = [](c10::DeviceIndex) { g_cuda.driver->wait_until_idle(); };
  return calls;
}

at::Tensor make_tensor() {
  return at::detail::empty_generic({kCount}, c10::GetAllocator(c10::DeviceType::CUDA),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kLong,
                                   std::nullopt);
}

int64_t* data_of(const at::Tensor& tensor) {
  return static_cast<int64_t*>(tensor.unsafeGetTensorImpl()->unsafe_storage().mutable_data());
}

// Makes the GPU's context current. A new stream or kernel belongs to the GPU whose context is
// current.
void make_current(int device) {
  CUcontext context = g_cuda.contexts.at(static_cast<size_t>(device));
  TENCACHE_CHECK(g_cuda.driver->api().cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

CUstream make_stream(int device) {
  make_current(device);
  CUstream stream = nullptr;
  const DriverApi& api = g_cuda.driver->api();
  TENCACHE_CHECK(api.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) ==
                 CUDA_SUCCESS);
  return stream;
}

// Queues a kernel on the current stream of the first tensor's GPU.
void launch(const std::vector<at::Tensor>& tensors, const std::function<void()>& kernel) {
  std::vector<DeviceRange> touches;
  for (const at::Tensor& tensor : tensors) {
    touches.push_back({reinterpret_cast<CUdeviceptr>(data_of(tensor)), tensor.nbytes()});
  }
  const c10::DeviceIndex device = tensors[0].get_device();
  make_current(device);
  TENCACHE_CHECK(g_cuda.driver->launch(stream_of(device), std::move(touches), kernel) ==
                 CUDA_SUCCESS);
}

// mix() calls this while its operator is open.
std::function<void(const std::vector<at::Tensor>&)> g_inside;

void fill(const at::Tensor& self, int64_t seed) {
  launch({self}, [data = data_of(self), seed] {
    for (int64_t index = 0; index < kCount; ++index) data[index] = seed + index;
  });
}

at::Tensor mix(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor result = make_tensor();
  if (g_inside) g_inside({a, b, result});
  launch({result, a, b}, [out = data_of(result), left = data_of(a), right = data_of(b)] {
    for (int64_t index = 0; index < kCount; ++index) out[index] = left[index] * 3 + right[index];
  });
  return result;
}

void read(const at::Tensor& self, const at::Tensor& on_host) {
  launch({self}, [from = data_of(self), to = on_host.mutable_data_ptr<int64_t>()] {
    std::copy(from, from + kCount, to);
  });
}

// Stands for PyTorch's own operator, since the kernel of its CUDA library is not in this process.
void foreach_add(at::TensorList self, at::TensorList other, const at::Scalar& alpha) {
  for (size_t index = 0; index < self.size(); ++index) {
    launch({self[index], other[index]},
           [to = data_of(self[index]), from = data_of(other[index]), factor = alpha.toLong()] {
             for (int64_t at = 0; at < kCount; ++at) to[at] += factor * from[at];
           });
  }
}

TORCH_LIBRARY(tencache_test, library) {
  library.def("fill(Tensor(a!) self, int seed) -> ()");
  library.def("mix(Tensor a, Tensor b) -> Tensor");
  library.def("read(Tensor self, Tensor(b!) on_host) -> ()");
}
TORCH_LIBRARY_IMPL(tencache_test, CUDA, library) {
  library.impl("fill", &fill);
  library.impl("mix", &mix);
  library.impl("read", &read);
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("_foreach_add_.List", &foreach_add); }

template <typename Signature, typename... Arguments>
auto call(const char* name, Arguments&&... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>().call(
      std::forward<Arguments>(arguments)...);
}

at::Tensor make_filled(int64_t seed) {
  at::Tensor tensor = make_tensor();
  call<void(const at::Tensor&, int64_t)>("tencache_test::fill", tensor, seed);
  return tensor;
}

at::Tensor mixed(const at::Tensor& a, const at::Tensor& b) {
  return call<at::Tensor(const at::Tensor&, const at::Tensor&)>("tencache_test::mix", a, b);
}

std::vector<int64_t> values_of(const at::Tensor& tensor) {
  at::Tensor on_host = at::empty({kCount}, at::kLong);
  call<void(const at::Tensor&, const at::Tensor&)>("tencache_test::read", tensor, on_host);
  g_cuda.driver->wait_until_idle();
  const auto* data = on_host.const_data_ptr<int64_t>();
  return {data, data + kCount};
}

int is_cold(const at::Tensor& tensor) { return tencache_is_cold(data_of(tensor)); }

class CudaGateTest : public ::testing::Test {
 protected:
  // Runs the body in a child, with these options.
  void run(std::map<std::string, std::string> options, const std::function<void()>& body) {
    EXPECT_EQ(run_in_child([&] {
                start(std::move(options));
                {
                  const at::AutoDispatchBelowADInplaceOrView below_autograd;
                  body();
                }
                g_inside = nullptr;
                g_cuda.driver->wait_until_idle();
                // The child ends without destructors, like a program whose engines live to the end.
              }),
              0);
  }
  void start(std::map<std::string, std::string> options) {
    options.insert({{"backend", "cuda"},
                    {"device_memory", "32MiB"},
                    {"host_memory", "256MiB"},
                    {"quiet", "on"}});
    for (const auto& [name, text] : options) {
      ASSERT_EQ(tencache_set_option(name.c_str(), text.c_str(), &error_), 0) << error_.message;
    }
    const SimulatedDriverConfig config = {.device_count = 2, .copy_latency_ns = 200'000};
    g_cuda.driver = new SimulatedDriver(config);
    for (const int device : {1, 0}) {
      CUcontext& context = g_cuda.contexts.at(static_cast<size_t>(device));
      ASSERT_EQ(g_cuda.driver->api().cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
      g_cuda.streams.at(static_cast<size_t>(device)) = make_stream(device);
    }
    ASSERT_EQ(tencache_torch_install(&error_), 0) << error_.message;
    allocator_ = new CudaAllocator(
        calls(), [](int ordinal, double fraction, tencache_error* error) -> tencache_gpu* {
          const Result<tencache_gpu*> gpu =
              open_gpu_of_runtime(g_cuda.driver->api(), ordinal, fraction);
          if (gpu.is_ok()) return gpu.value();
          report(gpu.status(), error);
          return nullptr;
        });
    ASSERT_EQ(why_no_cuda_doors(calls()), "");
    install_cuda_doors(*allocator_, calls());
    allocator_->init(2);  // as PyTorch does when it initialises CUDA
  }
  static Json stats() {
    std::string text(1 << 16, '\0');
    EXPECT_LE(tencache_stats_json(text.data(), text.size()), text.size());
    return Json::parse(text.c_str());
  }

  CudaAllocator* allocator_ = nullptr;
  tencache_error error_ = {};
};

// Replaces each tensor three times by a mix of two, and compares all of them with the host's
// results.
void run_program(const std::function<void(size_t)>& before_op = {}) {
  constexpr size_t kTensors = 24;
  std::vector<at::Tensor> tensors;
  std::vector<std::vector<int64_t>> expected;
  for (size_t index = 0; index < kTensors; ++index) {
    tensors.push_back(make_filled(static_cast<int64_t>(index) * 1000));
    expected.emplace_back(kCount);
    for (int64_t at = 0; at < kCount; ++at) {
      expected[index][at] = static_cast<int64_t>(index) * 1000 + at;
    }
  }
  for (size_t op = 0; op < 3 * kTensors; ++op) {
    const size_t left = op % kTensors, right = (op * 7 + 3) % kTensors, to = (op + 5) % kTensors;
    if (before_op) before_op(op);
    tensors[to] = mixed(tensors[left], tensors[right]);
    std::vector<int64_t> made(kCount);
    for (int64_t at = 0; at < kCount; ++at) {
      made[at] = expected[left][at] * 3 + expected[right][at];
    }
    expected[to] = std::move(made);
  }
  for (size_t index = 0; index < kTensors; ++index) {
    EXPECT_EQ(values_of(tensors[index]), expected[index]) << "tensor " << index;
  }
}

TEST_F(CudaGateTest, BothDoorsAreOursAndCpuTensorsAreNot) {
  const c10::Allocator* const cpu_allocator = c10::GetCPUAllocator();
  run({}, [&] {
    EXPECT_EQ(cuda_api::get(), allocator_);
    EXPECT_EQ(c10::GetAllocator(c10::DeviceType::CUDA), allocator_);
    EXPECT_EQ(c10::getDeviceAllocator(c10::DeviceType::CUDA), allocator_);
    EXPECT_EQ(c10::GetCPUAllocator(), cpu_allocator);
    EXPECT_EQ(stats()["gpus"].size(), 0u) << "no GPU is opened before it is used";
    const at::Tensor tensor = make_tensor();
    EXPECT_EQ(tensor.device(), at::Device(at::kCUDA, 0));
    EXPECT_EQ(stats()["gpus"].size(), 1u);
    // Tensors that exist now would stay outside another allocator's budget.
    const std::string reason = why_no_cuda_doors(calls());
    EXPECT_NE(reason.find("\"tencache\" holds "), std::string::npos) << reason;
    EXPECT_NE(reason.find("MiB of GPU memory already"), std::string::npos) << reason;
    EXPECT_NE(reason.find("before the first CUDA tensor"), std::string::npos);
  });
}

TEST_F(CudaGateTest, ResultsAreTheSameWithRoomAndWithout) {
  run({{"device_memory", "128MiB"}}, [] {
    run_program();
    EXPECT_EQ(stats()["bytes"]["evicted"], 0);
    EXPECT_EQ(tencache_is_armed(), 1) << "without the guard, ops are watched from the start";
  });
  run({}, [] {
    run_program();
    const Json now = stats();
    EXPECT_GT(now["bytes"]["evicted"], 32 * kMiB);
    EXPECT_GT(now["bytes"]["fetched"], 32 * kMiB);
    EXPECT_EQ(now["over_budget"]["events"], 0);
    EXPECT_LE(now["peak"]["device"], 32 * kMiB);
  });
}

TEST_F(CudaGateTest, ChaosChangesNothing) {
  run({{"chaos", "7"}}, [] {
    run_program();
    EXPECT_GT(stats()["chaos_evictions"], 50);
  });
}

TEST_F(CudaGateTest, OpsOnSeveralStreamsWaitForWhatIsBroughtBack) {
  run({{"chaos", "3"}, {"chaos_probability", "0.5"}}, [] {
    const std::array<CUstream, 2> streams = {g_cuda.streams[0], make_stream(0)};
    run_program([&](size_t op) {
      // The streams take turns, each after the other's earlier work, as with wait_stream().
      const CUstream next = streams.at(op % 2), last = g_cuda.streams[0];
      if (next == last) return;
      const DriverApi& api = g_cuda.driver->api();
      CUevent event = nullptr;
      ASSERT_EQ(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
      ASSERT_EQ(api.cuEventRecord(event, last), CUDA_SUCCESS);
      ASSERT_EQ(api.cuStreamWaitEvent(next, event, 0), CUDA_SUCCESS);
      ASSERT_EQ(api.cuEventDestroy(event), CUDA_SUCCESS);
      g_cuda.streams[0] = next;
    });
  });
}

TEST_F(CudaGateTest, AnOpsTensorsArePinnedWhileItRuns) {
  run({{"arm_at", "0.01"}, {"plan", "off"}}, [] {
    const at::Tensor a = make_filled(1), b = make_filled(2), other = make_filled(3);
    g_cuda.driver->wait_until_idle();
    EXPECT_GT(tencache_evict_all(), 0u);
    make_filled(4);  // arms, if nothing did before
    mixed(a, other);
    g_cuda.driver->wait_until_idle();
    tencache_evict_all();
    EXPECT_EQ(is_cold(a) + is_cold(b) + is_cold(other), 3);
    int inside_count = 0;
    g_inside = [&](const std::vector<at::Tensor>& tensors) {
      ++inside_count;
      g_cuda.driver->wait_until_idle();
      tencache_evict_all();
      for (const at::Tensor& tensor : tensors) EXPECT_EQ(is_cold(tensor), 0);
    };
    const at::Tensor result = mixed(a, b);
    EXPECT_EQ(inside_count, 1);
    EXPECT_EQ(is_cold(other), 1) << "nobody has asked for it";
    g_cuda.driver->wait_until_idle();
    EXPECT_EQ(tencache_evict_all(), 2u) << "the op has ended; no op has named its result yet";
    EXPECT_EQ(values_of(result)[5], (1 + 5) * 3 + 2 + 5);
  });
}

TEST_F(CudaGateTest, ListOperatorsAreCutToTheBudget) {
  run({{"chunk_share", "0.25"}}, [] {
    std::vector<at::Tensor> weights, gradients;
    for (int64_t index = 0; index < 12; ++index) {
      weights.push_back(make_filled(index));
      gradients.push_back(make_filled(100 * index));
    }
    ASSERT_EQ(tencache_is_armed(), 1);
    at::_foreach_add_(weights, gradients, 2);
    EXPECT_EQ(split_counts().calls, 1u);
    EXPECT_EQ(split_counts().chunks, 6u) << "a quarter of the budget holds two pairs";
    for (int64_t index = 0; index < 12; ++index) {
      const std::vector<int64_t> values = values_of(weights[static_cast<size_t>(index)]);
      EXPECT_EQ(values[0], index + 200 * index);
      EXPECT_EQ(values[kCount - 1], index + 200 * index + 3 * (kCount - 1));
    }
    EXPECT_EQ(stats()["over_budget"]["events"], 0);
  });
}

// A second GPU is opened when it is first used, here while hooks are armed and ops have run.
TEST_F(CudaGateTest, EachGpuHasItsBudgetAndItsStream) {
  run({{"chaos", "5"}}, [] {
    run_program();
    g_cuda.device = 1;
    run_program();
    g_cuda.device = 0;
    run_program();
    const Json now = stats();
    ASSERT_EQ(now["gpus"].size(), 2u);
    for (const Json& gpu : now["gpus"]) {
      EXPECT_GT(gpu["bytes"]["fetched"], 32 * kMiB);
      EXPECT_LE(gpu["peak"]["device"], 32 * kMiB);
    }
  });
}

TEST_F(CudaGateTest, WhatAGraphNamesStaysOnTheGpu) {
  run({{"arm_at", "0.01"}}, [this] {
    const at::Tensor input = make_filled(1), other = make_filled(2);
    mixed(input, other);
    g_cuda.driver->wait_until_idle();
    tencache_evict_all();
    ASSERT_EQ(is_cold(input), 1);
    const c10::MempoolId_t pool = {1, 0};
    allocator_->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    g_cuda.driver->set_capturing(g_cuda.streams[0], true);
    const at::Tensor output = mixed(input, input);
    g_cuda.driver->set_capturing(g_cuda.streams[0], false);
    allocator_->endAllocateToPool(0, pool);
    mixed(other, other);
    g_cuda.driver->wait_until_idle();
    tencache_evict_all();
    EXPECT_EQ(is_cold(input), 0);
    EXPECT_EQ(is_cold(other), 1);
    EXPECT_EQ(is_cold(output), -1) << "memory of a graph is no extent";
    EXPECT_EQ(stats()["graph_extents"], 1);
  });
}

}  // namespace
}  // namespace tencache::shim
