// SPDX-License-Identifier: Apache-2.0
//
// Operators for which the emulated GPU has a kernel of its own, because the CPU's kernel is
// missing, takes other arguments than CUDA's, or differs from a GPU's in what a program can notice
// (copies, random numbers). A kernel composed of other operators on the device queues a task for
// each of these. Its bits are those of its formula, computed in the order in which it calls them,
// which need not be the bits of the CPU's composite. One table names them all. Kernels have no
// state; any thread may call them.
#pragma once
#include <array>
#include <span>
#include <tuple>

#include "operators/values.h"

namespace emulated_gpu::operators {

struct OwnKernel {
  const char* name;  // without "aten::"
  torch::CppFunction (*make)();
};
std::span<const OwnKernel> own_kernels();

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking);
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train);

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hidden, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& workspace,
                                                                     bool has_bias);
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cell,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias);
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hidden,
                                                      const std::optional<Tensor>& grad_cell,
                                                      const Tensor& cell, const Tensor& next_cell,
                                                      const Tensor& workspace, bool has_bias);

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, at::IntArrayRef shape,
                                    const std::optional<Tensor>& weight,
                                    std::optional<double> epsilon);
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             at::IntArrayRef shape, const Tensor& reciprocal_rms,
                                             const std::optional<Tensor>& weight,
                                             std::array<bool, 2> is_wanted);

}  // namespace emulated_gpu::operators
