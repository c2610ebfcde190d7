// SPDX-License-Identifier: Apache-2.0
#include "vtables.h"

#include <c10/util/Type.h>
#include <dlfcn.h>
#include <link.h>

#include <cstdint>

namespace tencache::shim {
namespace {

// Before the slots lie the offset to the top of the object and its typeinfo.
constexpr size_t kWordsBeforeSlots = 2;

struct CodeSearch {
  uintptr_t address;
  bool is_code;
};

int search_code(dl_phdr_info* library, size_t /*bytes*/, void* data) {
  auto* const search = static_cast<CodeSearch*>(data);
  for (const ElfW(Phdr) & segment : std::span(library->dlpi_phdr, library->dlpi_phnum)) {
    const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 &&
        search->address - begin < segment.p_memsz) {
      search->is_code = true;
    }
  }
  return search->is_code ? 1 : 0;
}

bool is_code(const void* address) {
  CodeSearch search = {reinterpret_cast<uintptr_t>(address), false};
  dl_iterate_phdr(&search_code, &search);
  return search.is_code;
}

}  // namespace

Slots exported_slots(const void* vtable) {
  Dl_info found = {};
  const ElfW(Sym)* symbol = nullptr;
  void** const extra = reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol));
  if (dladdr1(vtable, &found, extra, RTLD_DL_SYMENT) == 0 || symbol == nullptr ||
      found.dli_saddr != vtable) {
    return {};
  }
  const size_t words = symbol->st_size / sizeof(void*);
  if (words <= kWordsBeforeSlots) return {};
  return {static_cast<const void* const*>(vtable) + kWordsBeforeSlots, words - kWordsBeforeSlots};
}

Slots slots_of_object(const void* object) {
  const auto* const slots = *static_cast<const void* const* const*>(object);
  size_t count = 0;
  while (is_code(slots[count])) ++count;
  return {slots, count};
}

std::string name_of_function(const void* function) {
  Dl_info found = {};
  if (dladdr(function, &found) == 0 || found.dli_saddr != function) return {};
  return c10::demangle(found.dli_sname);
}

std::string why_slots_differ(const char* class_name, Slots loaded, size_t count,
                             std::span<const NamedSlot> functions) {
  if (loaded.empty()) return std::string(class_name) + " shows no virtual functions";
  if (loaded.size() != count) {
    return std::string(class_name) + " has " + std::to_string(loaded.size()) +
           " virtual functions instead of " + std::to_string(count);
  }
  for (const NamedSlot& each : functions) {
    if (each.slot >= count) return std::string(class_name) + " has no " + each.name;
    const std::string name = name_of_function(loaded[each.slot]);
    // A name is like "c10::Allocator::raw_deleter() const" or "...::name[abi:cxx11]()".
    const std::string wanted = std::string("::") + each.name;
    const size_t at = name.find(wanted + '(');
    const size_t tagged_at = name.find(wanted + '[');
    if (name.empty() || at != std::string::npos || tagged_at != std::string::npos) continue;
    return std::string(class_name) + " has " + name + " where " + each.name + " is expected";
  }
  return {};
}

}  // namespace tencache::shim
