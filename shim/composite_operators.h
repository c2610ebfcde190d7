// SPDX-License-Identifier: Apache-2.0
//
// Operators that only call other operators, and how to tell them. `lstm`, `linear`, `matmul`, `to`
// or `layer_norm` are written once for all backends (CompositeImplicitAutograd). Their kernels see
// Tensors, hand them to other operators and touch no byte. Each of the operators called is
// announced and pins what it needs, so a composite operator does not pass the gate at all.
//
// Note [Composite operators]: what follows from that, and why it is safe.
// 1. A composite operator does not pin its inputs. An LSTM over a long sequence, or a whole
//    backward pass that is one `_backward`, no longer holds all its inputs from its first inner
//    operator to its last.
// 2. It is not the outermost operator of its thread, so memory that its parts allocate is unpinned
//    when each part ends. Memory must stay pinned until the outermost operator ends only because a
//    kernel may go on using the address of a tensor that an inner operator gave it; a composite
//    kernel has no address. A tensor allocated inside goes cold only after an operator named it,
//    and every later operator that needs it names it too.
// 3. It does not count as a use of its inputs, and does not mark them as seen.
// On the cpu backend an access that slips through after all meets the cold mapping: it is slow and
// counted, and never wrong.
//
// The exceptions are kernels that are registered the same way but read bytes themselves, by
// data_ptr() or an accessor. We list them by name, from PyTorch's sources. The tests call every
// composite operator that PyTorch's database of operators can call and count the accesses that no
// operator announced; without the list they find max_pool1d, tensor_split, ctc_loss, packed
// sequences and Sobol's. An operator with a kernel of its own for nested tensors also counts as
// composite for them: that kernel too only calls operators on the tensors inside.
#pragma once

#include <ATen/core/function_schema.h>

namespace tencache::shim {

/// Whether dense tensors on the CPU, with autograd or without, reach a kernel that only calls other
/// operators. Asks the dispatcher. Says yes only for PyTorch's own operators; we know no others
/// well enough.
bool only_calls_operators(const c10::FunctionSchema& schema);

}  // namespace tencache::shim
