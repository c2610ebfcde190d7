# SPDX-License-Identifier: Apache-2.0
#
# The target tencache::torch: headers and libraries of the torch that the building Python imports.
# Also tencache::torch_cuda, if that torch is built for CUDA and its CUDA runtime is found beside
# cuda.h. Sets TENCACHE_TORCH_VERSION and TENCACHE_TORCH_LIBRARIES (the folder). find_package(Torch)
# is not used: it looks for a CUDA toolkit, which building against torch's headers does not need.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# We ask torch at each configure, because the environment may have got another one.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python3_EXECUTABLE} -c
          "import json, os, torch; print(json.dumps({\
'version': torch.__version__, 'root': os.path.dirname(torch.__file__),\
'cxx11_abi': int(torch.compiled_with_cxx11_abi())}))"
  OUTPUT_VARIABLE torch_facts ERROR_VARIABLE torch_error RESULT_VARIABLE torch_status)
if(NOT torch_status EQUAL 0)
  message(FATAL_ERROR "${Python3_EXECUTABLE} cannot import torch, against which libtencache_torch.so is "
                      "built:\n${torch_error}\nInstall torch there first and build without isolation: "
                      "pip install --no-build-isolation .")
endif()
string(JSON TENCACHE_TORCH_VERSION GET "${torch_facts}" version)
string(JSON torch_root GET "${torch_facts}" root)
string(JSON torch_cxx11_abi GET "${torch_facts}" cxx11_abi)
if(TENCACHE_TORCH_VERSION VERSION_LESS 2.11 OR TENCACHE_TORCH_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "torch ${TENCACHE_TORCH_VERSION} in ${torch_root} is not supported: tencache knows "
                      "the interfaces of torch 2.11 to 2.15. Install one of these, e.g. "
                      "pip install torch==2.11.0")
endif()
message(STATUS "torch: ${TENCACHE_TORCH_VERSION} in ${torch_root}")

add_library(tencache::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(tencache::torch SYSTEM INTERFACE ${torch_root}/include
                                                            ${torch_root}/include/torch/csrc/api/include)
target_compile_definitions(tencache::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})
set(TENCACHE_TORCH_LIBRARIES ${torch_root}/lib)
foreach(name c10 torch_cpu torch)
  set(library ${torch_root}/lib/lib${name}.so)
  if(NOT EXISTS ${library})
    message(FATAL_ERROR "${library} is missing: this torch is incomplete. Install it again: "
                        "pip install --force-reinstall torch==${TENCACHE_TORCH_VERSION}")
  endif()
  target_link_libraries(tencache::torch INTERFACE ${library})
endforeach()

file(GLOB cudart ${TENCACHE_CUDA_INCLUDE}/../lib/libcudart.so.* ${TENCACHE_CUDA_INCLUDE}/../lib64/libcudart.so.*)
if(cudart)
  list(GET cudart 0 cudart)
endif()
if(cudart AND EXISTS ${torch_root}/lib/libc10_cuda.so)
  add_library(tencache::torch_cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(tencache::torch_cuda INTERFACE tencache::torch ${torch_root}/lib/libc10_cuda.so
                                                       ${cudart} tencache::cuda_headers)
  # It holds what torch.cuda shows to Python. The suites do not need its kernels and do without it.
  set(TENCACHE_TORCH_CUDA_LIBRARY ${torch_root}/lib/libtorch_cuda.so)
endif()
