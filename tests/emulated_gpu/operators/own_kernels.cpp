// SPDX-License-Identifier: Apache-2.0
// Kernels in terms of operators that have a CPU kernel. copy_ leaves to PyTorch what it does by
// cudaMemcpyAsync; what PyTorch does by a kernel is a task. Any thread may call; tasks run on
// streams' threads.
#include "operators/own_kernels.h"

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>

#include "operators/emulated_kernel.h"

namespace tencache {

namespace {

// copy_: what PyTorch does by cudaMemcpyAsync it does here too; what it does by a kernel is a task.
Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool is_on_one = self.is_cuda() && source.is_cuda() && self.device() == source.device();
  if (is_on_one && !self.is_same(source) && self.numel() != 0) {
    const bool is_plain = self.dtype() == source.dtype() && self.sizes() == source.sizes() &&
                          self.strides() == source.strides() &&
                          self.is_non_overlapping_and_dense() &&
                          self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
    if (!is_plain) {
      const c10::cuda::CUDAGuard device_guard(self.device().index());
      const InsideGuard inside;
      Tensor expanded = source.expand(self.sizes());
      Ranges ranges;
      ranges.add(self, true);
      ranges.add(expanded, false);
      queue(
          "aten::copy_", ranges,
          [to = alias_of(self), from = alias_of(expanded)]() mutable { to.copy_(from); },
          self.device().index());
      return self;
    }
  }
  return at::native::copy_(self, source, non_blocking);
}

// Has no generator among its arguments.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  const c10::cuda::CUDAGuard device_guard(input.device().index());
  const InsideGuard inside;
  const c10::DeviceIndex device = input.device().index();
  Tensor out(at::detail::empty_strided_cuda(input.sizes(), input.strides(), input.scalar_type(),
                                            input.device()));
  Tensor mask(
      at::detail::empty_strided_cuda(input.sizes(), input.strides(), at::kBool, input.device()));
  if (input.numel() == 0) return {out, mask};
  const bool is_training = !train.has_value() || *train;
  Ranges ranges;
  const MakeGenerator generator = device_generator(IValue(), device, &ranges);
  ranges.add(input, false);
  ranges.add(out, true);
  ranges.add(mask, true);
  queue(
      "aten::native_dropout", ranges,
      [=, in = alias_of(input), out = alias_of(out), mask = alias_of(mask)]() mutable {
        if (!is_training) {
          out.copy_(in);
          mask.fill_(true);
          return;
        }
        mask.bernoulli_(1 - p, generator());
        out.copy_(in.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)));
      },
      device);
  return {out, mask};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& igates, const Tensor& hgates, const Tensor& hx,
                                    const std::optional<Tensor>& b_ih,
                                    const std::optional<Tensor>& b_hh) {
  const InsideGuard inside;
  const bool has_bias = b_ih.has_value() && b_ih->defined();
  const std::vector<Tensor> i = (has_bias ? igates + *b_ih : igates).chunk(3, 1);
  const std::vector<Tensor> h = (has_bias ? hgates + *b_hh : hgates).chunk(3, 1);
  const Tensor r = (i[0] + h[0]).sigmoid(), z = (i[1] + h[1]).sigmoid();
  const Tensor n = (i[2] + r * h[2]).tanh();
  return {(hx - n) * z + n, at::cat({r, z, n, hx, h[2]}, 1)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const InsideGuard inside;
  const std::vector<Tensor> parts = workspace.chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &hn = parts[4];
  const Tensor gn = grad * (1 - z) * (1 - n * n);
  const Tensor gz = grad * (hx - n) * z * (1 - z);
  const Tensor gr = gn * hn * r * (1 - r);
  const Tensor gi = at::cat({gr, gz, gn}, 1), gh = at::cat({gr, gz, gn * r}, 1);
  return {gi, gh, grad * z, has_bias ? gi.sum(0) : Tensor(), has_bias ? gh.sum(0) : Tensor()};
}

// CUDA's one has no CPU kernel.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             at::IntArrayRef shape, const Tensor& rstd,
                                             const std::optional<Tensor>& weight,
                                             std::array<bool, 2> mask) {
  const InsideGuard inside;
  std::vector<int64_t> dims, others;
  for (int64_t i = 0; i < x.dim(); ++i)
    (i < x.dim() - static_cast<int64_t>(shape.size()) ? others : dims).push_back(i);
  const bool has_weight = weight.has_value() && weight->defined();
  const Tensor gx = has_weight ? grad * *weight : grad;
  const Tensor xhat = x * rstd;
  Tensor dx, dw;
  if (mask[0]) dx = ((gx - xhat * (gx * xhat).mean(dims, true)) * rstd).to(x.scalar_type());
  if (mask[1] && has_weight)
    dw = (others.empty() ? grad * xhat : (grad * xhat).sum(others)).to(weight->scalar_type());
  return {dx, dw};
}
std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, at::IntArrayRef shape,
                                    const std::optional<Tensor>& weight,
                                    std::optional<double> eps) {
  const InsideGuard inside;
  std::vector<int64_t> dims;
  for (int64_t i = x.dim() - static_cast<int64_t>(shape.size()); i < x.dim(); ++i)
    dims.push_back(i);
  const Tensor up = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const Tensor rstd =
      (up * up).mean(dims, true).add(eps.value_or(std::numeric_limits<float>::epsilon())).rsqrt();
  Tensor y = up * rstd;
  if (weight.has_value() && weight->defined()) y = y * *weight;
  return {y.to(x.scalar_type()), rstd};
}

// What has no CPU kernel, in terms of operators that have one.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& igates, const Tensor& hgates,
                                             const Tensor& cx, const std::optional<Tensor>& b_ih,
                                             const std::optional<Tensor>& b_hh) {
  const InsideGuard inside;
  Tensor gates = igates + hgates;
  if (b_ih.has_value() && b_ih->defined()) gates = gates + *b_ih + *b_hh;
  const std::vector<Tensor> parts = gates.chunk(4, 1);
  const Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(),
               o = parts[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const InsideGuard inside;
  const auto has = [](const std::optional<Tensor>& t) { return t.has_value() && t->defined(); };
  const std::vector<Tensor> parts = workspace.chunk(4, 1);
  const Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const Tensor tcy = cy.tanh();
  Tensor gcx = has(grad_cy) ? *grad_cy : at::zeros_like(cy);
  Tensor go = at::zeros_like(cy);
  if (has(grad_hy)) {
    gcx = gcx + *grad_hy * o * (1 - tcy * tcy);
    go = *grad_hy * tcy * o * (1 - o);
  }
  const Tensor gates =
      at::cat({gcx * g * i * (1 - i), gcx * cx * f * (1 - f), gcx * i * (1 - g * g), go}, 1);
  return {gates, gcx * f, has_bias ? gates.sum(0) : Tensor()};
}

// CUDA's kernel takes whole numbers; the CPU's does not.
Tensor histc(const Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  const InsideGuard inside;
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", "");
  Stack stack = {at::isIntegralType(self.scalar_type(), true) ? self.to(at::kDouble) : self, bins,
                 min, max};
  static EmulatedKernel kernel(describe(op, "aten::histc"));
  kernel(op, DispatchKeySet(DispatchKey::CUDA), &stack);
  const Tensor result = stack[0].toTensor();
  return result.to(self.scalar_type());
}

}  // namespace

void register_own_kernels(torch::Library* library) {
  library->impl("copy_", torch::CppFunction(&copy));
  library->impl("histc", torch::CppFunction(&histc));
  library->impl("native_dropout", torch::CppFunction(&dropout));
  library->impl("_thnn_fused_lstm_cell", torch::CppFunction(&lstm_cell));
  library->impl("_fused_rms_norm", torch::CppFunction(&rms_norm));
  library->impl("_fused_rms_norm_backward", torch::CppFunction(&rms_norm_backward));
  library->impl("_thnn_fused_gru_cell", torch::CppFunction(&gru_cell));
  library->impl("_thnn_fused_gru_cell_backward", torch::CppFunction(&gru_cell_backward));
  library->impl("_thnn_fused_lstm_cell_backward_impl", torch::CppFunction(&lstm_cell_backward));
}

}  // namespace tencache
