// SPDX-License-Identifier: Apache-2.0
#include "torch_error.h"

#include <c10/util/Exception.h>

#include <string>

namespace tencache::shim {

void throw_out_of_memory(const tencache_error& error) {
  std::string message = error.message;
  if (message.find(" out of memory.") == std::string::npos) {
    message.insert(0, "tencache is out of memory. ");
  }
  message += " [DefaultCPUAllocator: can't allocate memory]";
  C10_THROW_ERROR(OutOfMemoryError, message);
}

}  // namespace tencache::shim
