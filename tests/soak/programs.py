# SPDX-License-Identifier: Apache-2.0
"""The programs that the soaks disturb. Each prints `DIGEST`, the same on stock PyTorch.

The programs are small, and exceed the budgets of `rounds.py`. They run in a forked child of the
zygote, which has imported this file; so it runs no op when it is imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from names import WRITER_NAMES
from safetensors.torch import load_file, save_file

import tencache

# The model is wider on a GPU, where a tensor below 2 MiB has no memory of its own to move.
WIDTHS = {"cpu": 512, "cuda": 768}
LAYERS, BATCH = 6, 16
# How a child that ended in this way looks to its parent.
STATUSES = {
    "exit": 7,
    "_exit": 8,
    "exception": 1,
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
    "SIGSEGV": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "exec": 0,
    "parent first": 9,
}


class Marks:
    """What a program tells the zygote while it runs (zygote_server.py)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def step(self) -> None:
        os.write(self._descriptor, b".")

    def verdict(self, is_right: bool) -> None:
        os.write(self._descriptor, b"+" if is_right else b"-")


class Training:
    """A model, its optimizer with list operators, and steps whose data follow from their number."""

    def __init__(self, device: str) -> None:
        self._device, self._width = device, WIDTHS[device]
        torch.manual_seed(0)
        torch.tanh(torch.ones(1))  # oneMKL chooses its kernels at the first call
        layers: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(self._width, self._width), torch.nn.Tanh()]
        self._model = torch.nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, foreach=True)
        self._losses: list[float] = []

    def step(self, number: int, batch: int = BATCH) -> None:
        generator = torch.Generator().manual_seed(1000 + number)
        given, wanted = torch.randn(2, batch, self._width, generator=generator).to(self._device)
        self._optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self._model(given), wanted)
        loss.backward()
        self._optimizer.step()
        self._losses.append(loss.item())

    def digest(self) -> str:
        tensors = list(self._model.parameters())
        for state in self._optimizer.state.values():
            tensors += [state[name] for name in sorted(state)]
        return digest_of(tensors, repr(self._losses))


def digest_of(tensors: Iterable[torch.Tensor], text: str = "") -> str:
    digest = hashlib.sha256(text.encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(marks: Marks, *, device: str, steps: int) -> None:
    training = Training(device)
    for number in range(steps):
        training.step(number)
        marks.step()
    print("DIGEST", training.digest(), flush=True)


# ---- Forks --------------------------------------------------------------------------------------


def fork_storm(marks: Marks, *, device: str, steps: int, ways: list[str]) -> None:
    """Forks a child for each way to end, three at a time, while another thread trains.

    On the cpu backend each child reads tensors that are cold by then. No child may use a GPU.
    """
    kept = [
        torch.full((1 << 18,), float(i), device=device).mul_(1 + i).add_(0.5) for i in range(12)
    ]
    wanted = digest_of(kept)
    training = Training(device)
    # The first step comes before any fork: it initialises static variables, which registers their
    # destructors. A child that is forked while another thread does that hangs in exit(): the C
    # library does not free its lock in the child, whatever allocator a program has.
    training.step(0)
    marks.step()
    thread = threading.Thread(target=run_steps, args=(training, marks, range(1, steps)))
    thread.start()
    for begin in range(0, len(ways), 3):
        children = [(way, start_child(marks, kept, wanted, way)) for way in ways[begin : begin + 3]]
        for way, child in children:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != STATUSES[way]:
                print(f"WAY {way!r} ended with {status} instead of {STATUSES[way]}", flush=True)
                marks.verdict(False)
    thread.join()
    outlive(marks, kept, wanted)
    print("DIGEST", training.digest(), digest_of(kept), flush=True)


def run_steps(training: Training, marks: Marks, numbers: range) -> None:
    for number in numbers:
        training.step(number)
        marks.step()


def start_child(marks: Marks, kept: list[torch.Tensor], wanted: str, way: str) -> int:
    """Forks a child that looks at the tensors and ends in this way; returns its number."""
    child = os.fork()
    if child == 0:
        # The child of this child looks, once this one has ended.
        if way == "parent first":
            outlive(marks, kept, wanted)
        else:
            marks.verdict(is_right(kept, wanted))
        end(way)
    return child


def is_right(kept: list[torch.Tensor], wanted: str) -> bool:
    return kept[0].is_cuda or digest_of(kept) == wanted


def outlive(marks: Marks, kept: list[torch.Tensor], wanted: str) -> None:
    """Forks a child that looks at the tensors when this process has ended."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.read(reader, 1)  # its end says that the other side is gone
        marks.verdict(is_right(kept, wanted))
        os._exit(0)
    os.close(reader)
    # `writer` stays open until this process ends.


def end(way: str) -> None:
    """Ends this process."""
    if way == "exit":
        raise SystemExit(STATUSES[way])
    if way in ("_exit", "parent first"):
        os._exit(STATUSES[way])
    if way == "exception":
        raise RuntimeError("a child ends by an exception, as it should")
    if way == "exec":
        os.execv("/bin/true", ["true"])
    if way == "abort":
        os.abort()
    os.kill(os.getpid(), getattr(signal, way))
    signal.pause()


# ---- Drift --------------------------------------------------------------------------------------


def drift(marks: Marks, *, device: str, steps: int, samples: int, seed: int) -> None:
    """Trains with batches of changing sizes, beside tensors of changing sizes that come and go."""
    training = Training(device)
    chance = random.Random(seed)
    shelf: list[torch.Tensor | None] = [None] * 12
    digest = hashlib.sha256()
    for number in range(steps):
        training.step(number, batch=chance.randrange(1, 65))
        place = chance.randrange(len(shelf))
        old = shelf[place]
        if old is not None:
            digest.update(digest_of([old]).encode())
        count = chance.randrange(1 << 14, 3 << 18)
        shelf[place] = torch.full((count,), float(number), device=device).add_(1)
        marks.step()
        if number % max(1, steps // samples) == 0:
            print("SAMPLE", json.dumps(sample()), flush=True)
    print("DIGEST", training.digest(), digest.hexdigest(), flush=True)


def sample() -> dict[str, int]:
    """What the process holds now."""
    found = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": 0,
        "rss": 0,
        "file": 0,
        "live": 0,
    }
    with open("/proc/self/maps") as maps:
        found["mappings"] = sum(1 for _ in maps)
    with open("/proc/self/statm") as statm:
        found["rss"] = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if tencache.is_enabled():
        found["live"] = tencache.stats()["peak"]["disk"]
        with contextlib.suppress(LookupError):
            found["file"] = os.stat(spill_file()).st_blocks * 512
    return found


# ---- Checkpoints --------------------------------------------------------------------------------


def spill_file() -> str:
    """A path of this process's spill file: a regular file without a name, of mode 0600."""
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            is_ours = stat.S_IMODE(status.st_mode) == 0o600 and status.st_nlink == 0
            if stat.S_ISREG(status.st_mode) and is_ours and status.st_size > 0:
                return path
    raise LookupError("this process has no spill file")


def flip(place: float, bit: int) -> int:
    """Changes a bit of the spill file behind tencache's back; returns its offset.

    Slots lie from the start of the file on, so `place` is a share of what the disk tier has held.
    """
    descriptor = os.open(spill_file(), os.O_RDWR)
    offset = int(place * tencache.stats()["peak"]["disk"])
    (byte,) = os.pread(descriptor, 1, offset)
    os.pwrite(descriptor, bytes([byte ^ 1 << bit]), offset)
    os.fsync(descriptor)
    os.close(descriptor)
    return offset


Tensors = dict[str, torch.Tensor]


def by_torch_save(tensors: Tensors) -> Tensors:
    torch.save(tensors, "file.pt")
    found: Tensors = torch.load("file.pt")
    return found


def by_old_torch_save(tensors: Tensors) -> Tensors:
    stream = io.BytesIO()
    torch.save(tensors, stream, _use_new_zipfile_serialization=False)
    found: Tensors = torch.load(io.BytesIO(stream.getvalue()))
    return found


def by_pickle(tensors: Tensors) -> Tensors:
    found: Tensors = pickle.loads(pickle.dumps(tensors))
    return found


def by_safetensors(tensors: Tensors) -> Tensors:
    save_file(tensors, "file.st")
    found: Tensors = load_file("file.st")
    return found


def by_distributed_checkpoint(tensors: Tensors) -> Tensors:
    dcp.save(tensors, checkpoint_id="dcp", no_dist=True)
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    dcp.load(found, checkpoint_id="dcp", no_dist=True)
    return found


WRITERS: dict[str, Callable[[Tensors], Tensors]] = dict(
    zip(
        WRITER_NAMES,
        (by_torch_save, by_old_torch_save, by_pickle, by_safetensors, by_distributed_checkpoint),
        strict=True,
    )
)


def checkpoint(
    marks: Marks, *, writer: str, in_child: bool, place: float, bit: int, seed: int
) -> None:
    """Writes a checkpoint of cold tensors after a bit of the spill file has changed."""
    truths = {str(i): values for i, values in enumerate(random_arrays(seed))}
    tensors = {name: torch.from_numpy(values).clone() for name, values in truths.items()}
    for tensor in tensors.values():
        tensor.add_(0)
    print("FLIP", flip(place, bit), flush=True)
    if in_child:
        child = os.fork()
        if child != 0:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os._exit(status if status >= 0 else 128 - status)
    found = WRITERS[writer](tensors)
    right = all(found[name].numpy().tobytes() == truths[name].tobytes() for name in truths)
    marks.step()
    print("DIGEST", "right" if right else "wrong", flush=True)
    # The program's end would fetch nothing more.
    os._exit(0)


def random_arrays(seed: int, count: int = 20, elements: int = 1 << 18) -> Iterator[Any]:
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield generator.random(elements, dtype=np.float32)


PROGRAMS: dict[str, Callable[..., None]] = {
    "train": train,
    "fork_storm": fork_storm,
    "drift": drift,
    "checkpoint": checkpoint,
}
