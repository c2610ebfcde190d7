// SPDX-License-Identifier: Apache-2.0
//
// libtencache_preload.so: `LD_PRELOAD=$(tencache preload) ./program` puts tencache under PyTorch in
// a program that knows nothing of it.
//
// The library stands before the C library's __libc_start_main(), through which every dynamically
// linked program starts. At that moment all libraries of the program are loaded and constructed,
// and none of its own code has run. The library looks at what is loaded:
//   - libtorch: tencache is enabled when main() begins, as the variables TENCACHE_* say. The
//     program's global objects exist by then, as they would for a program that asks by itself.
//   - a Python interpreter: `import torch` will enable tencache (python.h).
//   - anything else: nothing happens, and nothing more is loaded.
// TENCACHE=0 switches this library off. A program that cannot be enabled ends with status 2 and a
// message, since it asked for a budget.
//
// Threads: the one that starts the program. The only state is program_main, through which
// enabled_main() reaches the program's own main().
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <initializer_list>

#include "abi/tencache.h"
#include "python.h"

namespace tencache::preload {
namespace {

using Main = int (*)(int count, char** arguments, char** environment);
using StartMain = int (*)(Main main, int count, char** arguments, void (*init)(), void (*fini)(),
                          void (*loader_fini)(), void* stack_end);

constexpr int kExitStatus = 2;
constexpr const char* kLibtorch = "libtorch_cpu.so";

Main program_main = nullptr;

[[noreturn]] void fail(const char* reason) {
  dprintf(STDERR_FILENO,
          "tencache: error: %s\n"
          "tencache: error: The program ends here, since LD_PRELOAD asked for tencache and it "
          "cannot start. Set TENCACHE=0 to run without it.\n",
          reason);
  _exit(kExitStatus);
}

int is_libtorch(dl_phdr_info* library, size_t /*bytes*/, void* /*data*/) {
  // basename() does not serve here, because the program may define it as well.
  const char* const slash = strrchr(library->dlpi_name, '/');
  const char* const file = slash != nullptr ? slash + 1 : library->dlpi_name;
  return strncmp(file, kLibtorch, strlen(kLibtorch)) == 0 ? 1 : 0;
}

// Whether TENCACHE leaves tencache on, in the words that the Python package takes.
bool is_switched_on() {
  const char* const value = getenv("TENCACHE");
  if (value == nullptr) return true;
  for (const char* word : {"1", "on", "true", "yes"}) {
    if (strcasecmp(value, word) == 0) return true;
  }
  for (const char* word : {"", "0", "off", "false", "no"}) {
    if (strcasecmp(value, word) == 0) return false;
  }
  fail(
      "TENCACHE says neither yes nor no. Use TENCACHE=1 or TENCACHE=0; options have variables of "
      "their own, such as TENCACHE_DEVICE_MEMORY=2GiB.");
}

// Loads the core, which lies beside this library.
void* load_core() {
  constexpr const char* kCore = "libtencache.so";
  Dl_info own = {};
  char path[4096];
  if (dladdr(reinterpret_cast<void*>(&load_core), &own) == 0) fail("the loader does not know us.");
  const char* const slash = strrchr(own.dli_fname, '/');
  const int folder_length = slash != nullptr ? static_cast<int>(slash + 1 - own.dli_fname) : 0;
  snprintf(path, sizeof path, "%.*s%s", folder_length, own.dli_fname, kCore);
  void* const core = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (core == nullptr) fail(dlerror());
  return core;
}

int call(void* core, const char* name, tencache_error* error) {
  void* const found = dlsym(core, name);
  if (found == nullptr) fail(dlerror());
  return reinterpret_cast<int (*)(tencache_error*)>(found)(error);
}

void enable() {
  void* const core = load_core();
  tencache_error error = {};
  for (const char* step : {"tencache_read_environment", "tencache_enable"}) {
    if (call(core, step, &error) != TENCACHE_OK) fail(error.message);
  }
}

int enabled_main(int count, char** arguments, char** environment) {
  enable();
  return program_main(count, arguments, environment);
}

// Chooses the main() that the program starts with: enabled_main() where libtorch is loaded and
// TENCACHE leaves tencache on, otherwise its own. Prepares a Python interpreter that does not have
// libtorch loaded.
Main chosen_main(Main main) {
  if (dl_iterate_phdr(&is_libtorch, nullptr) != 0) {
    if (!is_switched_on()) return main;
    program_main = main;
    return &enabled_main;
  }
  if (is_python()) prepare_python();
  return main;
}

}  // namespace
}  // namespace tencache::preload

// The C library's name. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" __attribute__((visibility("default"))) int __libc_start_main(
    tencache::preload::Main main, int count, char** arguments, void (*init)(), void (*fini)(),
    void (*loader_fini)(), void* stack_end) {
  using namespace tencache::preload;
  const auto start = reinterpret_cast<StartMain>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(chosen_main(main), count, arguments, init, fini, loader_fini, stack_end);
}
