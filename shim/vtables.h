// SPDX-License-Identifier: Apache-2.0
//
// Where virtual functions lie: as this library's compiler laid them out, from torch's headers, and
// as they lie in the loaded libtorch, from its symbols. A class that gained or lost a virtual
// function, or has them in another order, shows itself without a call (Itanium C++ ABI, section
// 2.5). Only the self-tests use this (self_test.h, cuda_self_test.h).
//
// Threads: any; nothing here keeps state.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace tencache::shim {

/// The slot of a virtual function, such as &c10::Allocator::raw_deleter, as compiled here.
template <typename Member>
size_t slot_of(Member function) {
  static_assert(std::is_member_function_pointer_v<Member>);
  struct {
    ptrdiff_t pointer;
    ptrdiff_t adjustment;
  } raw;
  static_assert(sizeof(raw) == sizeof(function));
  std::memcpy(&raw, &function, sizeof(raw));
#if defined(__aarch64__)
  const ptrdiff_t offset = raw.pointer;  // there the adjustment tells that it is virtual
#else
  const ptrdiff_t offset = raw.pointer - 1;
#endif
  return static_cast<size_t>(offset) / sizeof(void*);
}

/// Base with one more virtual function, which takes the first slot behind those of Base.
template <typename Base>
struct Extended : Base {
  virtual void next() = 0;
};

/// How many slots the class has, as compiled here.
template <typename Base>
size_t slot_count() {
  return slot_of(&Extended<Base>::next);
}

using Slots = std::span<const void* const>;

/// Returns the slots of a loaded library's vtable, whose symbol (_ZTV...) has that address, or no
/// slots if the library does not export it.
Slots exported_slots(const void* vtable);

/// The slots of an object's class. A vtable has no end mark; it ends where no code is pointed at.
Slots slots_of_object(const void* object);

/// Returns the demangled name of a loaded function, such as "c10::Allocator::clone(void const*,
/// unsigned long)", or an empty string if its library does not export it.
std::string name_of_function(const void* function);

/// A virtual function as compiled here: its slot, and its name without class and parameters.
struct NamedSlot {
  size_t slot;
  const char* name;
};

/// Returns why the loaded class differs from the compiled one, or an empty string if the loaded one
/// has `count` slots and these functions are in theirs. Functions that the library does not export
/// are not compared.
std::string why_slots_differ(const char* class_name, Slots loaded, size_t count,
                             std::span<const NamedSlot> functions);

}  // namespace tencache::shim
