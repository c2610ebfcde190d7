// SPDX-License-Identifier: Apache-2.0
//
// ResultShapes runs Meta kernels. A Python number among the arguments stays a tensor, because Meta
// kernels in Python need it so. An error of a Meta kernel is no error of the program: running the
// operator afterwards gives the CPU kernel's own message. Any thread may call.
#include "operators/result_shapes.h"

#include "operators/aliases.h"
#include "operators/settings.h"
#include "operators/shape_key.h"

namespace emulated_gpu::operators {

namespace {

constexpr size_t kEntriesMax = 10000;

std::shared_ptr<const Shapes> ask(const OperatorHandle& op, const std::vector<IValue>& arguments) {
  auto made = std::make_shared<Shapes>();
  OnePerTensor meta([](const Tensor& t) {
    return t.unsafeGetTensorImpl()->is_wrapped_number() && !t.is_cuda() ? t : meta_of(t);
  });
  for (const IValue& value : arguments) {
    made->arguments.push_back(value.isDevice()      ? IValue(at::Device(at::kMeta))
                              : value.isGenerator() ? IValue()
                                                    : map_tensors(value, meta));
  }
  made->results = made->arguments;
  try {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &made->results);
  } catch (const std::exception& error) {
    if (settings().is_logging)
      fprintf(stderr, "emulated GPU: no shapes of %s: %s\n", op.schema().name().c_str(),
              error.what());
    return nullptr;
  }
  return made;
}

}  // namespace

std::shared_ptr<const Shapes> ResultShapes::find(const OperatorHandle& op,
                                                 const std::vector<IValue>& arguments) {
  ShapeKey key;
  for (const IValue& value : arguments) {
    if (!key.add(value)) return ask(op, arguments);
  }
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key.bytes());
    if (found != by_key_.end()) return found->second;
  }
  std::shared_ptr<const Shapes> made = ask(op, arguments);
  if (made == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  if (by_key_.size() >= kEntriesMax) by_key_.clear();
  by_key_.emplace(key.bytes(), made);
  return made;
}

}  // namespace emulated_gpu::operators
