// SPDX-License-Identifier: Apache-2.0
//
// OperatorCache: a direct-mapped cache of one thread, from the address of an operator's name to
// what the table (operator_table.h) knows of it. Its thread empties it when the table's version has
// changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace tencache::shim {

struct OperatorInfo;

class OperatorCache {
 public:
  /// Returns nullptr if the name is not in the cache.
  const OperatorInfo* find(const char* name, uint64_t table_version) const {
    const Entry& entry = entries_[index_of(name)];
    return entry.name == name && version_ == table_version ? entry.info : nullptr;
  }

  void insert(const char* name, const OperatorInfo* info, uint64_t table_version) {
    if (version_ != table_version) {
      std::fill(std::begin(entries_), std::end(entries_), Entry{});
      version_ = table_version;
    }
    entries_[index_of(name)] = {name, info};
  }

 private:
  // This is enough that the few hundred operators of a program rarely collide.
  static constexpr size_t kEntries = 1024;

  struct Entry {
    const char* name = nullptr;
    const OperatorInfo* info = nullptr;
  };

  static size_t index_of(const char* name) {
    const auto address = reinterpret_cast<uintptr_t>(name);
    return (address >> 4 ^ address >> 14) % kEntries;
  }

  uint64_t version_ = 0;  // the table's versions start at 1
  Entry entries_[kEntries] = {};
};

}  // namespace tencache::shim
