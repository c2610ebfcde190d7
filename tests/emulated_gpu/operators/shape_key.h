// SPDX-License-Identifier: Apache-2.0
// What the shapes of an operator's results follow from, as text. Equal keys have equal shapes. A
// value of an unknown kind has no key, and its shapes are made anew. A key belongs to one thread.
#pragma once
#include <string>

#include "operators/aliases.h"

namespace tencache {

struct ShapeKey {
  std::string text;
  template <typename T>
  void put(const T& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const Tensor& t) {
    if (!t.defined()) return put('u');
    put(t.is_cuda() ? 'c' : 'h');
    put(static_cast<int8_t>(t.scalar_type()));
    put(t.unsafeGetTensorImpl()->is_wrapped_number());
    put(static_cast<int8_t>(t.dim()));
    for (const int64_t size : t.sizes()) put(size);
    for (const int64_t stride : t.strides()) put(stride);
  }
  bool add(const IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      put('[');
      for (const Tensor& t : value.toTensorVector()) add(t);
    } else if (value.isOptionalTensorList()) {
      put('(');
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
        add(t.has_value() ? *t : Tensor());
    } else if (value.isNone()) {
      put('n');
    } else if (value.isInt()) {
      put('i'), put(value.toInt());
    } else if (value.isDouble()) {
      put('d'), put(value.toDouble());
    } else if (value.isBool()) {
      put('b'), put(value.toBool());
    } else if (value.isIntList()) {
      put('I');
      for (const int64_t i : value.toIntVector()) put(i);
    } else if (value.isDoubleList()) {
      put('D');
      for (const double d : value.toDoubleVector()) put(d);
    } else if (value.isBoolList()) {
      put('B');
      for (const bool b : value.toBoolList()) put(b);
    } else if (value.isString()) {
      put('s'), text += value.toStringRef();
    } else if (value.isDevice() || value.isGenerator()) {
      put('v');
    } else if (value.isList()) {
      put('l');
      for (const IValue& item : value.toListRef()) {
        if (!add(item)) return false;
      }
    } else {
      return false;
    }
    put(';');
    return true;
  }
};

}  // namespace tencache
