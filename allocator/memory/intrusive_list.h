// SPDX-License-Identifier: Apache-2.0
//
// IntrusiveList: a doubly linked list whose links live inside the elements, so that putting a freed
// extent on a list allocates nothing. An element is in at most one list per hook. The list is not
// thread-safe: its owner locks.
#pragma once

#include <cstddef>

#include "base/check.h"

namespace tencache {

template <typename T>
struct ListHook {
  T* previous = nullptr;
  T* next = nullptr;
  bool linked = false;
};

template <typename T, ListHook<T> T::*kHook>
class IntrusiveList {
 public:
  bool is_empty() const { return head_ == nullptr; }
  T* front() const { return head_; }
  T* back() const { return tail_; }
  static T* next(const T* element) { return (element->*kHook).next; }
  static T* previous(const T* element) { return (element->*kHook).previous; }

  void push_front(T* element) { insert_after(nullptr, element); }

  /// Inserts behind `place`, or at the front if that is null.
  void insert_after(T* place, T* element) {
    ListHook<T>& hook = element->*kHook;
    TENCACHE_DCHECK(!hook.linked);
    T*& behind = place != nullptr ? (place->*kHook).next : head_;
    hook = {place, behind, true};
    (behind != nullptr ? (behind->*kHook).previous : tail_) = element;
    behind = element;
  }

  void remove(T* element) {
    ListHook<T>& hook = element->*kHook;
    TENCACHE_DCHECK(hook.linked);
    (hook.previous != nullptr ? (hook.previous->*kHook).next : head_) = hook.next;
    (hook.next != nullptr ? (hook.next->*kHook).previous : tail_) = hook.previous;
    hook = {};
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
};

}  // namespace tencache
