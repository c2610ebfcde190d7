// SPDX-License-Identifier: Apache-2.0
#include "self_test.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>

#include "layout_refusal.h"
#include "tensor_walk.h"
#include "vtables.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>
#define TENCACHE_HAS_C10D 1
#else
#define TENCACHE_HAS_C10D 0
#endif

// Vtables that libtorch exports, by their mangled names.
extern "C" {
extern const char kAllocatorVtable[] asm("_ZTVN3c109AllocatorE");
#if TENCACHE_HAS_C10D
extern const char kWorkVtable[] asm("_ZTVN4c10d4WorkE");
#endif
}

namespace tencache::shim {
namespace {

constexpr char kCopy[] = "aten::copy_";
constexpr std::array<const char*, 3> kCopyArguments = {"self", "src", "non_blocking"};
constexpr std::array<int64_t, 2> kSizes = {3, 5};
constexpr std::array<int64_t, 2> kStrides = {5, 1};
constexpr size_t kElements = 15;

using Elements = std::array<float, kElements>;

std::string why_version_differs() {
  const TorchVersion loaded = loaded_torch();
  if (loaded.major == TORCH_VERSION_MAJOR && loaded.minor == TORCH_VERSION_MINOR) return {};
  return "libtorch itself says that it is torch " + loaded.text();
}

// An allocator that notes how libtorch calls it and gives out memory of its own.
class ProbeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    asked_bytes_ = bytes;
    return {memory_.data(), memory_.data(), raw_deleter(), c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, std::min(bytes, memory_.size()));
    copied_bytes_ = bytes;
  }

  bool was_asked_for(const c10::DataPtr& result, size_t bytes) const {
    return asked_bytes_ == bytes && copied_bytes_ == bytes && result.get() == memory_.data() &&
           result.get_context() == memory_.data() && result.get_deleter() == &keep;
  }

 private:
  static void keep(void* /*memory*/) {}

  std::array<char, 64> memory_ = {};
  size_t asked_bytes_ = 0;
  mutable size_t copied_bytes_ = 0;
};

std::string why_allocator_differs() {
  const std::array functions = {
      NamedSlot{slot_of(&c10::Allocator::is_simple_data_ptr), "is_simple_data_ptr"}};
  std::string difference = why_slots_differ("c10::Allocator", exported_slots(kAllocatorVtable),
                                            slot_count<c10::Allocator>(), functions);
  if (!difference.empty()) return difference;
  ProbeAllocator probe;
  const char bytes[] = "copied";
  const c10::DataPtr copy = probe.clone(bytes, sizeof(bytes));  // calls allocate() and copy_data()
  if (probe.was_asked_for(copy, sizeof(bytes)) &&
      std::memcmp(copy.get(), bytes, sizeof(bytes)) == 0) {
    return {};
  }
  return "c10::Allocator::clone() does not call an allocator as expected";
}

// A tensor that libtorch has made over memory of ours.
class BlobTensor {
 public:
  explicit BlobTensor(Elements& elements) {
    aoti_torch_create_tensor_from_blob(elements.data(), kSizes.size(), kSizes.data(),
                                       kStrides.data(), 0, aoti_torch_dtype_float32(),
                                       aoti_torch_device_type_cpu(), 0, &handle_);
  }
  ~BlobTensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  BlobTensor(const BlobTensor&) = delete;
  BlobTensor& operator=(const BlobTensor&) = delete;

  AtenTensorHandle handle() const { return handle_; }
  // libtorch's handle is the address of a Tensor.
  const at::Tensor& tensor() const { return *reinterpret_cast<const at::Tensor*>(handle_); }
  const at::TensorImpl* impl() const { return tensor().unsafeGetTensorImpl(); }

 private:
  AtenTensorHandle handle_ = nullptr;
};

std::string why_tensor_differs(const BlobTensor& blob, const Elements& elements) {
  if (blob.handle() == nullptr) return "libtorch refuses to make a tensor";
  int64_t elements_there = 0;
  int64_t bytes_there = 0;
  void* address_there = nullptr;
  aoti_torch_get_numel(blob.handle(), &elements_there);
  aoti_torch_get_storage_size(blob.handle(), &bytes_there);
  aoti_torch_get_data_ptr(blob.handle(), &address_there);
  const at::TensorImpl* impl = blob.impl();
  // These members lie behind the storage, so they move if anything before them changes.
  const c10::DispatchKeySet keys = impl->key_set();
  if (impl->numel() != elements_there || impl->storage_offset() != 0 ||
      !keys.has(c10::DispatchKey::CPU) || keys.has(c10::DispatchKey::Sparse)) {
    return "members of c10::TensorImpl lie elsewhere";
  }
  if (storage_address(impl) != elements.data() || address_there != elements.data() ||
      impl->unsafe_storage().nbytes() != static_cast<size_t>(bytes_there)) {
    return "members of c10::StorageImpl lie elsewhere";
  }
  return {};
}

// A value that libtorch has made.
class MadeValue {
 public:
  ~MadeValue() {
    if (handle_ != nullptr) aoti_torch_delete_c10_value_object(handle_);
  }
  MadeValue() = default;
  MadeValue(const MadeValue&) = delete;
  MadeValue& operator=(const MadeValue&) = delete;

  C10IValueHandle* target() { return &handle_; }
  const c10::IValue& value() const { return *reinterpret_cast<const c10::IValue*>(handle_); }

 private:
  C10IValueHandle handle_ = nullptr;
};

bool is_text(const c10::IValue& value, const char* text) {
  return value.isString() && value.toStringRef() == text;
}

std::string why_values_differ(const BlobTensor& blob) {
  constexpr int64_t kNumber = 0x7ead0beef;
  std::array<const char*, 2> texts = {"first", "second"};
  MadeValue number;
  MadeValue tensor;
  MadeValue list;
  aoti_torch_int64_to_ivalue(kNumber, number.target());
  aoti_torch_tensor_to_ivalue(blob.handle(), tensor.target());
  aoti_torch_strlist_to_ivalue(texts.data(), texts.size(), list.target());
  if (!number.value().isInt() || number.value().toInt() != kNumber) {
    return "a number in a c10::IValue lies elsewhere";
  }
  if (!tensor.value().isTensor() || tensor.value().unsafeToTensorImpl() != blob.impl()) {
    return "a tensor in a c10::IValue lies elsewhere";
  }
  if (!list.value().isList() || list.value().toListRef().size() != texts.size() ||
      !is_text(list.value().toListRef()[0], texts[0]) ||
      !is_text(list.value().toListRef()[1], texts[1])) {
    return "a list in a c10::IValue lies elsewhere";
  }
  return {};
}

// The copy that the callbacks below expect on the thread of the test, and what they find.
struct CopyEvent {
  const BlobTensor& target;
  const BlobTensor& source;
  bool has_begun = false;
  bool has_ended = false;
  std::string difference = {};
};
thread_local CopyEvent* expected_event = nullptr;

std::string why_inputs_differ(const at::RecordFunction& event, const CopyEvent& copy) {
  const auto inputs = event.inputs();
  if (!event.needsInputs() || event.num_inputs() != kCopyArguments.size() ||
      inputs.size() != kCopyArguments.size()) {
    return "members of at::RecordFunction lie elsewhere";
  }
  const bool are_right = inputs[0].isTensor() && inputs[1].isTensor() && inputs[2].isBool() &&
                         inputs[0].unsafeToTensorImpl() == copy.target.impl() &&
                         inputs[1].unsafeToTensorImpl() == copy.source.impl();
  return are_right ? "" : "the inputs of an at::RecordFunction lie elsewhere";
}

bool is_copy(const at::RecordFunction& event) { return std::strcmp(event.name(), kCopy) == 0; }

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event) noexcept {
  CopyEvent* const copy = expected_event;
  if (copy == nullptr || copy->has_begun || !is_copy(event)) return nullptr;
  copy->has_begun = true;
  copy->difference = why_inputs_differ(event, *copy);
  return nullptr;
}

void on_end(const at::RecordFunction& event, at::ObserverContext* /*context*/) noexcept {
  if (expected_event != nullptr && is_copy(event)) expected_event->has_ended = true;
}

std::string why_events_differ(const BlobTensor& target, const BlobTensor& source) {
  CopyEvent copy{target, source};
  const at::RecordFunctionGuard guard(true);
  expected_event = &copy;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  aoti_torch_copy_(target.handle(), source.handle(), 0);
  at::removeCallback(handle);
  expected_event = nullptr;
  if (!copy.has_begun || !copy.has_ended) {
    return "an at::RecordFunctionCallback is not called for an operator";
  }
  return copy.difference;
}

std::string why_schemas_differ() {
  const auto op = c10::Dispatcher::singleton().findSchema({kCopy, ""});
  if (!op.has_value()) return std::string("there is no operator ") + kCopy;
  const c10::FunctionSchema& schema = op->schema();
  const auto& arguments = schema.arguments();
  if (arguments.size() != kCopyArguments.size() || schema.returns().size() != 1) {
    return "members of c10::FunctionSchema lie elsewhere";
  }
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].name() != kCopyArguments[index]) {
      return "members of c10::Argument lie elsewhere";
    }
  }
  const c10::AliasInfo* written = arguments[0].alias_info();
  if (schema.name() != kCopy || written == nullptr || !written->isWrite() ||
      arguments[1].alias_info() != nullptr) {
    return "members of c10::FunctionSchema lie elsewhere";
  }
  return {};
}

// Calls an operator through the part of the dispatcher that lies in its headers.
std::string why_calls_differ(const BlobTensor& target, const BlobTensor& source) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kCopy, "");
  torch::jit::Stack stack = {target.tensor(), source.tensor(), false};
  op.callBoxed(&stack);
  const bool has_result = stack.size() == 1 && stack[0].isTensor();
  return has_result ? "" : "a boxed call of an operator gives another result";
}

std::string why_work_differs() {
#if TENCACHE_HAS_C10D
  const std::array functions = {NamedSlot{slot_of(&c10d::Work::isCompleted), "isCompleted"}};
  return why_slots_differ("c10d::Work", exported_slots(kWorkVtable), slot_count<c10d::Work>(),
                          functions);
#else
  return {};
#endif
}

std::string why_objects_differ() {
  // Whatever mode the program has entered on this thread, the operators below are plain ones.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set,
                                               c10::default_excluded_set);
  Elements numbers;
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  Elements first = {};
  Elements second = {};
  const BlobTensor source(numbers);
  const BlobTensor by_call(first);
  const BlobTensor boxed(second);
  std::string difference = why_tensor_differs(source, numbers);
  if (difference.empty()) difference = why_tensor_differs(by_call, first);
  if (difference.empty()) difference = why_tensor_differs(boxed, second);
  if (difference.empty()) difference = why_values_differ(source);
  if (difference.empty()) difference = why_events_differ(by_call, source);
  if (difference.empty() && first != numbers) difference = "an operator copies other elements";
  if (difference.empty()) difference = why_schemas_differ();
  if (difference.empty()) difference = why_calls_differ(boxed, source);
  if (difference.empty() && second != numbers) difference = "a boxed call copies other elements";
  return difference;
}

}  // namespace

std::string why_layouts_differ() {
  try {
    for (const auto why :
         {&why_version_differs, &why_allocator_differs, &why_work_differs, &why_objects_differ}) {
      std::string difference = why();
      if (!difference.empty()) return difference;
    }
    return {};
  } catch (const std::exception& failure) {
    return std::string("it refuses a call: ") + failure.what();
  }
}

}  // namespace tencache::shim
