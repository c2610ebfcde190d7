// SPDX-License-Identifier: Apache-2.0
//
// native_dropout, which draws from the device's generator although none is among its arguments. The
// mask marks the kept elements. One task makes the mask and the result, so that a replayed graph
// draws once for both. Any thread may call; the task runs on its stream's thread.
#include <c10/cuda/CUDAGuard.h>

#include "operators/own_kernels.h"
#include "operators/random.h"

namespace emulated_gpu::operators {

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  const c10::DeviceIndex device = input.device().index();
  const c10::cuda::CUDAGuard device_guard(device);
  const InsideOperator inside;
  const Tensor out = at::empty_like(input), mask = at::empty_like(input, at::kBool);
  if (input.numel() == 0) return {out, mask};
  const bool is_training = train.value_or(true);
  Ranges ranges;
  const MakeGenerator generator = next_generator(IValue(), device, &ranges);
  ranges.add(input, false);
  ranges.add(out, true);
  ranges.add(mask, true);
  queue("aten::native_dropout", ranges, device,
        [=, in = alias_of(input), out = alias_of(out), mask = alias_of(mask)] {
          if (!is_training) {
            out.copy_(in);
            mask.fill_(true);
            return;
          }
          mask.bernoulli_(1 - p, generator());
          out.copy_(in.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)));
        });
  return {out, mask};
}

}  // namespace emulated_gpu::operators
