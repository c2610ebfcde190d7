# SPDX-License-Identifier: Apache-2.0
"""Two GPUs of the emulation, by its CUDA runtime: what each has of its own and what reaches it.

The expected answers are those that CUDA documents. Nothing here needs torch.
"""

from __future__ import annotations

from requirement import needs_emulated_gpu
from runtime_programs import run_alone

pytestmark = needs_emulated_gpu


def test_two_gpus_have_memory_of_their_own_and_copy_to_each_other() -> None:
    run_alone(
        """
size = 4096
free, memory = [], []
for device in range(2):
    call("cudaSetDevice", device)
    free.append(free_bytes())
    memory.append(allocate(size))
assert free_bytes() < free[1]
call("cudaMemset", memory[1], 7, c_size_t(size))
call("cudaDeviceSynchronize")
call("cudaSetDevice", 0)
assert free_bytes() < free[0]
found = (c_int * 32)()
call("cudaPointerGetAttributes", found, memory[1])
assert found[1] == 1
call("cudaMemcpyPeerAsync", memory[0], 0, memory[1], 1, c_size_t(size), None)
host = ctypes.create_string_buffer(size)
call("cudaMemcpy", host, memory[0], c_size_t(size), 4)
assert host.raw == b"\\x07" * size
assert runtime.cudaMemcpyPeerAsync(memory[0], 0, memory[1], 2, c_size_t(size), None) == 101
can = c_int(-1)
call("cudaDeviceCanAccessPeer", byref(can), 0, 1)
assert can.value == 0
assert runtime.cudaDeviceCanAccessPeer(byref(can), 0, 2) == 101
assert runtime.cudaDeviceEnablePeerAccess(1, 0) == 101  # since it cannot be reached
""",
        gpus=2,
    )


def test_gpus_have_a_null_stream_each() -> None:
    run_alone(
        """
import threading
HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
is_over, waited = threading.Event(), []
wait = HostFunction(lambda _: waited.append(is_over.wait(20)))
size = c_size_t(4096)
memory = []
for device in range(2):
    call("cudaSetDevice", device)
    memory.append(allocate(4096))
call("cudaSetDevice", 0)
call("cudaLaunchHostFunc", None, wait, None)
call("cudaMemsetAsync", memory[0], 7, size, None)
assert runtime.cudaStreamQuery(None) == 600
call("cudaSetDevice", 1)
call("cudaStreamQuery", None)
call("cudaMemset", memory[1], 9, size)
call("cudaDeviceSynchronize")
host = ctypes.create_string_buffer(4096)
call("cudaMemcpy", host, memory[1], size, 4)
assert host.raw == b"\\x09" * 4096
is_over.set()
call("cudaSetDevice", 0)
call("cudaDeviceSynchronize")
assert waited == [True]
call("cudaMemcpy", host, memory[0], size, 4)
assert host.raw == b"\\x07" * 4096
""",
        gpus=2,
    )


def test_memory_is_freed_once_its_own_gpu_is_done_with_it() -> None:
    """Another GPU is current, and the one that uses the memory is held up."""
    run_alone(
        """
import threading
HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
size, errors = c_size_t(4096), []
on_host = c_void_p()
call("cudaMallocHost", byref(on_host), size)
call("cudaSetDevice", 1)
on_device = allocate(4096)
for name, memory in (("cudaFree", on_device), ("cudaFreeHost", on_host)):
    gate = threading.Event()
    wait = HostFunction(lambda _: (gate.wait(60), None)[1])
    call("cudaLaunchHostFunc", None, wait, None)
    if name == "cudaFree":
        call("cudaMemsetAsync", on_device, 7, size, None)
    # GPU 0 is current on the other thread.
    freeing = threading.Thread(target=lambda: errors.append(getattr(runtime, name)(memory)))
    freeing.start()
    freeing.join(0.5)  # as long as one likes: it goes on once the gate is open
    assert freeing.is_alive(), name
    gate.set()
    freeing.join()
    call("cudaDeviceSynchronize")
assert errors == [0, 0]
""",
        gpus=2,
    )
