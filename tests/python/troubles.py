# SPDX-License-Identifier: Apache-2.0
"""Programs that get into trouble under tencache, each in a forked child of one process.

Most of a program's time is the import of torch; so it is imported once, and tencache is not enabled
in this process. Each child runs in a folder of its own with the variables of its trouble, does what
`import torch` does at its end, and is an ordinary program from there on. Its output goes into
FOLDER/NAME.txt. On stdout is a JSON object: how each child ended.

Usage: troubles.py FOLDER, with the library of the `faults` fixture in LD_PRELOAD.
"""

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import stat
import sys
import threading
from pathlib import Path

import numpy  # noqa: F401
import torch

MIB = 1 << 20
# A whole period, of another program.
PERIOD = """\
{"format": "tencache-period", "version": 1, "ops": 1}
{"id": 0, "bytes": 4096}
{"id": 1, "bytes": 4096}
{"name": "aten::mm", "compute_ns": 1, "reads": [0], "writes": [1], "order": "rw"}
"""
SMALL = {"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "32MiB", "TENCACHE_SPILL_DIR": "."}
# With these variables nothing leaves but what the program evicts itself; see cold.py.
COLD = {
    **SMALL,
    "TENCACHE_DEVICE_MEMORY": "256MiB",
    "TENCACHE_EXTENT_MIN": "64KiB",
    "TENCACHE_ARM_AT": "0.0001",
}
TROUBLES = {}


def trouble(variables=None, status=0):
    """Registers a function as a program that runs with these variables and ends with `status`."""

    def register(function):
        TROUBLES[function.__name__] = (variables or {}, status, function)
        return function

    return register


def tell(function, *arguments, **keywords):
    """Calls the function, which must fail, and prints the error."""
    try:
        function(*arguments, **keywords)
    except (TypeError, RuntimeError) as error:
        print(error, flush=True)
    else:
        raise AssertionError(f"{function} should have failed")


def tensors_of(count):
    return [torch.full((MIB,), float(value)) for value in range(count)]


def spill_file():
    """The path of this process's spill file, and its size in bytes."""
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        link = os.readlink(path) if os.path.lexists(path) else ""
        if link.endswith("(deleted)") and not link.startswith("/memfd:"):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size > 0:
                return path, status.st_size
    raise AssertionError("there is no spill file")


def cold_tensor():
    from cold import chill, make

    tensor, _ = make(1)
    chill(tensor)
    return tensor


# ---- Calls at the wrong time, wrong values ------------------------------------------------------


@trouble()
def wrong_calls():
    import tencache
    from tencache.integrations._figures import StepFigures

    tell(tencache.stats)
    tell(tencache.enable, device_mem="1GiB")
    tell(tencache.enable, device_memory=[])
    tell(tencache.enable, "1GiB")
    tell(tencache.allocator)
    StepFigures().begin()
    old = torch.zeros(MIB)
    tencache.enable(device_memory="64MiB", record="step.jsonl")
    tell(tencache.enable, device_memory="32MiB")
    tell(torch.empty, 1 << 45)
    child = os.fork()
    if child == 0:
        tencache.enable()
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert bool((old == 0).all())


@trouble({**SMALL, "TENCACHE": "2GiB"}, status=2)
def neither_yes_nor_no():
    raise AssertionError("it ran")


@trouble({"TENCACHE_DEVICE_MEMORY": "32MiB"})
def unused_variables():
    assert torch.ones(3).sum() == 3


@trouble()
def gpu_passed_over():
    import tencache

    def two():
        return 2

    torch.version.cuda, torch.cuda._device_count_nvml = "12.6", two
    tencache.enable(device_memory="64MiB")


@trouble()
def no_room_for_thread_locals():
    import tencache

    greedy = os.environ["GREEDY_LIBRARY"]
    with contextlib.suppress(OSError):
        for number in range(60):
            ctypes.CDLL(shutil.copy(greedy, f"./greedy{number}.so"))
    tell(tencache.enable, device_memory="1GiB")


# ---- Room that runs out -------------------------------------------------------------------------


@trouble({**SMALL, "TENCACHE_STRICT": "1", "TENCACHE_LEARN_FROM": "period.jsonl"})
def strict_mode():
    tell(tensors_of, 24)


@trouble(
    {
        **SMALL,
        "TENCACHE_DISK_SPACE": "16MiB",
        "TENCACHE_LEARN_FROM": "ranks.jsonl",
        "RANK": "4",
        "WORLD_SIZE": "8",
    }
)
def used_up_quota():
    tensors = []

    def fill():
        for value in range(40):
            tensors.append(torch.full((MIB,), float(value)))
            for tensor in tensors[-3:]:
                tensor.add_(0)

    tell(fill)


@trouble(
    {**SMALL, "TENCACHE_STATS": "gone/run.json", "TENCACHE_LEARN_FROM": "period.jsonl"},
)
def too_large_an_op():
    tensors = tensors_of(20)
    view = tensors[0].numpy()
    for tensor in tensors:
        tensor.add_(1)
    torch.cat(tensors)
    for tensor in tensors[1:]:
        tensor.add_(1)
    assert view[0] == 1
    os.rmdir("gone")


@trouble({**SMALL, "TENCACHE_DISK_WAIT": "100ms", "TENCACHE_IO_URING": "off"})
def failing_disk():
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    marks = os.open(os.devnull, os.O_WRONLY)
    tensors = tensors_of(20)
    torch._foreach_add_(tensors, 1)
    # From the ninth write on, with seed 0, every write fails, without an end.
    seed, chance, skip, most = (ctypes.c_uint64(number) for number in (0, 10_000, 8, 1 << 60))
    assert not library.soak_fail_disk(b"write-erofs", seed, chance, skip, most, 0, marks)
    torch._foreach_add_(tensors, 1)
    for value, tensor in enumerate(tensors):
        assert bool((tensor.numpy() == value + 2).all()), value


@trouble({**SMALL, "TENCACHE_DEVICE_MEMORY": "2GiB", "TENCACHE_EXTENT_MIN": "4KiB"})
def many_tensors():
    mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
    kept = [torch.empty(1024) for _ in range(mappings // 4 + 64)]
    assert len(kept) > 64


@trouble({**SMALL, "TENCACHE_DEVICE_MEMORY": "1GiB"})
def machine_without_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    kept = []

    def fill():
        while True:
            kept.append(torch.empty(128 << 10, dtype=torch.uint8))

    resource.setrlimit(resource.RLIMIT_AS, (used + 16 * MIB, before[1]))
    try:
        fill()
    except RuntimeError as error:
        resource.setrlimit(resource.RLIMIT_AS, before)
        print(error)


# ---- A disk that lies, descriptors, signals -----------------------------------------------------


@trouble(COLD, status=-signal.SIGABRT)
def disk_that_lies():
    tensor = cold_tensor()
    path, size = spill_file()
    os.pwrite(os.open(path, os.O_WRONLY), bytes(size), 0)
    tensor.add_(1)


@trouble(COLD, status=-signal.SIGABRT)
def disk_that_cannot_be_read():
    tensor = cold_tensor()
    os.ftruncate(os.open(spill_file()[0], os.O_WRONLY), 0)
    tensor.add_(1)


@trouble(COLD, status=-signal.SIGBUS)
def page_that_is_lost():
    from cold import chill, make

    tensor, _ = make(1)
    view = tensor.numpy()
    chill(tensor)
    os.ftruncate(os.open(spill_file()[0], os.O_WRONLY), 8192)
    print(view[4096])


@trouble(SMALL, status=-signal.SIGABRT)
def closed_descriptors():
    kept = tensors_of(20)
    os.closerange(3, 256)
    for number in range(14):
        os.open(f"file{number}", os.O_RDWR | os.O_CREAT)
    kept += tensors_of(20)


@trouble(COLD)
def writer_that_cannot_wait():
    from cold import chill, make

    tensor, truth = make(1)
    view = tensor.numpy()
    chill(tensor)
    has_written, is_over = threading.Event(), threading.Event()

    def write():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        view[0] = 7
        has_written.set()
        is_over.wait()

    writer = threading.Thread(target=write)
    writer.start()
    has_written.wait()
    tensor.add_(1)
    is_over.set()
    writer.join()
    assert tensor[0] == 8 and tensor[1] == truth[1] + 1


# ---- How they are run ---------------------------------------------------------------------------


def become(folder, variables):
    """Makes this forked child a program in the folder, with its output beside it."""
    output = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(folder)
    os.mkdir("gone")
    for name in ("period.jsonl", "ranks.rank3.jsonl"):
        Path(name).write_text(PERIOD)
    os.environ.update(variables)
    torch._import_device_backends()


def main(folder):
    statuses = {}
    for name, (variables, expected, function) in TROUBLES.items():
        (folder / name).mkdir()
        child = os.fork()
        if child == 0:
            become(folder / name, variables)
            function()
            return
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        statuses[name] = {"status": status, "expected": expected}
    print(json.dumps(statuses))


if __name__ == "__main__":
    assert not any(name.startswith("TENCACHE") for name in os.environ)
    main(Path(sys.argv[1]))
