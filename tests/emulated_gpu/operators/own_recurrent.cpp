// SPDX-License-Identifier: Apache-2.0
//
// CUDA's fused cells of LSTM and GRU with their backward, for which the CPU has only composites.
// The matrix products are done before: a cell gets the gates' sums and adds the biases. The
// workspace for the backward pass holds what CUDA's kernels keep there, in their order: i, f, g, o
// of an LSTM, and r, z, n, the hidden state and its part of n of a GRU. Each step is an operator on
// the device. There is no state, and any thread may call.
#include "operators/own_kernels.h"
#include "operators/tasks.h"

namespace emulated_gpu::operators {

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hidden, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const InsideOperator inside;
  const auto gates = [](const Tensor& sums, const std::optional<Tensor>& bias) {
    return (has(bias) ? sums + *bias : sums).chunk(3, 1);
  };
  const std::vector<Tensor> in = gates(input_gates, input_bias);
  const std::vector<Tensor> back = gates(hidden_gates, hidden_bias);
  const Tensor r = (in[0] + back[0]).sigmoid(), z = (in[1] + back[1]).sigmoid();
  const Tensor n = (in[2] + r * back[2]).tanh();
  return {(hidden - n) * z + n, at::cat({r, z, n, hidden, back[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const InsideOperator inside;
  const std::vector<Tensor> kept = workspace.chunk(5, 1);
  const Tensor &r = kept[0], &z = kept[1], &n = kept[2], &hidden = kept[3], &hidden_n = kept[4];
  const Tensor grad_n = grad * (1 - z) * (1 - n * n);
  const Tensor grad_z = grad * (hidden - n) * z * (1 - z);
  const Tensor grad_r = grad_n * hidden_n * r * (1 - r);
  const Tensor grad_input = at::cat({grad_r, grad_z, grad_n}, 1);
  const Tensor grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  return {grad_input, grad_hidden, grad * z, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cell,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const InsideOperator inside;
  Tensor sums = input_gates + hidden_gates;
  if (has(input_bias)) sums = sums + *input_bias;
  if (has(hidden_bias)) sums = sums + *hidden_bias;
  const std::vector<Tensor> gates = sums.chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid();
  const Tensor g = gates[2].tanh(), o = gates[3].sigmoid();
  const Tensor next_cell = f * cell + i * g;
  return {o * next_cell.tanh(), next_cell, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hidden,
                                                      const std::optional<Tensor>& grad_cell,
                                                      const Tensor& cell, const Tensor& next_cell,
                                                      const Tensor& workspace, bool has_bias) {
  const InsideOperator inside;
  const std::vector<Tensor> kept = workspace.chunk(4, 1);
  const Tensor &i = kept[0], &f = kept[1], &g = kept[2], &o = kept[3];
  Tensor grad_c = has(grad_cell) ? *grad_cell : at::zeros_like(next_cell);
  Tensor grad_o = at::zeros_like(next_cell);
  if (has(grad_hidden)) {
    const Tensor bent = next_cell.tanh();
    grad_c = grad_c + *grad_hidden * o * (1 - bent * bent);
    grad_o = *grad_hidden * bent * o * (1 - o);
  }
  const Tensor grad_gates = at::cat(
      {grad_c * g * i * (1 - i), grad_c * cell * f * (1 - f), grad_c * i * (1 - g * g), grad_o}, 1);
  return {grad_gates, grad_c * f, has_bias ? grad_gates.sum(0) : Tensor()};
}

}  // namespace emulated_gpu::operators
