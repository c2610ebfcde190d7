// SPDX-License-Identifier: Apache-2.0
//
// Which operators only call other operators. `lstm`, `linear`, `matmul`, `to` or `layer_norm` are
// written once for all backends (CompositeImplicitAutograd): their kernels see Tensors, hand them
// to other operators and touch no byte. Each of those operators is announced and pins what it
// needs, so a composite one does not pass the gate at all.
//
// Note [Composite operators]: what follows from that, and why it is safe.
// 1. Its inputs are not pinned for it. An LSTM over a long sequence, or a whole backward pass that
//    is one `_backward`, no longer holds everything it was given from its first inner operator to
//    its last one.
// 2. It is not the outermost operator of its thread, so what its parts allocate is released when
//    each part ends. The rule that memory stays pinned until the outermost operator ends is for
//    kernels that go on using by address what an inner operator gave them; a composite kernel has
//    no address. What was allocated inside goes cold only after an operator named it, and every
//    later one that needs it names it too.
// 3. It does not count as a use of its inputs, and does not make them known as tensors.
// An access that this misses after all meets the cold mapping: slow, counted, never wrong.
//
// The exceptions are kernels that are registered in the same way and read bytes themselves, by
// data_ptr() or an accessor: listed by name, from what PyTorch's sources say. The tests call all
// composite operators that PyTorch's database of operators can call and count what no operator
// announced; without the list they find max_pool1d, tensor_split, ctc_loss, packed sequences and
// Sobol's. Also an operator with a kernel of its own for nested tensors is composite for them: that
// kernel, too, calls operators on what the tensor holds.
#pragma once

#include <ATen/core/function_schema.h>

namespace tencache::shim {

/// Whether dense tensors on the CPU, with autograd or without, reach a kernel that only calls other
/// operators. Asks the dispatcher; only operators of PyTorch's own are known well enough for a yes.
bool only_calls_operators(const c10::FunctionSchema& schema);

}  // namespace tencache::shim
