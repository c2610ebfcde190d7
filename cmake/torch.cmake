# SPDX-License-Identifier: Apache-2.0
#
# The torches that shims are built for. TENCACHE_TORCH_ROOTS names their folders (those with
# version.py, include and lib); by default there is only the torch that the building Python imports.
# The folders of a wheel's torches need not be importable here.
#
# This file sets two lists and adds a target for each name in them:
#
# - TENCACHE_TORCH_MINORS, e.g. 2.11;2.15, with tencache::torch-2.11: the headers and libraries of
#   that torch
#
# - TENCACHE_TORCH_CUDA_KEYS, e.g. 2.11-cu13, with tencache::torch_cuda-2.11-cu13: the same and
#   CUDA's. A torch has a key if it is built for the CUDA of cuda.h, and the runtime of that CUDA is
#   found beside torch or beside cuda.h.
#
# For each name there are TENCACHE_TORCH_<name>_VERSION and TENCACHE_TORCH_<name>_LIBRARIES (the
# folder). tencache::torch and TENCACHE_TORCH_LIBRARIES are those of the first torch, which the
# tests are built with. find_package(Torch) is not used: it looks for a CUDA toolkit, which building
# against torch's headers does not need.
set(TENCACHE_OLDEST_TORCH 2.11)
set(TENCACHE_NEWEST_TORCH 2.15)
set(TENCACHE_TORCH_ROOTS "" CACHE STRING
    "Folders of the torches to build shims for; empty: the torch that the building Python imports")

# Sets `result` to the folder of the torch that the building Python imports. We ask at each
# configure, because the environment may have another torch by then.
function(tencache_find_importable_torch result)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python3_EXECUTABLE} -c
            "import os, torch; print(os.path.dirname(torch.__file__))"
    OUTPUT_VARIABLE root ERROR_VARIABLE error RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${Python3_EXECUTABLE} cannot import torch, against which tencache's shim is "
                        "built:\n${error}\nInstall torch there first and build without isolation: "
                        "pip install --no-build-isolation .")
  endif()
  set(${result} ${root} PARENT_SCOPE)
endfunction()

# Sets `result` to the text that version.py in `root` assigns to `name`; empty for None.
function(tencache_read_torch_version root name result)
  if(NOT EXISTS ${root}/version.py)
    message(FATAL_ERROR "${root}/version.py is missing: this is no folder of a torch package. "
                        "TENCACHE_TORCH_ROOTS takes folders such as <environment>/lib/python3.11/"
                        "site-packages/torch")
  endif()
  file(STRINGS ${root}/version.py line REGEX "^${name}[ :]")
  set(value "")
  if(line MATCHES "= *'([^']+)'")
    set(value ${CMAKE_MATCH_1})
  endif()
  set(${result} ${value} PARENT_SCOPE)
endfunction()

# Sets `result` to the CUDA runtime of version `major` for the torch in `root`; empty if there is
# none. pip installs the runtime beside torch, in folders that differ between CUDA 12 and later
# ones. It may also lie beside cuda.h.
function(tencache_find_cuda_runtime root major result)
  file(GLOB found ${root}/../nvidia/cu${major}/lib/libcudart.so.${major}
       ${root}/../nvidia/cuda_runtime/lib/libcudart.so.${major}
       ${TENCACHE_CUDA_INCLUDE}/../lib/libcudart.so.${major}
       ${TENCACHE_CUDA_INCLUDE}/../lib64/libcudart.so.${major})
  set(first "")
  if(found)
    list(GET found 0 first)
  endif()
  set(${result} ${first} PARENT_SCOPE)
endfunction()

# tencache_add_torch(<target> <root> <version> <library>...) adds the target with the headers of the
# torch in `root` and these of its libraries. libtorch.so is never one of them: it is empty but
# loads all of CUDA, and a C++ program may go without CUDA.
function(tencache_add_torch target root version)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE ${root}/include
                                                        ${root}/include/torch/csrc/api/include)
  # All torches from 2.7 on are compiled with this ABI of libstdc++.
  target_compile_definitions(${target} INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  foreach(name IN LISTS ARGN)
    set(library ${root}/lib/lib${name}.so)
    if(NOT EXISTS ${library})
      message(FATAL_ERROR "${library} is missing: this torch is incomplete. Install it again: "
                          "pip install --force-reinstall torch==${version}")
    endif()
    target_link_libraries(${target} INTERFACE ${library})
  endforeach()
endfunction()

if(TENCACHE_TORCH_ROOTS)
  set(torch_roots ${TENCACHE_TORCH_ROOTS})
else()
  tencache_find_importable_torch(torch_roots)
endif()
set(TENCACHE_TORCH_MINORS "")
set(TENCACHE_TORCH_CUDA_KEYS "")
foreach(root IN LISTS torch_roots)
  tencache_read_torch_version(${root} __version__ version)
  tencache_read_torch_version(${root} cuda cuda)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  if(minor VERSION_LESS TENCACHE_OLDEST_TORCH OR minor VERSION_GREATER TENCACHE_NEWEST_TORCH)
    message(FATAL_ERROR "torch ${version} in ${root} is not supported: tencache knows the interfaces of "
                        "torch ${TENCACHE_OLDEST_TORCH} to ${TENCACHE_NEWEST_TORCH}. Install one of these, e.g. "
                        "pip install torch==${TENCACHE_OLDEST_TORCH}.0")
  endif()
  message(STATUS "torch: ${version} in ${root}")
  if(NOT minor IN_LIST TENCACHE_TORCH_MINORS)
    list(APPEND TENCACHE_TORCH_MINORS ${minor})
    set(TENCACHE_TORCH_${minor}_VERSION ${version})
    set(TENCACHE_TORCH_${minor}_LIBRARIES ${root}/lib)
    tencache_add_torch(tencache::torch-${minor} ${root} ${version} c10 torch_cpu)
  endif()

  string(REGEX MATCH "^[0-9]+" cuda_major "${cuda}")
  set(key ${minor}-cu${cuda_major})
  if(NOT cuda_major OR key IN_LIST TENCACHE_TORCH_CUDA_KEYS)
    continue()
  endif()
  math(EXPR header_major "${TENCACHE_CUDA_VERSION} / 1000")
  tencache_find_cuda_runtime(${root} ${cuda_major} cuda_runtime)
  if(NOT cuda_runtime OR NOT cuda_major EQUAL header_major OR NOT EXISTS ${root}/lib/libc10_cuda.so)
    message(STATUS "torch ${version}: no library for GPU memory, which needs cuda.h and the runtime of "
                   "CUDA ${cuda_major}; cuda.h is of CUDA ${header_major}")
    continue()
  endif()
  list(APPEND TENCACHE_TORCH_CUDA_KEYS ${key})
  set(TENCACHE_TORCH_${key}_VERSION ${version})
  set(TENCACHE_TORCH_${key}_LIBRARIES ${root}/lib)
  tencache_add_torch(tencache::torch_cuda-${key} ${root} ${version} c10 torch_cpu c10_cuda)
  target_link_libraries(tencache::torch_cuda-${key} INTERFACE ${cuda_runtime} tencache::cuda_headers)
endforeach()

list(GET TENCACHE_TORCH_MINORS 0 TENCACHE_TORCH_MINOR)
set(TENCACHE_TORCH_LIBRARIES ${TENCACHE_TORCH_${TENCACHE_TORCH_MINOR}_LIBRARIES})
add_library(tencache::torch ALIAS tencache::torch-${TENCACHE_TORCH_MINOR})
