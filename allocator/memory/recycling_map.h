// SPDX-License-Identifier: Apache-2.0
//
// RecyclingMap: a std::map that keeps the node of the entry erased last, for the next entry.
// Programs free a block and allocate one of its size again, over and over. What a heap keeps about
// its cached extents then costs no call of malloc.
//
// Threads: the caller's lock guards the map, as with std::map.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

namespace tencache {

template <typename Key, typename Value>
class RecyclingMap : private std::map<Key, Value> {
  using Map = std::map<Key, Value>;

 public:
  using Map::end;
  using Map::find;
  using Map::lower_bound;
  using Map::size;
  using Map::upper_bound;
  using typename Map::iterator;

  /// The value of the key's entry, which is made if there is none. A new entry may have the value
  /// of the entry that was erased last.
  Value& operator[](const Key& key) {
    const iterator next = lower_bound(key);
    if (next != end() && !(key < next->first)) return next->second;
    if (spare_.empty()) return Map::try_emplace(next, key)->second;
    spare_.key() = key;
    return Map::insert(next, std::move(spare_))->second;
  }

  void erase(iterator entry) { spare_ = Map::extract(entry); }
  void erase(const Key& key) {
    const iterator entry = find(key);
    if (entry != end()) erase(entry);
  }

 private:
  typename Map::node_type spare_;
};

}  // namespace tencache
