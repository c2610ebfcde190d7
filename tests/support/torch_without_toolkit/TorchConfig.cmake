# SPDX-License-Identifier: Apache-2.0
#
# This stands for the TorchConfig.cmake of a torch for CUDA, for examples/cpp in CI: that one ends
# the configure where there is no CUDA toolkit. TORCH_FOLDER is the folder of the torch package.
set(TORCH_FOLDER "" CACHE PATH "The folder of the torch package")
if(NOT EXISTS ${TORCH_FOLDER}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "TORCH_FOLDER is '${TORCH_FOLDER}', where no lib/libtorch_cpu.so lies")
endif()
add_library(torch INTERFACE IMPORTED)
target_include_directories(torch SYSTEM INTERFACE ${TORCH_FOLDER}/include
                                                  ${TORCH_FOLDER}/include/torch/csrc/api/include)
# A program names no symbol of the libraries for CUDA, and needs them all the same.
set(folder ${TORCH_FOLDER}/lib)
file(GLOB libraries ${folder}/libc10.so ${folder}/libtorch_cpu.so ${folder}/libc10_cuda.so
     ${folder}/libtorch_cuda.so)
target_link_libraries(torch INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined ${libraries})
set(TORCH_LIBRARIES torch)
