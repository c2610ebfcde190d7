// SPDX-License-Identifier: Apache-2.0
//
// Python interpreters under the preload library. There torch itself enables tencache: at the end of
// `import torch` it loads its extensions, tencache among them, and the variable TENCACHE asks for
// it (python/tencache/_autoload.py). A Python program that never imports torch goes on as if
// nothing were preloaded. The programs that it starts inherit LD_PRELOAD and TENCACHE, which is 1
// here unless it was set before. So those of them that use torch are enabled, too, unless TENCACHE
// says no.
//
// Threads: the one that starts the program.
#pragma once

namespace tencache::preload {

/// Whether this process is a Python interpreter, or links one.
bool is_python();

/// Sets TENCACHE=1, unless the variable is set, and tells who asked. If
/// TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from loading extensions, makes `import torch` end the
/// process with a message, because the program would run without a budget. Call before the
/// interpreter starts.
void prepare_python();

}  // namespace tencache::preload
