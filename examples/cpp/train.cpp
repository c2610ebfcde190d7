// SPDX-License-Identifier: Apache-2.0
//
// An ordinary training loop with libtorch: a multilayer perceptron with Adam, on one random batch
// and on a GPU where there is one. Its parameters, gradients and optimizer state take 128 MiB.
#include "train.h"

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>

namespace {

constexpr int64_t kWidth = 1024;
constexpr int64_t kBatch = 64;
constexpr int kLayers = 8;
constexpr int kSteps = 8;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < kLayers; ++layer) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

// The FNV-1a hash of the tensor's bytes, continued from `hash`. The copy is made by an op, as all
// uses of tensors should be; reading the parameter's memory itself would be right, too, but slower
// under tencache.
uint64_t hash_of(const torch::Tensor& tensor, uint64_t hash) {
  const bool non_blocking = false;
  const bool copies = true;
  const torch::Tensor copy = tensor.detach().to(torch::kCPU, non_blocking, copies);
  const auto* const bytes = static_cast<const uint8_t*>(copy.data_ptr());
  for (size_t index = 0; index < copy.nbytes(); ++index)
    hash = (hash ^ bytes[index]) * 1099511628211U;
  return hash;
}

}  // namespace

void train() {
  torch::manual_seed(0);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::nn::Sequential model = make_model();
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  const torch::Tensor input = torch::randn({kBatch, kWidth}).to(device);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss = torch::mse_loss(model->forward(input), input);
    loss.backward();
    optimizer.step();
    std::printf("step %d loss %a\n", step, static_cast<double>(loss.item<float>()));
  }
  uint64_t hash = 14695981039346656037U;
  for (const torch::Tensor& parameter : model->parameters()) hash = hash_of(parameter, hash);
  std::printf("parameters %016llx\n", static_cast<unsigned long long>(hash));
}
