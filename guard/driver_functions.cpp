// SPDX-License-Identifier: Apache-2.0
//
// Every guarded function is an instance of one template, which reads the meaning of the arguments
// from their types (class Work). Where one type has two senses, their order tells them apart.
#include "driver_functions.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <string>
#include <utility>

#include "driver_library.h"
#include "hooks.h"
#include "kernel_arguments.h"

namespace tencache::guard {
namespace {

constexpr uint32_t kRead = TENCACHE_READ;
constexpr uint32_t kWrite = TENCACHE_WRITE;

/// The work that one call is about to queue.
class Work {
 public:
  Work(const char* name, const tencache_arena& watched) : name_(name), addresses_(watched) {}

  // Copies name their target first. If only one address is on a device, it may also be the source.
  void take(CUdeviceptr address) {
    addresses_.add(address, has_target_ ? kRead : kRead | kWrite);
    has_target_ = true;
  }
  void take(CUstream stream) { stream_ = stream; }
  void take(CUfunction kernel) { kernel_ = kernel; }
  void take(const CUlaunchConfig* config) { stream_ = config->hStream; }
  void take(void** arguments) {
    (has_arguments_ ? extra_ : arguments_) = arguments;
    has_arguments_ = true;
  }
  void take(const CUDA_MEMCPY2D* copy) { take_words(copy, sizeof *copy); }
  void take(const CUDA_MEMCPY3D* copy) { take_words(copy, sizeof *copy); }
  void take(const CUDA_MEMCPY3D_PEER* copy) { take_words(copy, sizeof *copy); }
  template <typename Other>
  void take(Other /*names no memory*/) {}

  uint32_t begin(const tencache_guard_hooks& hooks, bool is_per_thread) {
    if (kernel_ != nullptr) {
      const KernelLayout& layout = KernelArguments::instance().layout(kernel_);
      name_ = layout.name.c_str();
      if (!add_arguments(layout, arguments_, extra_, &addresses_)) hooks.on_unreadable();
    }
    if (addresses_.count() == 0) return 0;
    void* stream = stream_;
    if (is_per_thread && stream == nullptr) stream = TENCACHE_STREAM_PER_THREAD;
    return hooks.begin(name_, stream, addresses_.data(), addresses_.count());
  }

 private:
  void take_words(const void* copy, size_t bytes) {
    addresses_.add_words(copy, bytes, 0, kRead | kWrite);
  }

  const char* name_;
  Addresses addresses_;
  bool has_target_ = false;
  CUstream stream_ = nullptr;
  CUfunction kernel_ = nullptr;
  bool has_arguments_ = false;
  void** arguments_ = nullptr;
  void** extra_ = nullptr;
};

template <typename... Arguments>
CUresult pass(CUresult (*real)(Arguments...), const char* name, bool is_per_thread,
              Arguments... arguments) {
  const tencache_guard_hooks* const hooks = installed_hooks();
  if (hooks == nullptr) return real(arguments...);
  const tencache_arena watched = hooks->watched();
  if (watched.bytes == 0) return real(arguments...);
  Work work(name, watched);
  (work.take(arguments), ...);
  const uint32_t begun = work.begin(*hooks, is_per_thread);
  const CUresult result = real(arguments...);
  if (begun != 0) hooks->end(begun);
  return result;
}

template <typename Owner>
concept OwnsKernels = std::same_as<Owner, CUmodule> || std::same_as<Owner, CUlibrary> ||
    std::same_as<Owner, CUcontext> || std::same_as<Owner, CUdevice>;

// The call ends the owner, and the handles of its kernels may soon stand for other kernels.
template <OwnsKernels Owner>
CUresult pass(CUresult (*real)(Owner), const char* /*name*/, bool /*is_per_thread*/, Owner owner) {
  KernelArguments::instance().distrust();
  return real(owner);
}

// The call destroys the stream. The hooks hear of it first, because the driver ends a process that
// gives it the handle afterwards.
template <std::same_as<CUstream> Stream>
CUresult pass(CUresult (*real)(Stream), const char* /*name*/, bool /*is_per_thread*/,
              Stream stream) {
  const tencache_guard_hooks* const hooks = installed_hooks();
  if (hooks != nullptr) hooks->on_stream_end(stream);
  return real(stream);
}

/// The symbol of a function, as a template argument.
template <size_t kSize>
struct Symbol {
  // A literal converts only through an implicit constructor.
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions)
  consteval Symbol(const char (&literal)[kSize]) { std::copy_n(literal, kSize, text); }
  char text[kSize] = {};
};

// How many functions of one name and one meaning of the NULL stream we tell apart. There is more
// than one only if libraries ask for different versions of the interface.
constexpr size_t kPlaces = 4;

template <Symbol kSymbol, typename Function>
class Guarded;

template <Symbol kSymbol, typename... Arguments>
class Guarded<kSymbol, CUresult(Arguments...)> {
 public:
  using Real = CUresult (*)(Arguments...);

  static void* serve(void* real, bool is_per_thread) {
    return is_per_thread ? serve<true>(real) : serve<false>(real);
  }

  /// Serves callers that are linked with the function and come here with every call.
  static CUresult call_linked(bool is_per_thread, Arguments... arguments) {
    static const std::array<Real, 2> reals = {
        driver_function<Real>(kSymbol.text),
        driver_function<Real>((std::string(kSymbol.text) + "_ptsz").c_str())};
    const Real real = reals[is_per_thread ? 1 : 0];
    if (real == nullptr) return CUDA_ERROR_NOT_FOUND;
    return pass<Arguments...>(real, kSymbol.text, is_per_thread, arguments...);
  }

 private:
  template <bool kIsPerThread>
  static inline constinit std::array<std::atomic<Real>, kPlaces> g_real = {};

  template <bool kIsPerThread, size_t kPlace>
  static CUresult call(Arguments... arguments) {
    const Real real = g_real<kIsPerThread>[kPlace].load(std::memory_order_relaxed);
    return pass<Arguments...>(real, kSymbol.text, kIsPerThread, arguments...);
  }

  template <bool kIsPerThread, size_t... kPlace>
  static constexpr std::array<Real, kPlaces> calls(std::index_sequence<kPlace...> /*all*/) {
    return {&call<kIsPerThread, kPlace>...};
  }

  template <bool kIsPerThread>
  static void* serve(void* address) {
    static constexpr auto kCalls = calls<kIsPerThread>(std::make_index_sequence<kPlaces>());
    const Real real = reinterpret_cast<Real>(address);
    for (size_t place = 0; place < kPlaces; ++place) {
      Real other = nullptr;
      if (g_real<kIsPerThread>[place].compare_exchange_strong(other, real) || other == real) {
        return reinterpret_cast<void*>(kCalls[place]);
      }
    }
    return address;  // unguarded, as in a program without a guard
  }
};

struct Entry {
  std::string_view symbol;  // the symbol that cuda.h declares
  void* (*serve)(void* real, bool is_per_thread);
};

template <Symbol kSymbol, typename Function>
constexpr Entry entry() {
  return {kSymbol.text, &Guarded<kSymbol, Function>::serve};
}

constexpr std::array kEntries = {
    entry<"cuLaunchKernel", decltype(::cuLaunchKernel)>(),
    entry<"cuLaunchKernelEx", decltype(::cuLaunchKernelEx)>(),
    entry<"cuLaunchCooperativeKernel", decltype(::cuLaunchCooperativeKernel)>(),
    entry<"cuMemcpy", decltype(::cuMemcpy)>(),
    entry<"cuMemcpyAsync", decltype(::cuMemcpyAsync)>(),
    entry<"cuMemcpyPeer", decltype(::cuMemcpyPeer)>(),
    entry<"cuMemcpyPeerAsync", decltype(::cuMemcpyPeerAsync)>(),
    entry<"cuMemcpyHtoD_v2", decltype(::cuMemcpyHtoD)>(),
    entry<"cuMemcpyHtoDAsync_v2", decltype(::cuMemcpyHtoDAsync)>(),
    entry<"cuMemcpyDtoH_v2", decltype(::cuMemcpyDtoH)>(),
    entry<"cuMemcpyDtoHAsync_v2", decltype(::cuMemcpyDtoHAsync)>(),
    entry<"cuMemcpyDtoD_v2", decltype(::cuMemcpyDtoD)>(),
    entry<"cuMemcpyDtoDAsync_v2", decltype(::cuMemcpyDtoDAsync)>(),
    entry<"cuMemcpy2D_v2", decltype(::cuMemcpy2D)>(),
    entry<"cuMemcpy2DUnaligned_v2", decltype(::cuMemcpy2DUnaligned)>(),
    entry<"cuMemcpy2DAsync_v2", decltype(::cuMemcpy2DAsync)>(),
    entry<"cuMemcpy3D_v2", decltype(::cuMemcpy3D)>(),
    entry<"cuMemcpy3DAsync_v2", decltype(::cuMemcpy3DAsync)>(),
    entry<"cuMemcpy3DPeer", decltype(::cuMemcpy3DPeer)>(),
    entry<"cuMemcpy3DPeerAsync", decltype(::cuMemcpy3DPeerAsync)>(),
    entry<"cuMemsetD8_v2", decltype(::cuMemsetD8)>(),
    entry<"cuMemsetD8Async", decltype(::cuMemsetD8Async)>(),
    entry<"cuMemsetD16_v2", decltype(::cuMemsetD16)>(),
    entry<"cuMemsetD16Async", decltype(::cuMemsetD16Async)>(),
    entry<"cuMemsetD32_v2", decltype(::cuMemsetD32)>(),
    entry<"cuMemsetD32Async", decltype(::cuMemsetD32Async)>(),
    entry<"cuMemsetD2D8_v2", decltype(::cuMemsetD2D8)>(),
    entry<"cuMemsetD2D8Async", decltype(::cuMemsetD2D8Async)>(),
    entry<"cuMemsetD2D16_v2", decltype(::cuMemsetD2D16)>(),
    entry<"cuMemsetD2D16Async", decltype(::cuMemsetD2D16Async)>(),
    entry<"cuMemsetD2D32_v2", decltype(::cuMemsetD2D32)>(),
    entry<"cuMemsetD2D32Async", decltype(::cuMemsetD2D32Async)>(),
    entry<"cuStreamDestroy_v2", decltype(::cuStreamDestroy)>(),
    entry<"cuStreamDestroy", decltype(::cuStreamDestroy)>(),
    entry<"cuModuleUnload", decltype(::cuModuleUnload)>(),
    entry<"cuLibraryUnload", decltype(::cuLibraryUnload)>(),
    entry<"cuCtxDestroy_v2", decltype(::cuCtxDestroy)>(),
    entry<"cuDevicePrimaryCtxReset_v2", decltype(::cuDevicePrimaryCtxReset)>(),
    entry<"cuDevicePrimaryCtxRelease_v2", decltype(::cuDevicePrimaryCtxRelease)>(),
};

// Since CUDA 3.2 sizes have 64 bits; older functions have other parameters.
constexpr int kOldestVersion = 3020;

bool drop_suffix(std::string_view* symbol, std::string_view suffix) {
  if (!symbol->ends_with(suffix)) return false;
  symbol->remove_suffix(suffix.size());
  return true;
}

}  // namespace

void* guarded_symbol(std::string_view symbol, void* real) {
  const bool is_per_thread = drop_suffix(&symbol, "_ptsz") || drop_suffix(&symbol, "_ptds");
  const auto* const found = std::ranges::find(kEntries, symbol, &Entry::symbol);
  return found != kEntries.end() ? found->serve(real, is_per_thread) : real;
}

void* guarded_entry(std::string_view name, int version, cuuint64_t flags, void* real) {
  if (version < kOldestVersion) return real;
  const bool is_per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  drop_suffix(&name, "_v2");
  for (const Entry& entry : kEntries) {
    std::string_view own_name = entry.symbol;
    drop_suffix(&own_name, "_v2");
    if (own_name == name) return entry.serve(real, is_per_thread);
  }
  return real;
}

}  // namespace tencache::guard

using namespace tencache::guard;

// The name stands for two functions; the header's macro would choose one.
#undef cuStreamDestroy

using Launch = Guarded<"cuLaunchKernel", decltype(::cuLaunchKernel)>;
using LaunchEx = Guarded<"cuLaunchKernelEx", decltype(::cuLaunchKernelEx)>;
using LaunchCooperative =
    Guarded<"cuLaunchCooperativeKernel", decltype(::cuLaunchCooperativeKernel)>;
using StreamDestroy = Guarded<"cuStreamDestroy_v2", decltype(::cuStreamDestroy_v2)>;
using ModuleUnload = Guarded<"cuModuleUnload", decltype(::cuModuleUnload)>;
using LibraryUnload = Guarded<"cuLibraryUnload", decltype(::cuLibraryUnload)>;

#define TENCACHE_GUARD_LAUNCHES(suffix, is_per_thread)                                            \
  extern "C" TENCACHE_API CUresult cuLaunchKernel##suffix(                                        \
      CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
      unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                 \
      void** arguments, void** extra) {                                                           \
    return Launch::call_linked(is_per_thread, kernel, grid_x, grid_y, grid_z, block_x, block_y,   \
                               block_z, shared_bytes, stream, arguments, extra);                  \
  }                                                                                               \
  extern "C" TENCACHE_API CUresult cuLaunchKernelEx##suffix(                                      \
      const CUlaunchConfig* config, CUfunction kernel, void** arguments, void** extra) {          \
    return LaunchEx::call_linked(is_per_thread, config, kernel, arguments, extra);                \
  }                                                                                               \
  extern "C" TENCACHE_API CUresult cuLaunchCooperativeKernel##suffix(                             \
      CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
      unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                 \
      void** arguments) {                                                                         \
    return LaunchCooperative::call_linked(is_per_thread, kernel, grid_x, grid_y, grid_z, block_x, \
                                          block_y, block_z, shared_bytes, stream, arguments);     \
  }
// The first line serves programs compiled for the legacy default stream, the second those compiled
// for the per-thread one.
TENCACHE_GUARD_LAUNCHES(, false)
TENCACHE_GUARD_LAUNCHES(_ptsz, true)
#undef TENCACHE_GUARD_LAUNCHES

extern "C" TENCACHE_API CUresult cuStreamDestroy_v2(CUstream stream) {
  return StreamDestroy::call_linked(false, stream);
}

// The function's name before CUDA 4.0, with the same meaning.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" TENCACHE_API CUresult cuStreamDestroy(CUstream stream) {
  return StreamDestroy::call_linked(false, stream);
}

extern "C" TENCACHE_API CUresult cuModuleUnload(CUmodule module) {
  return ModuleUnload::call_linked(false, module);
}

extern "C" TENCACHE_API CUresult cuLibraryUnload(CUlibrary library) {
  return LibraryUnload::call_linked(false, library);
}
