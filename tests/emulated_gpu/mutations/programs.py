# SPDX-License-Identifier: Apache-2.0
"""Programs that notice when tencache moves bytes too early, too late or not at all.

`python programs.py NAME` runs under `tencache run` on the emulated GPU; catalogue.py gives the
options, the budget and the speed of the link. Each program keeps its stream busy, or holds it or
the copies, so that later work is still queued when memory is wanted. It knows every byte that it
should find. It ends with status 1 and "wrong bits: …" or "failed test: …" on stderr; an illegal
address ends it by itself. A move that comes too early shows because the device is behind the host,
and not because of a clock, so a correct program passes on a machine of any speed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch

import tencache

MIB = 1 << 20
Program = Callable[[], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def full(mebibytes: int, value: float) -> torch.Tensor:
    return torch.full((mebibytes * MIB // 4,), float(value), device="cuda")


def holds(name: str, tensor: torch.Tensor, value: float) -> None:
    """Checks every element, so that even a page of an older copy is found."""
    wrong = int((tensor != value).sum().item())
    if wrong:
        raise SystemExit(f"wrong bits: {wrong} of {tensor.numel()} elements of {name}")


def true(what: str, is_so: bool) -> None:
    if not is_so:
        raise SystemExit(f"failed test: {what}: {tencache.stats()}")


def keep_busy(products: int) -> None:
    """Keeps the current stream busy, some milliseconds a product; the operand is a small block."""
    operand = torch.full((480, 480), 1e-3, device="cuda")
    for _ in range(products):
        operand = operand @ operand


@contextlib.contextmanager
def held_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Holds all work that the stream is given.

    The stream is released at the end, or as soon as another stream waits for it and nothing else
    goes on: tencache is right to wait there, and the program with it. So work that does not wait is
    done too early, however fast the machine is.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    is_over = threading.Event()

    def let_go() -> None:
        while not driver.emulated_gpu_is_stuck() and not is_over.wait(0.001):
            pass
        driver.emulated_gpu_let_go()

    watcher = threading.Thread(target=let_go)
    torch.cuda.synchronize()
    driver.emulated_gpu_hold(ctypes.c_void_p(stream.cuda_stream))
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


@contextlib.contextmanager
def held_copies() -> Iterator[None]:
    """Holds all copies.

    The copies are released at the end, once all streams have done whatever they do without them. So
    work that does not wait for a copy is done before it.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    torch.cuda.synchronize()
    driver.emulated_gpu_hold_copies()
    try:
        yield
        while not driver.emulated_gpu_is_stuck():
            true("the current stream waits for a copy", not torch.cuda.current_stream().query())
            time.sleep(0.001)
    finally:
        driver.emulated_gpu_let_go()


def spilled_within_budget() -> None:
    stats = tencache.stats()
    true("tensors were evicted", stats["bytes"]["evicted"] > 0)
    true("nothing went over the budget", stats["over_budget"]["events"] == 0)
    true("the peak is within it", stats["peak"]["device"] <= stats["budget"]["device"])


@program
def in_turn() -> None:
    """Uses more tensors than fit, one after another, in a stream that is always behind."""
    tensors = [full(16, index) for index in range(8)]
    for _ in range(6):
        for tensor in tensors:
            keep_busy(2)
            tensor.add_(1)
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 6)
    spilled_within_budget()


@program
def all_at_once() -> None:
    """Allocates at once the room of all the tensors that it has just written."""
    tensors = [full(16, index) for index in range(4)]
    for round_number in range(3):
        for tensor in tensors:
            tensor.add_(1)
        torch.cuda.synchronize()
        large = full(64, -1)
        holds("the large tensor", large, -1)
        del large
        for index, tensor in enumerate(tensors):
            holds(f"tensor {index}", tensor, index + round_number + 1)
    spilled_within_budget()


@program
def lists() -> None:
    """Uses tensors that an operator finds in a list."""
    tensors = [full(8, index) for index in range(16)]
    for _ in range(3):
        for first in range(0, 16, 2):
            keep_busy(1)
            joined = torch.cat(tensors[first : first + 2])
            holds("a half", joined[: 2 * MIB], first)
            holds("the other", joined[2 * MIB :], first + 1)
    spilled_within_budget()


@program
def large_result() -> None:
    """Calls an operator whose result wants the room of its own operands."""
    tensors = [full(16, index) for index in range(3)]
    others = [full(16, index) for index in range(3)]
    for _ in range(4):
        keep_busy(4)
        joined = torch.cat(tensors)
        for index in range(3):
            holds("a part", joined[index * 4 * MIB : (index + 1) * 4 * MIB], index)
        del joined
        for other in others:
            other.add_(1)
    for index, other in enumerate(others):
        holds(f"tensor {index}", other, index + 4)


def unannounced_scale() -> Callable[[torch.Tensor, float], None]:
    """A kernel that no operator announces; it scales a tensor of floats."""
    function = ctypes.CDLL(os.environ["EMULATED_GPU_OPERATORS"]).emulated_gpu_unannounced_scale
    function.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float]

    def scale(tensor: torch.Tensor, by: float) -> None:
        result = function(tensor.data_ptr(), tensor.numel(), by)
        true(f"the launch is accepted and does not give {result}", result == 0)

    return scale


@program
def unannounced() -> None:
    """Launches kernels that only the launch guard sees."""
    scale = unannounced_scale()
    tensors = [full(16, index) for index in range(8)]
    for _ in range(3):
        for tensor in tensors:
            tensor.add_(1)
        for tensor in tensors:
            scale(tensor, 2)
    for index, tensor in enumerate(tensors):
        expected = float(index)
        for _ in range(3):
            expected = (expected + 1) * 2
        holds(f"tensor {index}", tensor, expected)
    spilled_within_budget()


@program
def unseen_writes() -> None:
    """Writes, unseen by all, to resident tensors whose last copy is kept."""
    scale = unannounced_scale()
    tensors = [full(16, index + 1) for index in range(8)]
    for round_number in range(3):
        for index, tensor in enumerate(tensors):
            holds(f"tensor {index}", tensor, (index + 1) * 2**round_number)
            scale(tensor, 2)
            torch.cuda.synchronize()
    spilled_within_budget()


@program
def recorded() -> None:
    """record_stream: another stream, which is behind, uses freed memory."""
    side = torch.cuda.Stream()
    for elements in (MIB // 16, 2 * MIB):  # a small block and an extent
        for round_number in range(8):
            source = torch.full((elements,), float(round_number), device="cuda")
            target = torch.empty_like(source)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                keep_busy(4)
                target.copy_(source)
            source.record_stream(side)
            del source
            other = torch.full((elements,), -1.0, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            holds("what the other stream copied", target, round_number)
            holds("the newer tensor", other, -1)


@program
def adopted() -> None:
    """One stream frees memory with work still queued; another allocates it."""
    side = torch.cuda.Stream()
    for round_number in range(6):
        with torch.cuda.stream(side):
            freed = full(8, 0)
            keep_busy(4)
            freed.fill_(-1)
            del freed
        tensor = full(8, round_number)
        torch.cuda.synchronize()
        holds("the newer tensor", tensor, round_number)
        del tensor
        torch.cuda.empty_cache()


@program
def emptied_cache() -> None:
    """Gives the cache back while the freed memory's last kernel is still queued."""
    for _ in range(6):
        freed = full(8, 0)
        keep_busy(4)
        freed.fill_(-1)
        del freed
        torch.cuda.empty_cache()
    torch.cuda.synchronize()


@program
def graph() -> None:
    """Tensors that a CUDA graph has captured must stay where the graph finds them."""
    torch.manual_seed(0)
    weights = [torch.randn(1024, 4096, device="cuda") / 64 for _ in range(3)]
    inputs = torch.randn(16, 1024, device="cuda")

    def step() -> torch.Tensor:
        result = inputs
        for weight in weights:
            result = (result @ weight).relu() @ weight.t() * 0.1
        return result

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = step()
    others = [full(16, index) for index in range(8)]
    for round_number in range(3):
        inputs.fill_(round_number + 1)
        for other in others:
            other.add_(1)
        captured.replay()
        replayed = result.cpu()
        if not torch.equal(replayed, step().cpu()):
            raise SystemExit("wrong bits: the graph's result")
    for index, other in enumerate(others):
        holds(f"tensor {index}", other, index + 3)


@program
def guarded_graph() -> None:
    """Runs graph() where the launch guard sees the capture; it cannot see the replays."""
    graph()


@program
def captured_meanwhile() -> None:
    """A graph is captured while another thread uses more memory than there is."""
    tensors = [full(16, index) for index in range(8)]
    total = full(1, 0)

    def use_all() -> None:
        for _ in range(3):
            for tensor in tensors:
                tensor.add_(1)

    other = threading.Thread(target=use_all)
    captured = torch.cuda.CUDAGraph()
    is_valid = True
    try:
        with torch.cuda.graph(captured):
            total.add_(1)
            other.start()
            other.join()
    except RuntimeError:
        is_valid = False
    true("nothing spoils the capture", is_valid)
    captured.replay()
    holds("what the graph adds to", total, 1)
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 3)
    spilled_within_budget()


@program
def pinned() -> None:
    """Frees pinned memory while a copy from it is queued."""
    target = full(8, 0)
    for round_number in range(6):
        keep_busy(4)
        source = torch.full((2 * MIB,), float(round_number)).pin_memory()
        target.copy_(source, non_blocking=True)
        del source
        other = torch.full((2 * MIB,), -1.0).pin_memory()
        holds("what was copied", target, round_number)
        del other


@program
def together() -> None:
    """Calls operators whose operands must all be fetched together."""
    tensors = [full(16, index) for index in range(9)]
    for _ in range(3):
        for first in range(0, 9, 3):
            keep_busy(1)
            tensors[first].add_(tensors[first + 1]).sub_(tensors[first + 1])
            torch._foreach_add_(tensors[first : first + 3], 1.0)
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 3)
    spilled_within_budget()


@program
def behind() -> None:
    """Tensors that a stream has yet to use must leave, for others that it uses later."""
    tensors = [full(16, index) for index in range(6)]
    for tensor in tensors:
        tensor.add_(1)
    with held_stream(torch.cuda.current_stream()):
        for tensor in tensors * 2:
            tensor.add_(1)
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 3)
    spilled_within_budget()


@program
def behind_elsewhere() -> None:
    """The least recent tensor must leave, although another stream has yet to use it."""
    side = torch.cuda.Stream()
    first, *others = [full(16, index) for index in range(6)]
    for tensor in (*others, first):
        tensor.add_(1)
    with held_stream(side):
        with torch.cuda.stream(side):
            first.add_(2)
        for tensor in others * 2:
            tensor.add_(1)
    torch.cuda.synchronize()
    for index, tensor in enumerate((first, *others)):
        holds(f"tensor {index}", tensor, index + 3)
    spilled_within_budget()


@program
def fetched_elsewhere() -> None:
    """Another stream uses what one stream fetches, while the copy is under way.

    Before that more tensors want room, so tencache drops unchanged ones and checks what has landed.
    """
    side = torch.cuda.Stream()
    values = [1, 2, 3, 2, 4, 3]  # their sums are exact
    tensors = [full(16, value) for value in values]
    for tensor in tensors:
        tensor.sum()
    others = [full(16, 0) for _ in range(5)]  # they make all tensors leave
    del others
    torch.cuda.empty_cache()
    # The tensors come back, and their copies stay. If they were used in a row, tencache would guess
    # the next ones and fetch them, and whoever wants room would wait for that.
    sums = {index: tensors[index].sum() for index in (2, 0, 3, 1)}
    sum_elsewhere = torch.zeros((), device="cuda")
    with held_copies():
        sums |= {index: tensors[index].sum() for index in (4, 5)}
        again = tensors[0].sum()
        with torch.cuda.stream(side):
            torch.sum(tensors[4], 0, out=sum_elsewhere)
    torch.cuda.synchronize()
    holds("the sum elsewhere", sum_elsewhere, 4 * MIB * values[4])
    holds("the first sum again", again, 4 * MIB * values[0])
    for index, value in enumerate(values):
        holds("a sum", sums[index], 4 * MIB * value)
    true("unchanged ones were dropped", tencache.stats()["bytes"]["clean_dropped"] > 0)
    spilled_within_budget()


def made_stream() -> torch.cuda.Stream:
    """A stream that the program makes without PyTorch, ordered after the current one."""
    handle = ctypes.c_void_p()
    driver = ctypes.CDLL("libcuda.so.1")
    true("a stream is made", driver.cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0)
    stream = torch.cuda.ExternalStream(handle.value)
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def destroy(stream: torch.cuda.Stream) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    destroyed = driver.cuStreamDestroy_v2(ctypes.c_void_p(stream.cuda_stream)) == 0
    true("a stream is destroyed", destroyed)


@program
def destroyed() -> None:
    """Streams of the program's own are destroyed, with work left, before their tensors."""
    tensors = [full(16, index) for index in range(6)]
    for _ in range(3):
        for tensor in tensors:
            passing = made_stream()
            with torch.cuda.stream(passing):
                keep_busy(1)
                tensor.add_(1)
            torch.cuda.current_stream().wait_stream(passing)
            destroy(passing)
        for tensor in tensors:
            tensor.add_(1)
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 6)
    spilled_within_budget()
    del tensors, tensor

    # The next stream has the handle of the last one, and so its memory.
    for elements in (MIB // 16, 2 * MIB):  # a small block and an extent
        target = torch.empty(elements, device="cuda")
        old = made_stream()
        with torch.cuda.stream(old):
            source = torch.full((elements,), 1.0, device="cuda")
        with held_stream(old):
            with torch.cuda.stream(old):
                target.copy_(source)
            del source
            destroy(old)
            young = made_stream()
            with torch.cuda.stream(young):
                other = torch.full((elements,), -1.0, device="cuda")
            while not young.query():
                time.sleep(0.001)
        torch.cuda.synchronize()
        holds("what the old stream copied", target, 1)
        holds("what the young stream wrote", other, -1)
        del other
        destroy(young)


def fail_call(name: str, after: int, result: int) -> None:
    """Makes the driver's function fail once, after `after` more calls."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.emulated_gpu_fail_call(name.encode(), ctypes.c_uint64(after), ctypes.c_int(result))


@program
def refused_calls() -> None:
    """The driver refuses copies and mappings now and then; tencache asks again, or gives up."""
    tensors = [full(16, index) for index in range(8)]
    for round_number in range(6):
        for function in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemMap"):
            fail_call(function, 2 + round_number, 2)
        for tensor in tensors:
            tensor.add_(1)
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 6)
    true("tensors were evicted", tencache.stats()["bytes"]["evicted"] > 0)


@program
def second_gpu() -> None:
    """Everything is on the second GPU, and does not fit."""
    torch.cuda.set_device(1)
    try:
        tensors = [full(16, value) for value in range(8)]
        for tensor in tensors:
            tensor += 1
    except RuntimeError as error:
        raise SystemExit(f"failed test: {error}") from error
    for index, tensor in enumerate(tensors):
        holds(f"tensor {index}", tensor, index + 1)


@program
def beside() -> None:
    """Tensors of another stream leave and come back while the NULL stream is held."""
    driver = ctypes.CDLL("libcuda.so.1")
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.001):
            if driver.emulated_gpu_is_stuck():
                print("failed test: a copy waits for the NULL stream", file=sys.stderr, flush=True)
                os._exit(1)

    watcher = threading.Thread(target=watch)
    with torch.cuda.stream(torch.cuda.Stream()):
        tensors = [full(24, value) for value in range(6)]
        torch.cuda.synchronize()
        driver.emulated_gpu_hold(None)
        watcher.start()
        doubled = tensors[1] * 2
        torch.cuda.current_stream().synchronize()
        is_over.set()
        watcher.join()
        driver.emulated_gpu_let_go()
        holds("the doubled tensor", doubled, 2)


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
