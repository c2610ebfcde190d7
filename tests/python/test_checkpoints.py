# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of cold tensors: announced, in pieces that the budget holds, and never wrong.

A disk that lies is the spill file with a bit changed behind tencache's back. Then a checkpoint ends
the program with a message that names the file and the offset, or its bytes are right. That is tried
for every way of writing one, in the process that owns the spill file and in forked children, for
many seeded flips; TENCACHE_TEST_FLIPS makes the run longer, TENCACHE_TEST_SEED repeats it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Finished

from tencache import _checkpoints

Run = Callable[..., Any]

# Functions of which each saves the tensors in one format, to a file or in memory, and returns what
# a reader finds there; and their helpers.
WRITERS = """
    import pickle, random, stat
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load, load_file, save, save_file

    def zipped(tensors):
        torch.save(tensors, "file.pt")
        return torch.load("file.pt")

    def legacy(tensors):
        torch.save(tensors, "file.pt", _use_new_zipfile_serialization=False)
        return torch.load("file.pt")

    def stream(tensors):
        stream = io.BytesIO()
        torch.save(tensors, stream)
        return torch.load(io.BytesIO(stream.getvalue()))

    def pickled(tensors):
        return pickle.loads(pickle.dumps(tensors))

    def safe_file(tensors):
        save_file(tensors, "file.st")
        return load_file("file.st")

    def safe_bytes(tensors):
        return load(save(tensors))

    def distributed(tensors):
        dcp.save(tensors, checkpoint_id="dcp", no_dist=True)
        found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        dcp.load(found, checkpoint_id="dcp", no_dist=True)
        return found

    def packaged(tensors):
        with torch.package.PackageExporter("file.pkg") as exporter:
            exporter.save_pickle("package", "tensors", tensors)
        return torch.package.PackageImporter("file.pkg").load_pickle("package", "tensors")

    WRITERS = [zipped, legacy, stream, pickled, safe_file, safe_bytes, distributed, packaged]

    def all_right(found, truths):
        return all(same(found[name], truth) for name, truth in truths.items())

    def spill_file():
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            link = os.readlink(path) if os.path.lexists(path) else ""
            if link.endswith("(deleted)") and not link.startswith("/memfd:"):
                if stat.S_ISREG(os.stat(path).st_mode) and os.stat(path).st_size > 0:
                    return os.open(path, os.O_RDWR)
        raise AssertionError("no spill file")

    def flip(file, offset, bit):
        byte = os.pread(file, 1, offset)[0]
        os.pwrite(file, bytes([byte ^ 1 << bit]), offset)
        os.fsync(file)

    def make_some(count):
        pairs = {str(seed): make(seed) for seed in range(count)}
        tensors = {name: tensor for name, (tensor, _) in pairs.items()}
        return tensors, {name: truth for name, (_, truth) in pairs.items()}
"""
FORMATS = (
    "zipped",
    "legacy",
    "stream",
    "pickled",
    "safe_file",
    "safe_bytes",
    "distributed",
    "packaged",
)


def test_every_way_is_announced_and_right(run_cold: Run) -> None:
    run_cold(
        WRITERS,
        """
        tensors, truths = make_some(4)
        for write in WRITERS:
            chill(*tensors.values())
            with counted(reads=0, writes=0):
                found = write(tensors)
            assert all_right(found, truths), write
            chill(*tensors.values())
            child = os.fork()
            if child == 0:
                os._exit(0 if all_right(write(tensors), truths) else 1)
            assert os.waitpid(child, 0)[1] == 0, write
        """,
        OMP_NUM_THREADS="1",
    )


def test_what_is_larger_than_the_budget_is_read_without_room(run_cold: Run) -> None:
    done = run_cold(
        WRITERS,
        """
        from cold import _library
        large, _ = make(1, 6 << 20)  # 24 MiB
        tensors, _ = make_some(20)  # 24 MB more
        tensors["large"] = large
        for write in (
            lambda: torch.save(tensors, "file.pt"),
            lambda: torch.save(tensors, "file.pt", _use_new_zipfile_serialization=False),
            lambda: save_file(tensors, "file.st"),
        ):
            _library.tencache_evict_all()
            assert is_cold(large)
            tencache.reset_peak_stats()
            write()
            assert is_cold(large)
            stats = tencache.stats()
            assert stats["peak"]["device"] <= stats["budget"]["device"], stats["peak"]
        print("written")
        """,
        TENCACHE_DEVICE_MEMORY="16MiB",
    )
    assert done.stdout == "written\n"


# ---- A disk that lies ---------------------------------------------------------------------------


@pytest.mark.parametrize("write", FORMATS)
def test_flipped_bit_ends_the_program(run_cold: Run, write: str) -> None:
    done = run_cold(
        WRITERS,
        f"""
        tensors, truths = make_some(2)
        chill(*tensors.values())
        flip(spill_file(), 4097, 3)
        found = {write}(tensors)
        print("silent" if not all_right(found, truths) else "right")
        """,
        status=None,
    )
    assert done.returncode == -signal.SIGABRT, done
    (message,) = [line for line in done.stderr.splitlines() if "fatal" in line]
    assert "other bytes than were written" in message
    assert "at file offset" in message and "the spill file in /" in message, message


def test_no_flip_is_silent_in_forked_children(run_cold: Run) -> None:
    """Each flip is undone, so that the next is the only one."""
    flips = int(os.environ.get("TENCACHE_TEST_FLIPS", "64"))
    seed = os.environ.get("TENCACHE_TEST_SEED", str(time.time_ns() % 1_000_000_007))
    done = run_cold(
        WRITERS,
        f"""
        seed, flips = {seed}, {flips}
        print("TENCACHE_TEST_SEED", seed)
        chance = random.Random(seed)
        tensors, truths = make_some(4)
        chill(*tensors.values())
        file = spill_file()
        used = sum(truth.nbytes for truth in truths.values())
        ended = right = 0
        for number in range(flips):
            place = chance.randrange(used), chance.randrange(8)
            write = WRITERS[number % len(WRITERS)]
            flip(file, *place)
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.dup2(writer, 2)
                status = 3
                try:
                    status = 0 if all_right(write(tensors), truths) else 4
                finally:
                    os._exit(status)
            os.close(writer)
            with open(reader) as pipe:
                text = pipe.read()
            _, status = os.waitpid(child, 0)
            what = seed, number, place, write.__name__, status, text
            if os.WIFSIGNALED(status):
                assert os.WTERMSIG(status) == 6, what
                assert "the spill file in /" in text and "at file offset" in text, what
                ended += 1
            else:
                assert status == 0, what  # the flip was beside the slots
                right += 1
            flip(file, *place)
        print("ended", ended, "right", right)
        assert ended > 0 and ended + right == flips
        assert all_right(tensors, truths)
        """,
        OMP_NUM_THREADS="1",
    )
    print(done.stdout)


# ---- What is announced, and for how long --------------------------------------------------------


class FakeCore:
    """Records what begins and ends."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.interrupts = False  # once a reading has begun

    def begin_reading(self, addresses: Any, reading: ctypes.c_void_p) -> None:
        self.calls.append(tuple(addresses))
        reading.value = len(self.calls)
        if self.interrupts:
            raise KeyboardInterrupt

    def end_reading(self, reading: ctypes.c_void_p) -> None:
        self.calls.append(("end", reading.value))
        reading.value = None


class FakeTensor:
    def __init__(self, address: int | None) -> None:
        self._address = address

    def data_ptr(self) -> int:
        if self._address is None:
            raise RuntimeError("a fake tensor")
        return self._address


def test_reading_lasts_as_long_as_the_call_even_if_it_fails() -> None:
    core = FakeCore()

    def write(*values: Any, fail: bool = False, data: Any = None) -> str:
        core.calls.append("written")
        if fail:
            raise OSError("disk full")
        return f"{len(values)}{data is None}"

    announced = _checkpoints.announced(write, core)
    assert announced("name", FakeTensor(5), 7, data=FakeTensor(None)) == "3False"
    assert core.calls == [(5,), "written", ("end", 1)]
    core.calls.clear()
    with pytest.raises(OSError, match="disk full"):
        announced(data=FakeTensor(6), fail=True)
    assert core.calls == [(6,), "written", ("end", 1)]
    core.calls.clear()
    announced("data.pkl", b"bytes", 5)
    assert core.calls == ["written"], "nothing to announce"


def test_an_interrupt_does_not_lose_a_reading() -> None:
    core = FakeCore()
    core.interrupts = True
    announced = _checkpoints.announced(lambda _: None, core)
    with pytest.raises(KeyboardInterrupt) as caught:
        announced(FakeTensor(5))
    assert core.calls == [(5,), ("end", 1)], "although its traceback lives"
    assert caught.tb is not None


def test_safetensors_collects_while_its_buffers_live() -> None:
    core = FakeCore()
    module = types.SimpleNamespace(_flatten_as_ptr=lambda tensors, alive: alive.append(tensors))
    _checkpoints.patch_safetensors(module, core)
    alive: list[Any] = []
    module._flatten_as_ptr({"a": FakeTensor(1), "b": FakeTensor(2)}, alive)
    assert core.calls == [(1, 2)]
    alive.clear()
    assert core.calls == [(1, 2), ("end", 1)]


SAFETENSORS_FIRST = """
    import json
    from safetensors.torch import load, save
    import torch, tencache
    tensors = {str(index): torch.full((1 << 20,), float(index)) for index in range(24)}
    for tensor in tensors.values():
        tensor.add_(1)
    oldest = {name: tensors[name] for name in ("0", "1")}
    found = load(save(oldest))
    assert all(torch.equal(found[name], tensor) for name, tensor in oldest.items())
    print(json.dumps(tencache.stats()))
"""


def test_safetensors_may_be_what_imports_torch(run_python: Callable[..., Finished]) -> None:
    pytest.importorskip("safetensors")
    env = {"TENCACHE": "1", "TENCACHE_BACKEND": "cpu", "TENCACHE_DEVICE_MEMORY": "32MiB"}
    stats = json.loads(run_python(SAFETENSORS_FIRST, env=env).stdout.splitlines()[-1])
    assert stats["bytes"]["fetched"] > 0, "they were cold"
    assert stats["unannounced"]["reads"] == 0


def test_what_is_no_dictionary_is_for_safetensors_to_refuse() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    module = types.SimpleNamespace(_flatten_as_ptr=safetensors._flatten_as_ptr)
    _checkpoints.patch_safetensors(module, FakeCore())
    with pytest.raises(ValueError, match="dict"):
        module._flatten_as_ptr([FakeTensor(1)], [])


def test_older_safetensors_reads_one_tensor_after_the_other() -> None:
    core = FakeCore()
    module = types.SimpleNamespace(_tobytes=lambda _, name: core.calls.append(name))
    _checkpoints.patch_safetensors(module, core)
    module._tobytes(FakeTensor(1), "a")
    assert core.calls == [(1,), "a", ("end", 1)]
