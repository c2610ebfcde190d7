// SPDX-License-Identifier: Apache-2.0
//
// Everything that determines the shapes and types of an operator's results, as bytes: sizes,
// strides, types and places of the tensors among the arguments, all other arguments by value, and
// torch's default type of floating-point numbers. Arguments with equal keys have results of equal
// shapes. Every value begins with its kind and every list with its length, so that no two argument
// lists share a key. A value of an unknown kind has no key. A key belongs to one thread.
#pragma once
#include <c10/core/DefaultDtype.h>

#include <string>

#include "operators/values.h"

namespace emulated_gpu::operators {

class ShapeKey {
 public:
  ShapeKey() { put(c10::get_default_dtype_as_scalartype()); }
  /// Returns false where the value is of an unknown kind; the key is worthless then.
  bool add(const IValue& value);
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename List>
  void put_list(char kind, const List& list);
  void put_tensor(const Tensor& t);
  bool add_number(const IValue& value);
  bool add_list(const IValue& value);

  std::string bytes_;
};

}  // namespace emulated_gpu::operators
