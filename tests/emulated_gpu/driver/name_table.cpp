// SPDX-License-Identifier: Apache-2.0
//
// The table of names, and cuGetProcAddress, which answers from it. With EMULATED_GPU_TRACE_DRIVER
// cuGetProcAddress writes to stderr which requested functions have no stand-in.
#include "driver/name_table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "driver/functions.h"
#include "driver/started_driver.h"
#include "support/cuda/simulated_errors.h"

namespace tencache {
namespace {

// ---- tencache's table, once there is a driver

template <auto kFunction>
struct Started;
template <typename... Arguments, CUresult (*DriverApi::*kFunction)(Arguments...)>
struct Started<kFunction> {
  static CUresult call(Arguments... arguments) {
    SimulatedDriver* const driver = started_driver();
    if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    return (driver->api().*kFunction)(arguments...);
  }
};

// CUDA 13's PyTorch needs this version; the simulation has tencache's older interface.
CUresult driver_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

DriverApi table_functions() {
  DriverApi api;
#define EMULATED_FILL(name) api.name = Started<&DriverApi::name>::call;
  TENCACHE_CUDA_FUNCTIONS(EMULATED_FILL)
#undef EMULATED_FILL
  api.cuInit = start_driver;
  api.cuDriverGetVersion = driver_version;
  api.cuGetErrorName = simulated_error_name;
  api.cuGetErrorString = simulated_error_string;
  api.cuLaunchKernel = Served<CallKind::kContext, launch_kernel>::call;
  api.cuModuleLoadData = Served<CallKind::kUnsafe, load_module>::call;
  return api;
}

// ---- The others

// NVRTC asks this function for its cache, and calls it without checking that it was found.
CUresult export_table(const void** table, const CUuuid*) {
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult get_proc_address(const char* name, void** entry, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status);

// Before CUDA 12 cuGetProcAddress had no status. For the dynamic linker the plain name still means
// this version.
CUresult get_proc_address_v1(const char* name, void** entry, int version, cuuint64_t flags) {
  return get_proc_address(name, entry, version, flags, nullptr);
}

struct OwnFunctions {
#define EMULATED_MEMBER(name) decltype(&::name) name = nullptr;
  EMULATED_OWN_FUNCTIONS(EMULATED_MEMBER)
#undef EMULATED_MEMBER
};

OwnFunctions own_functions() {
  using enum CallKind;
  OwnFunctions own;
  own.cuDevicePrimaryCtxGetState = Served<kQuery, &SimulatedDevices::primary_state>::call;
  own.cuDeviceGetUuid = Served<kQuery, &SimulatedDevices::uuid>::call;
  own.cuDeviceCanAccessPeer = Served<kQuery, can_access_peer>::call;
  own.cuCtxGetDevice = Served<kContext, &SimulatedDevices::device_of_current>::call;
  own.cuCtxPushCurrent = Served<kQuery, &SimulatedDevices::push_current>::call;
  own.cuCtxPopCurrent = Served<kQuery, &SimulatedDevices::pop_current>::call;
  own.cuCtxSynchronize = Served<kContext, &StreamTable::synchronize>::call;
  own.cuFuncGetName = Served<kMemory, function_name>::call;
  own.cuFuncGetParamInfo = Served<kMemory, function_parameter>::call;
  own.cuEventRecordWithFlags = Served<kContext, &StreamTable::record_event_with_flags>::call;
  own.cuGraphDestroy = Served<kQuery, destroy_graph>::call;
  own.cuGraphExecDestroy = Served<kQuery, destroy_executable>::call;
  own.cuGraphGetNodes = Served<kQuery, graph_nodes>::call;
  own.cuGraphInstantiate = Served<kContext, instantiate_graph>::call;
  own.cuGraphLaunch = Served<kContext, &StreamTable::launch_graph>::call;
  own.cuGraphNodeGetDependencies = Served<kQuery, node_dependencies>::call;
  own.cuGraphRetainUserObject = Served<kQuery, keep_user_object>::call;
  own.cuMemcpyAsync = Served<kContext, copy_by_address>::call;
  own.cuStreamAddCallback = Served<kContext, &StreamTable::add_callback>::call;
  own.cuStreamBeginCapture = Served<kContext, &StreamTable::begin_capture>::call;
  own.cuStreamEndCapture = Served<kContext, &StreamTable::end_capture>::call;
  own.cuStreamGetCaptureInfo = Served<kContext, &StreamTable::capture_info>::call;
  own.cuUserObjectCreate = Served<kQuery, create_user_object>::call;
  own.cuUserObjectRelease = Served<kQuery, release_user_object>::call;
  own.cuUserObjectRetain = Served<kQuery, retain_user_object>::call;
  own.cuMemsetD32Async = Served<kContext, &StreamTable::set_words>::call;
  own.cuStreamWriteValue32 = Served<kContext, &StreamTable::write_value32>::call;
  own.cuMemcpyPeerAsync = Served<kContext, copy_peer>::call;
  own.cuPointerGetAttribute = Served<kMemory, pointer_attribute>::call;
  own.cuMemGetAddressRange = Served<kContext, address_range>::call;
  own.cuGetExportTable = export_table;
  own.cuGetProcAddress = get_proc_address;
  return own;
}

// ---- Functions without a stand-in

enum class AbsentName : uint8_t {
#define EMULATED_LISTED(name) name,
  EMULATED_ABSENT_FUNCTIONS(EMULATED_LISTED)
#undef EMULATED_LISTED
};
constexpr const char* kAbsentNames[] = {
#define EMULATED_NAME(name) #name,
    EMULATED_ABSENT_FUNCTIONS(EMULATED_NAME)
#undef EMULATED_NAME
};

template <AbsentName kName>
CUresult absent() {
  return refuse(kAbsentNames[static_cast<size_t>(kName)]);
}

bool is_absent(std::string_view name) {
  return std::ranges::any_of(kAbsentNames,
                             [name](std::string_view absent_name) { return name == absent_name; });
}

// ---- The table

class NameTable {
 public:
  NameTable() {
    // cuda.h defines many names as macros for versioned ones; the second string is the expansion.
#define EMULATED_STRING(name) #name
#define EMULATED_ADD(name) add(#name, EMULATED_STRING(name), table.name);
    const DriverApi table = table_functions();
    TENCACHE_CUDA_FUNCTIONS(EMULATED_ADD)
#undef EMULATED_ADD
#define EMULATED_ADD(name) add(#name, EMULATED_STRING(name), own.name);
    const OwnFunctions own = own_functions();
    EMULATED_OWN_FUNCTIONS(EMULATED_ADD)
#undef EMULATED_ADD
#define EMULATED_ADD(name) add(#name, EMULATED_STRING(name), absent<AbsentName::name>);
    EMULATED_ABSENT_FUNCTIONS(EMULATED_ADD)
#undef EMULATED_ADD
#undef EMULATED_STRING
    functions_["cuGetProcAddress"] = reinterpret_cast<void*>(get_proc_address_v1);
  }

  void* find(std::string_view name) const {
    const auto found = functions_.find(name);
    return found != functions_.end() ? found->second : nullptr;
  }

 private:
  template <typename... Parameters>
  void add(const char* name, const char* versioned, CUresult (*function)(Parameters...)) {
    functions_[name] = reinterpret_cast<void*>(function);
    functions_[versioned] = reinterpret_cast<void*>(function);
  }

  std::unordered_map<std::string_view, void*> functions_;
};

CUresult get_proc_address(const char* name, void** entry, int version, cuuint64_t /*flags*/,
                          CUdriverProcAddressQueryResult* status) {
  static const bool is_traced = getenv("EMULATED_GPU_TRACE_DRIVER") != nullptr;
  if (name == nullptr || entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_itself = std::string_view(name) == "cuGetProcAddress" && version >= 12000;
  *entry = find_driver_function(is_itself ? "cuGetProcAddress_v2" : name);
  if (is_traced && (*entry == nullptr || is_absent(name))) {
    fprintf(stderr, "emulated GPU: asked for %s, which has no stand-in\n", name);
  }
  if (status != nullptr) {
    *status =
        *entry != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *entry != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

void* find_driver_function(std::string_view name) {
  static const auto* const made = new NameTable;  // for ever: libraries ask while the process exits
  return made->find(name);
}

}  // namespace tencache
