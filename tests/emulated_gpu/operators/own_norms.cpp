// SPDX-License-Identifier: Apache-2.0
//
// CUDA's fused RMS norm, for which the CPU has only a composite. As in CUDA's kernel, half
// precision is normalised in float, and the statistics for the backward pass are float too. Each
// step is an operator on the device. There is no state, and any thread may call.
#include <limits>

#include "operators/own_kernels.h"
#include "operators/tasks.h"

namespace emulated_gpu::operators {

namespace {

struct Dimensions {
  std::vector<int64_t> normalized, others;
};

Dimensions dimensions(const Tensor& x, at::IntArrayRef shape) {
  Dimensions result;
  const int64_t first = x.dim() - static_cast<int64_t>(shape.size());
  for (int64_t i = 0; i < x.dim(); ++i)
    (i < first ? result.others : result.normalized).push_back(i);
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, at::IntArrayRef shape,
                                    const std::optional<Tensor>& weight,
                                    std::optional<double> epsilon) {
  const InsideOperator inside;
  const bool is_double = x.scalar_type() == at::kDouble;
  const double added = epsilon.value_or(is_double ? std::numeric_limits<double>::epsilon()
                                                  : std::numeric_limits<float>::epsilon());
  const Tensor wide = is_double ? x : x.to(at::kFloat);
  const Tensor reciprocal_rms =
      (wide * wide).mean(dimensions(x, shape).normalized, true).add(added).rsqrt();
  Tensor result = wide * reciprocal_rms;
  if (has(weight)) result = result * *weight;
  return {result.to(x.scalar_type()), reciprocal_rms};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             at::IntArrayRef shape, const Tensor& reciprocal_rms,
                                             const std::optional<Tensor>& weight,
                                             std::array<bool, 2> is_wanted) {
  const InsideOperator inside;
  const Dimensions dims = dimensions(x, shape);
  const Tensor weighted = has(weight) ? grad * *weight : grad;
  const Tensor normalized = x * reciprocal_rms;
  Tensor grad_x, grad_weight;
  if (is_wanted[0]) {
    const Tensor mean = (weighted * normalized).mean(dims.normalized, true);
    grad_x = ((weighted - normalized * mean) * reciprocal_rms).to(x.scalar_type());
  }
  if (is_wanted[1] && has(weight)) {
    const Tensor product = grad * normalized;
    grad_weight =
        (dims.others.empty() ? product : product.sum(dims.others)).to(weight->scalar_type());
  }
  return {grad_x, grad_weight};
}

}  // namespace emulated_gpu::operators
