// SPDX-License-Identifier: Apache-2.0
//
// One template for all types: a type defines in which type its values are computed, and how they
// are rounded back.
#include "reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace emulated_gpu::nccl {

namespace {

// Converts a value to the type in which it is computed.
template <typename T>
T widen(T value) {
  return value;
}
float widen(__half value) { return __half2float(value); }
float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T, typename Wide>
T narrow(Wide value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return static_cast<T>(value);
  }
}

// Integers are computed as unsigned ones, so they wrap round on overflow, as on a GPU.
template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}
template <typename T>
T larger(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return std::max(a, b);
  } else {
    return std::fmax(a, b);
  }
}
template <typename T>
T smaller(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return std::min(a, b);
  } else {
    return std::fmin(a, b);
  }
}

// `prepare` changes each part's value, `combine` joins two, `finish` makes the result.
template <typename T, typename Prepare, typename Combine, typename Finish>
void reduce_each(std::span<const void* const> parts, void* result, size_t count, Prepare prepare,
                 Combine combine, Finish finish) {
  const auto value_of = [&](size_t part, size_t index) {
    return narrow<T>(prepare(widen(static_cast<const T*>(parts[part])[index])));
  };
  for (size_t index = 0; index < count; ++index) {
    T value = value_of(0, index);
    for (size_t part = 1; part < parts.size(); ++part) {
      value = narrow<T>(combine(widen(value), widen(value_of(part, index))));
    }
    static_cast<T*>(result)[index] = narrow<T>(finish(widen(value)));
  }
}

template <typename T>
void scale_as(const Reduction& reduction, const void* from, void* to, size_t count) {
  const auto factor = widen(*static_cast<const T*>(reduction.factor->get()));
  for (size_t index = 0; index < count; ++index) {
    const auto value = widen(static_cast<const T*>(from)[index]);
    static_cast<T*>(to)[index] = narrow<T>(multiply(value, factor));
  }
}

template <typename T>
void reduce_as(const Reduction& reduction, std::span<const void* const> parts, void* result,
               size_t count) {
  using Wide = decltype(widen(T()));
  const auto same = [](Wide value) { return value; };
  const auto ranks = static_cast<Wide>(parts.size());
  switch (reduction.operation) {
    case ncclProd:
      return reduce_each<T>(parts, result, count, same, multiply<Wide>, same);
    case ncclMax:
      return reduce_each<T>(parts, result, count, same, larger<Wide>, same);
    case ncclMin:
      return reduce_each<T>(parts, result, count, same, smaller<Wide>, same);
    case ncclAvg:
      if constexpr (std::is_integral_v<T>) {
        const auto divide = [ranks](Wide sum) { return static_cast<Wide>(sum / ranks); };
        return reduce_each<T>(parts, result, count, same, add<Wide>, divide);
      } else {
        const Wide share = widen(narrow<T>(1 / ranks));
        const auto scale = [share](Wide value) { return value * share; };
        return reduce_each<T>(parts, result, count, scale, add<Wide>, same);
      }
    default:
      return reduce_each<T>(parts, result, count, same, add<Wide>, same);
  }
}

// Calls the work with a value of the type's C++ type.
template <typename Work>
void with_type(ncclDataType_t type, Work work) {
  switch (type) {
    case ncclInt8:
      return work(int8_t());
    case ncclUint8:
      return work(uint8_t());
    case ncclInt32:
      return work(int32_t());
    case ncclUint32:
      return work(uint32_t());
    case ncclInt64:
      return work(int64_t());
    case ncclUint64:
      return work(uint64_t());
    case ncclFloat16:
      return work(__half());
    case ncclBfloat16:
      return work(__nv_bfloat16());
    case ncclFloat64:
      return work(double());
    default:
      return work(float());
  }
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

bool is_reducible(ncclDataType_t type) {
  return bytes_of(type) != 0 && type != ncclFloat8e4m3 && type != ncclFloat8e5m2;
}

void scale(const Reduction& reduction, const void* from, void* to, size_t count) {
  with_type(reduction.type, [&]<typename T>(T) { scale_as<T>(reduction, from, to, count); });
}

void reduce(const Reduction& reduction, std::span<const void* const> parts, void* result,
            size_t count) {
  with_type(reduction.type, [&]<typename T>(T) { reduce_as<T>(reduction, parts, result, count); });
}

}  // namespace emulated_gpu::nccl
