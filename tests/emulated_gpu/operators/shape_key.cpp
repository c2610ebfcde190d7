// SPDX-License-Identifier: Apache-2.0
//
// ShapeKey writes values one after another. The values of a tensor's elements are left out, since
// no Meta kernel sees them. Devices and generators count as one kind each, because no result's
// shape depends on which one it is. A key belongs to one thread.
#include "operators/shape_key.h"

namespace emulated_gpu::operators {

template <typename List>
void ShapeKey::put_list(char kind, const List& list) {
  put(kind);
  put(list.size());
  for (const auto& item : list) put(item);
}

void ShapeKey::put_tensor(const Tensor& t) {
  if (!t.defined()) {
    put('u');
    return;
  }
  put(t.is_cuda() ? 'c' : 'h');
  put(static_cast<int8_t>(t.scalar_type()));
  put(t.unsafeGetTensorImpl()->is_wrapped_number());
  put_list('z', t.sizes());
  put_list('t', t.strides());
}

bool ShapeKey::add_number(const IValue& value) {
  if (value.isInt()) {
    put('i');
    put(value.toInt());
  } else if (value.isDouble()) {
    put('d');
    put(value.toDouble());
  } else if (value.isBool()) {
    put('b');
    put(value.toBool());
  } else if (value.isComplexDouble()) {
    put('x');
    put(value.toComplexDouble());
  } else {
    return false;
  }
  return true;
}

bool ShapeKey::add_list(const IValue& value) {
  if (!value.isList()) return false;
  const c10::ArrayRef<IValue> items = value.toListRef();
  put('l');
  put(items.size());
  for (const IValue& item : items) {
    if (!add(item)) return false;
  }
  return true;
}

bool ShapeKey::add(const IValue& value) {
  if (value.isTensor()) {
    put_tensor(value.toTensor());
  } else if (value.isNone()) {
    put('n');
  } else if (value.isString()) {
    put_list('s', value.toStringRef());
  } else if (value.isDevice()) {
    put('v');
  } else if (value.isGenerator()) {
    put('g');
  } else if (value.isIntList()) {
    put_list('I', value.toIntVector());
  } else if (value.isDoubleList()) {
    put_list('D', value.toDoubleVector());
  } else {
    return add_number(value) || add_list(value);
  }
  return true;
}

}  // namespace emulated_gpu::operators
