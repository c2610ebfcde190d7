// SPDX-License-Identifier: Apache-2.0
#include "python.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

namespace tencache::preload {
namespace {

using PyObject = void;  // only Python knows what it holds

template <typename Function>
Function python_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

bool is_import_of_torch(const char* event, PyObject* arguments) {
  if (strcmp(event, "import") != 0) return false;
  PyObject* const module =
      python_function<PyObject* (*)(PyObject*, ssize_t)>("PyTuple_GetItem")(arguments, 0);
  const auto compare =
      python_function<int (*)(PyObject*, const char*)>("PyUnicode_CompareWithASCIIString");
  return module != nullptr && compare(module, "torch") == 0;
}

// An audit hook (PEP 578). It asks the package, which raises SystemExit if the program must not go
// on. An interpreter without the package goes on: nothing of ours can run there.
int refuse_torch(const char* event, PyObject* arguments, void* /*data*/) {
  if (!is_import_of_torch(event, arguments)) return 0;
  PyObject* const package =
      python_function<PyObject* (*)(const char*)>("PyImport_ImportModule")("tencache._autoload");
  if (package == nullptr) {
    python_function<void (*)()>("PyErr_Clear")();
    return 0;
  }
  const auto call = python_function<PyObject* (*)(PyObject*, const char*, const char*, ...)>(
      "PyObject_CallMethod");
  return call(package, "refuse_if_not_loaded", nullptr) != nullptr ? 0 : -1;
}

}  // namespace

bool is_python() { return dlsym(RTLD_DEFAULT, "Py_BytesMain") != nullptr; }

void prepare_python() {
  if (getenv("TENCACHE") == nullptr) {
    setenv("TENCACHE", "1", 0);
    setenv("TENCACHE_INTERNAL_ASKED_BY", "LD_PRELOAD", 1);  // _autoload.py names it in errors
  }
  const char* const autoload = getenv("TORCH_DEVICE_BACKEND_AUTOLOAD");
  if (autoload == nullptr || strcmp(autoload, "1") == 0) return;
  using Hook = int (*)(const char*, PyObject*, void*);
  const auto add_hook = python_function<int (*)(Hook, void*)>("PySys_AddAuditHook");
  if (add_hook != nullptr) add_hook(&refuse_torch, nullptr);  // older Pythons have no such torch
}

}  // namespace tencache::preload
