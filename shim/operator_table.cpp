// SPDX-License-Identifier: Apache-2.0
#include "operator_table.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "composite_operators.h"

namespace tencache::shim {
namespace detail {

std::atomic<uint64_t> operator_table_version{1};

}  // namespace detail

namespace {

constexpr size_t kArgumentsMax = 64;

// These operators announce that the caller is about to read the bytes: numpy(), tolist() and repr
// call them on a tensor and then read it. Their schemas make them look like views.
constexpr std::array<std::string_view, 2> kReadersByCustom = {"aten::resolve_conj",
                                                              "aten::resolve_neg"};

// These operators look only at sizes, strides, dtype and device of their tensors, which their
// schemas do not say. Without this list a cold tensor would be fetched for nothing.
constexpr std::array<std::string_view, 21> kMetadataReaders = {
    "aten::empty_like",    "aten::zeros_like",  "aten::ones_like",
    "aten::full_like",     "aten::rand_like",   "aten::randn_like",
    "aten::randint_like",  "aten::new_empty",   "aten::new_zeros",
    "aten::new_ones",      "aten::new_full",    "aten::new_empty_strided",
    "aten::is_same_size",  "aten::result_type", "aten::is_pinned",
    "aten::sym_size",      "aten::sym_stride",  "aten::sym_numel",
    "aten::is_contiguous", "aten::size",        "aten::_has_same_storage_numel",
};

// These operators change what a tensor says of its memory, or who else uses the memory, and touch
// no byte. Their schemas call that a write.
constexpr std::array<std::string_view, 9> kMetadataWriters = {
    "aten::detach_",    "aten::t_",          "aten::transpose_",
    "aten::swapaxes_",  "aten::swapdims_",   "aten::squeeze_",
    "aten::unsqueeze_", "aten::as_strided_", "aten::record_stream",
};

// These operators read only the data of `self`; `other` gives a shape or dtype.
constexpr std::array<std::string_view, 4> kShapeTakers = {"aten::expand_as", "aten::view_as",
                                                          "aten::reshape_as", "aten::type_as"};

// These operators write their gradients only to divide them by a `grad_scale`, if one is given.
// Their schemas call the gradients written in any case.
constexpr std::array<std::string_view, 4> kGradientScalers = {
    "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"};

using SymbolSet = std::unordered_set<c10::Symbol>;

struct Table {
  std::mutex mutex;
  // The key is the address of the name in the registered schema. `mutex` guards the map. An info is
  // never freed, because callers keep pointers to it.
  std::unordered_map<const char*, OperatorInfo*> by_name;
};

// The table is never destroyed: events may come from threads that outlive static destruction.
Table& table() {
  static auto* const instance = new Table;
  return *instance;
}

template <size_t kCount>
bool contains(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void collect_symbols(const c10::AliasInfo& alias, SymbolSet* symbols) {
  symbols->insert(alias.beforeSets().begin(), alias.beforeSets().end());
  symbols->insert(alias.afterSets().begin(), alias.afterSets().end());
  for (const c10::AliasInfo& contained : alias.containedTypes()) {
    collect_symbols(contained, symbols);
  }
}

bool writes(const c10::AliasInfo& alias) {
  return alias.isWrite() || std::ranges::any_of(alias.containedTypes(), writes);
}

// Whether the operator returns the argument as an alias, that is, a view of it.
bool is_returned(const c10::AliasInfo& alias, const SymbolSet& returned) {
  SymbolSet symbols;
  collect_symbols(alias, &symbols);
  return std::ranges::any_of(symbols,
                             [&](c10::Symbol symbol) { return returned.contains(symbol); });
}

// Whether the operator is set_() without a size. With a size, set_() might have to allocate and to
// copy.
bool is_set_without_size(const c10::FunctionSchema& schema) {
  return schema.name() == "aten::set_" && schema.arguments().size() <= 2;
}

uint32_t access_of(const c10::FunctionSchema& schema, const c10::Argument& argument,
                   const SymbolSet& returned, bool is_collective) {
  // Schemas of collectives have no annotations, although most collectives write.
  if (is_collective) return TENCACHE_READ | TENCACHE_WRITE;
  const std::string& name = schema.name();
  if (contains(kReadersByCustom, name)) return TENCACHE_READ;
  if (contains(kMetadataWriters, name) || is_set_without_size(schema)) return TENCACHE_NAME;
  const c10::AliasInfo* alias = argument.alias_info();
  if (alias != nullptr && writes(*alias)) return TENCACHE_READ | TENCACHE_WRITE;
  if (contains(kMetadataReaders, name)) return TENCACHE_NAME;
  if (contains(kShapeTakers, name) && argument.name() == "other") return TENCACHE_NAME;
  // Only PyTorch's own operators are known to make views without reading bytes.
  const bool is_view = alias != nullptr && is_returned(*alias, returned);
  return is_view && name.starts_with("aten::") ? TENCACHE_NAME : TENCACHE_READ;
}

uint32_t written_with(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.name() != "grads" || !contains(kGradientScalers, schema.name())) {
    return TensorArgument::kAnything;
  }
  const auto scale = schema.argumentIndexWithName("grad_scale");
  return scale.has_value() ? static_cast<uint32_t>(*scale) : TensorArgument::kAnything;
}

bool returns_custom_class(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::ClassType;
  });
}

class DeregistrationListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}

  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    Table& entries = table();
    const std::lock_guard lock(entries.mutex);
    if (entries.by_name.erase(op.schema().name().c_str()) != 0) {
      detail::operator_table_version.fetch_add(1, std::memory_order_release);
    }
  }
};

// REQUIRES: the table's lock is held.
OperatorInfo& find_or_add(Table& entries, const char* key, const c10::FunctionSchema& schema) {
  OperatorInfo*& entry = entries.by_name[key];
  if (entry == nullptr) {
    auto made = std::make_unique<OperatorInfo>();
    describe_operator(schema, made.get());
    made->is_composite = !contains(kReadersByCustom, schema.name()) && only_calls_operators(schema);
    made->number = tencache_register_op(made->name.c_str());
    entry = made.release();
  }
  return *entry;
}

}  // namespace

bool may_hold_tensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::AnyListType:
    case c10::TypeKind::AnyTupleType:
    case c10::TypeKind::VarType:
      return true;
    default: {
      // The gate cannot see tensors inside a custom class.
      if (type.kind() == c10::TypeKind::ClassType) return false;
      return std::ranges::any_of(type.containedTypes(),
                                 [](const c10::TypePtr& each) { return may_hold_tensors(*each); });
    }
  }
}

void describe_operator(const c10::FunctionSchema& schema, OperatorInfo* info) {
  info->name = c10::toString(schema.operator_name());
  info->is_collective =
      info->name.starts_with("c10d::") || info->name.starts_with("_c10d_functional::");
  info->keeps_inputs = returns_custom_class(schema);
  info->argument_count = schema.is_vararg() ? SIZE_MAX : schema.arguments().size();
  info->walks_everything = schema.is_vararg() || schema.arguments().size() > kArgumentsMax;
  if (info->walks_everything) return;

  SymbolSet returned;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr) collect_symbols(*result.alias_info(), &returned);
  }
  // A wildcard means "anything"; it makes no argument a view of another.
  returned.erase(c10::AliasInfo::wildcardSet());
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    const c10::Argument& argument = schema.arguments()[index];
    if (!may_hold_tensors(*argument.type())) continue;
    info->tensor_arguments.push_back({static_cast<uint32_t>(index),
                                      access_of(schema, argument, returned, info->is_collective),
                                      written_with(schema, argument)});
  }
}

OperatorInfo& operator_info(const c10::FunctionSchema& schema) {
  Table& entries = table();
  const std::lock_guard lock(entries.mutex);
  return find_or_add(entries, schema.name().c_str(), schema);
}

void install_operator_table() {
  // The handle lives for ever: process exit must tear nothing down under running threads.
  static auto* const handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<DeregistrationListener>()));
  (void)handle;
}

void lock_operator_table() { table().mutex.lock(); }
void unlock_operator_table() { table().mutex.unlock(); }

size_t operator_count() {
  Table& entries = table();
  const std::lock_guard lock(entries.mutex);
  return entries.by_name.size();
}

namespace detail {

__attribute__((noinline, cold)) const OperatorInfo* find_operator_slow(
    const at::RecordFunction& event, const char* name) {
  // This check is free for an event that is not an operator; else it copies two strings.
  if (!event.operator_name().has_value()) return nullptr;
  Table& entries = table();
  const std::lock_guard lock(entries.mutex);
  const auto found = entries.by_name.find(name);
  const OperatorInfo* info = found != entries.by_name.end()
                                 ? found->second
                                 : &find_or_add(entries, name, *event.operator_schema());
  thread_state().operators.insert(name, info,
                                  operator_table_version.load(std::memory_order_acquire));
  return info;
}

}  // namespace detail
}  // namespace tencache::shim
