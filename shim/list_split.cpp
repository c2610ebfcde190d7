// SPDX-License-Identifier: Apache-2.0
#include "list_split.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "abi/tencache.h"
#include "dispatch_keys.h"
#include "gate_scope.h"
#include "operator_table.h"
#include "tensor_walk.h"
#include "thread_state.h"
#include "torch_error.h"

namespace tencache::shim {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

// The kernels write these counts, any thread reads them. Each is exact; together they may be of
// different moments.
std::atomic<uint64_t> calls_cut{0};
std::atomic<uint64_t> chunks_made{0};

bool is_list_of(const c10::Type& type, c10::TypeKind element) {
  if (type.kind() != c10::TypeKind::ListType) return false;
  return type.containedTypes()[0]->kind() == element;
}

bool is_tensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  return type.kind() == c10::TypeKind::OptionalType &&
         type.containedTypes()[0]->kind() == c10::TypeKind::TensorType;
}

// Whether values of the type are the same for every tensor of the lists.
bool is_plain_value(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::DeviceObjType:
      return true;
    case c10::TypeKind::OptionalType:
      return is_plain_value(*type.containedTypes()[0]);
    default:
      return false;
  }
}

std::string plan_argument(const c10::Argument& argument, size_t index, SplitPlan* plan) {
  const c10::Type& type = *argument.type();
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  if (is_list_of(type, c10::TypeKind::TensorType)) {
    plan->arguments.push_back(ArgumentRole::kTensorList);
    plan->tensor_lists.push_back(index);
    plan->writes_lists = plan->writes_lists || is_written;
    if (is_written && argument.kwarg_only()) plan->out_arguments.push_back(index);
  } else if (is_list_of(type, c10::TypeKind::NumberType)) {
    plan->arguments.push_back(ArgumentRole::kScalarList);
  } else if (is_tensor(type)) {
    // found_inf collects "any tensor was not finite", so each chunk can add to it. Any other
    // written tensor could depend on all tensors at once.
    if (is_written && argument.name() != "found_inf") {
      return "writes the tensor argument " + argument.name();
    }
    plan->arguments.push_back(argument.name() == "scalars" ? ArgumentRole::kScalarsTensor
                                                           : ArgumentRole::kTensor);
  } else if (is_plain_value(type)) {
    plan->arguments.push_back(ArgumentRole::kOther);
  } else {
    return "argument " + argument.name() + " of type " + type.str() + " has no rule";
  }
  return {};
}

std::string plan_return(const c10::FunctionSchema& schema, const c10::Argument& result,
                        SplitPlan* plan) {
  const c10::Type& type = *result.type();
  if (is_list_of(type, c10::TypeKind::TensorType)) {
    plan->returns.push_back({true, 0});
    return {};
  }
  constexpr std::string_view kSuffix = "_out";
  const std::string& name = result.name();
  if (type.kind() == c10::TypeKind::TensorType && name.ends_with(kSuffix)) {
    const auto index = schema.argumentIndexWithName(name.substr(0, name.size() - kSuffix.size()));
    if (index.has_value()) {
      plan->returns.push_back({false, static_cast<size_t>(*index)});
      return {};
    }
  }
  return "returns " + type.str() + (name.empty() ? "" : " " + name) + ", which has no rule";
}

// Cuts the lists into chunks, by the bytes of the tensors at each position of all lists.
class ChunkFinder {
 public:
  ChunkFinder(const SplitPlan& plan, Values arguments) : plan_(plan), arguments_(arguments) {}

  /// The ends of the chunks, in order. Each chunk holds at least one position.
  std::vector<size_t> find(uint64_t bytes_max) {
    const size_t length = arguments_[plan_.tensor_lists.front()].toListRef().size();
    const uint64_t whole_bytes = bytes_of_whole_tensors();
    std::vector<size_t> ends;
    uint64_t bytes = whole_bytes;
    for (size_t position = 0; position < length; ++position) {
      const uint64_t added = add_position(position);
      if (bytes + added > bytes_max && bytes > whole_bytes) {
        ends.push_back(position);
        in_run_.clear();
        bytes = whole_bytes + add_position(position);
      } else {
        bytes += added;
      }
    }
    ends.push_back(length);
    return ends;
  }

 private:
  // The bytes of the tensor's extent, unless the chunk has counted them already: small tensors may
  // share an extent.
  uint64_t bytes_if_new(const c10::IValue& tensor) {
    const void* address = storage_address(tensor.unsafeToTensorImpl());
    const void* begin = tencache_extent_begin(address);
    if (begin == nullptr || !in_run_.insert(begin).second) return 0;
    return tencache_extent_bytes(begin);
  }

  uint64_t add_position(size_t position) {
    uint64_t bytes = 0;
    for (const size_t index : plan_.tensor_lists) {
      const auto list = arguments_[index].toListRef();
      if (!list.empty()) bytes += bytes_if_new(list[position]);
    }
    return bytes;
  }

  uint64_t bytes_of_whole_tensors() {
    uint64_t bytes = 0;
    for (size_t index = 0; index < plan_.arguments.size(); ++index) {
      const bool is_whole = plan_.arguments[index] == ArgumentRole::kTensor ||
                            plan_.arguments[index] == ArgumentRole::kScalarsTensor;
      if (is_whole && arguments_[index].isTensor()) bytes += bytes_if_new(arguments_[index]);
    }
    return bytes;
  }

  const SplitPlan& plan_;
  const Values arguments_;
  std::unordered_set<const void*> in_run_;
};

// Whether a list that is written after everything is read ("out") shares memory with another
// position of any list or with a tensor that is passed whole, or holds the same memory twice. Then
// a chunk could overwrite what a later chunk still reads.
bool out_overlaps(const SplitPlan& plan, Values arguments) {
  std::unordered_map<const void*, size_t> position_of_out;
  for (const size_t index : plan.out_arguments) {
    const auto list = arguments[index].toListRef();
    for (size_t position = 0; position < list.size(); ++position) {
      const void* address = storage_address(list[position].unsafeToTensorImpl());
      if (address == nullptr) continue;
      const auto [entry, is_new] = position_of_out.emplace(address, position);
      if (!is_new && entry->second != position) return true;
    }
  }
  for (size_t index = 0; index < plan.arguments.size(); ++index) {
    const c10::IValue& value = arguments[index];
    if (value.isTensor()) {
      if (position_of_out.count(storage_address(value.unsafeToTensorImpl())) != 0) return true;
    } else if (plan.arguments[index] == ArgumentRole::kTensorList) {
      const auto list = value.toListRef();
      for (size_t position = 0; position < list.size(); ++position) {
        const auto entry =
            position_of_out.find(storage_address(list[position].unsafeToTensorImpl()));
        if (entry != position_of_out.end() && entry->second != position) return true;
      }
    }
  }
  return false;
}

// Whether the call may be split, as far as the schema cannot tell. If it may not, the stock kernel
// gets it unchanged, and raises its own errors if the values are wrong.
bool values_fit(const SplitPlan& plan, Values arguments) {
  const size_t length = arguments[plan.tensor_lists.front()].toListRef().size();
  if (length < 2) return false;
  for (size_t index = 0; index < plan.arguments.size(); ++index) {
    const c10::IValue& value = arguments[index];
    switch (plan.arguments[index]) {
      case ArgumentRole::kTensorList: {
        const size_t own_length = value.toListRef().size();
        if (own_length != 0 && own_length != length) return false;
        break;
      }
      case ArgumentRole::kScalarList:
        if (value.toListRef().size() != length) return false;
        break;
      case ArgumentRole::kScalarsTensor: {
        const at::Tensor& scalars = value.toTensor();
        if (!scalars.defined() || scalars.dim() != 1 ||
            scalars.size(0) != static_cast<int64_t>(length)) {
          return false;
        }
        break;
      }
      case ArgumentRole::kTensor:
        if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() > 1) {
          return false;
        }
        break;
      case ArgumentRole::kOther:
        break;
    }
  }
  return plan.out_arguments.empty() || !out_overlaps(plan, arguments);
}

c10::IValue cut_list(const c10::IValue& value, size_t begin, size_t end) {
  const auto elements = value.toListRef();
  if (elements.empty()) return value;
  c10::impl::GenericList cut(value.toList().elementType());
  cut.reserve(end - begin);
  for (size_t position = begin; position < end; ++position) cut.push_back(elements[position]);
  return cut;
}

torch::jit::Stack cut_arguments(const SplitPlan& plan, Values arguments, size_t begin, size_t end) {
  torch::jit::Stack chunk;
  chunk.reserve(arguments.size());
  for (size_t index = 0; index < arguments.size(); ++index) {
    const c10::IValue& value = arguments[index];
    switch (plan.arguments[index]) {
      case ArgumentRole::kTensorList:
      case ArgumentRole::kScalarList:
        chunk.push_back(cut_list(value, begin, end));
        break;
      case ArgumentRole::kScalarsTensor:
        chunk.emplace_back(value.toTensor().narrow(0, static_cast<int64_t>(begin),
                                                   static_cast<int64_t>(end - begin)));
        break;
      case ArgumentRole::kTensor:
      case ArgumentRole::kOther:
        chunk.push_back(value);
        break;
    }
  }
  return chunk;
}

// Announces that the thread changes tensors in place. Until tencache_end_in_place() the disk is no
// reason to refuse it memory. Throws an out-of-memory error where the disk would make the call
// exceed the budget.
void begin_in_place(const AccessList& accesses) {
  tencache_error error;
  if (tencache_begin_in_place(accesses.data(), accesses.count(), &error) != TENCACHE_OK) {
    throw_out_of_memory(error);
  }
}

// The kernel of one split operator.
class ListSplitKernel final : public c10::OperatorKernel {
 public:
  ListSplitKernel(SplitPlan plan, const OperatorInfo& info) : plan_(std::move(plan)), info_(info) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    const c10::DispatchKeySet below = keys & kBelowBackendSelect;
    if (tencache_is_armed() == 0) {
      op.redispatchBoxed(below, stack);
      return;
    }
    const size_t count = plan_.arguments.size();
    const auto arguments = torch::jit::last(*stack, count);
    AccessList& accesses = cleared_thread_accesses();
    add_arguments(info_, {arguments.data(), arguments.size()}, accesses);
    if (plan_.writes_lists) begin_in_place(accesses);
    const auto end_in_place = c10::make_scope_exit([this] {
      if (plan_.writes_lists) tencache_end_in_place();
    });
    const uint64_t bytes_max = tencache_chunk_bytes();
    if (tencache_distinct_bytes(accesses.data(), accesses.count()) <= bytes_max ||
        !values_fit(plan_, arguments)) {
      const GateScope gate(info_.number, accesses);
      op.redispatchBoxed(below, stack);
      return;
    }
    // Take the arguments off the caller's stack, which gets the results instead.
    const std::vector<c10::IValue> kept(arguments.begin(), arguments.end());
    torch::jit::drop(*stack, count);
    call_in_chunks(op, below, kept, bytes_max, stack);
  }

 private:
  void call_in_chunks(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      std::vector<c10::IValue> arguments, uint64_t bytes_max,
                      torch::jit::Stack* results) const {
    const std::vector<size_t> ends = ChunkFinder(plan_, arguments).find(bytes_max);
    calls_cut.fetch_add(1, std::memory_order_relaxed);
    chunks_made.fetch_add(ends.size(), std::memory_order_relaxed);
    std::vector<c10::List<at::Tensor>> joined(plan_.returns.size());
    // Until the call ends, the runtime knows what its chunks access.
    const AccessList& expected = accesses_by_position(arguments);
    tencache_expect(expected.data(), expected.count());
    const auto forget = c10::make_scope_exit([] { tencache_expect(nullptr, 0); });
    size_t begin = 0;
    for (const size_t end : ends) {
      torch::jit::Stack chunk = cut_arguments(plan_, arguments, begin, end);
      {
        AccessList& accesses = cleared_thread_accesses();
        add_arguments(info_, chunk, accesses);
        const GateScope gate(info_.number, accesses);
        op.redispatchBoxed(keys, &chunk);
      }
      take_results(chunk, &arguments, &joined);
      begin = end;
    }
    for (size_t index = 0; index < plan_.returns.size(); ++index) {
      const ReturnRole& role = plan_.returns[index];
      results->push_back(role.is_list ? c10::IValue(std::move(joined[index]))
                                      : arguments[role.threaded_argument]);
    }
  }

  // The lists' tensors in the order in which chunks name them.
  const AccessList& accesses_by_position(Values arguments) const {
    AccessList& accesses = cleared_thread_accesses();
    const size_t length = arguments[plan_.tensor_lists.front()].toListRef().size();
    for (size_t position = 0; position < length; ++position) {
      for (const size_t index : plan_.tensor_lists) {
        const auto list = arguments[index].toListRef();
        if (!list.empty()) add_value(list[position], TENCACHE_READ, accesses);
      }
    }
    return accesses;
  }

  void take_results(const torch::jit::Stack& chunk, std::vector<c10::IValue>* arguments,
                    std::vector<c10::List<at::Tensor>>* joined) const {
    AccessList& accesses = cleared_thread_accesses();
    for (size_t index = 0; index < plan_.returns.size(); ++index) {
      const ReturnRole& role = plan_.returns[index];
      if (role.is_list) {
        for (const c10::IValue& tensor : chunk[index].toListRef()) {
          (*joined)[index].push_back(tensor.toTensor());
        }
        add_value(chunk[index], TENCACHE_NAME, accesses);
      } else {
        (*arguments)[role.threaded_argument] = chunk[index];
      }
    }
    // Only what an op has named may go cold. No op has named these results yet, although they are
    // complete, and together they may exceed the budget.
    if (accesses.count() > 0) {
      const GateScope names_results(info_.number, accesses);
    }
  }

  const SplitPlan plan_;
  const OperatorInfo& info_;  // lives for ever
};

bool is_candidate(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  const bool has_prefix = name.starts_with("aten::_foreach_") ||
                          name.starts_with("aten::_fused_") ||
                          name.starts_with("aten::_amp_foreach_");
  const auto is_tensor_list = [](const c10::Argument& argument) {
    return is_list_of(*argument.type(), c10::TypeKind::TensorType);
  };
  return has_prefix && std::ranges::any_of(schema.arguments(), is_tensor_list);
}

// The names of the operators that are split. install_list_split() fills the list, which is constant
// afterwards and never destroyed.
std::vector<std::string>& split_names() {
  static auto* const names = new std::vector<std::string>;
  return *names;
}

std::vector<LeftAlone>& left_alone() {
  static auto* const names = new std::vector<LeftAlone>;
  return *names;
}

void install_one(torch::Library& library, const c10::OperatorHandle& op) {
  const std::string name = c10::toString(op.operator_name());
  SplitPlan plan;
  std::string reason = make_split_plan(op.schema(), &plan);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) {
    reason = "has a BackendSelect kernel already";
  }
  if (!reason.empty()) {
    left_alone().push_back({name, reason});
    return;
  }
  OperatorInfo& info = operator_info(op.schema());
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                 std::make_unique<ListSplitKernel>(std::move(plan), info)));
  info.is_split = true;
  split_names().push_back(name);
}

}  // namespace

std::string make_split_plan(const c10::FunctionSchema& schema, SplitPlan* plan) {
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    std::string reason = plan_argument(schema.arguments()[index], index, plan);
    if (!reason.empty()) return reason;
  }
  if (plan->tensor_lists.empty()) return "has no Tensor[] argument";
  for (const c10::Argument& result : schema.returns()) {
    std::string reason = plan_return(schema, result, plan);
    if (!reason.empty()) return reason;
  }
  return {};
}

void install_list_split() {
  // The library is never destroyed: its destructor would remove the kernels under running threads.
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  std::vector<c10::OperatorName> names = c10::Dispatcher::singleton().getAllOpNames();
  std::ranges::sort(names, {}, [](const c10::OperatorName& name) { return c10::toString(name); });
  for (const c10::OperatorName& name : names) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op.has_value() && is_candidate(op->schema())) install_one(*library, *op);
  }
}

SplitCounts split_counts() {
  return {calls_cut.load(std::memory_order_relaxed), chunks_made.load(std::memory_order_relaxed)};
}

const std::vector<std::string>& split_operators() { return split_names(); }
const std::vector<LeftAlone>& operators_left_alone() { return left_alone(); }

}  // namespace tencache::shim
