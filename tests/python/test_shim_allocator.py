# SPDX-License-Identifier: Apache-2.0
"""The CPU allocator keeps the promises of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Finished

Run = Callable[..., Finished]

QUIET = {"TENCACHE_QUIET": "1", "TENCACHE_DEVICE_MEMORY": "64MiB"}

STRICT = """
import torch, tencache
tencache.enable(device_memory="16MiB", strict=True)
"""


def test_out_of_memory_is_what_libraries_search_for(run_forked: Run) -> None:
    run_forked(
        STRICT,
        """
kept = torch.empty(3 << 20, dtype=torch.uint8)
# The budget refuses the first size, and the machine refuses the second.
for elements, named in ((32 << 20, "16.0 MiB"), (1 << 60, "1.00 EiB")):
    try:
        torch.empty(elements, dtype=torch.uint8)
    except RuntimeError as error:
        assert type(error) is torch.OutOfMemoryError, type(error)
        assert len(error.args) == 1 and " out of memory." in error.args[0], error.args
        # Lightning's batch size finder knows PyTorch's own text only.
        assert "DefaultCPUAllocator: can't allocate memory" in error.args[0], error.args
        assert named in error.args[0], error.args
        assert "Exception raised from" not in error.args[0], error.args
    else:
        raise AssertionError("it fitted")
# The failure leaves everything usable.
assert torch.ones(1 << 20).sum().item() == 1 << 20
""",
        env={"TENCACHE_QUIET": "1"},
    )


def test_accelerate_retries_with_a_smaller_batch(run_forked: Run) -> None:
    run_forked(
        STRICT,
        """
from accelerate.utils import find_executable_batch_size

@find_executable_batch_size(starting_batch_size=64)
def train(batch_size):
    return batch_size, torch.ones(batch_size, 1 << 18).sum().item()

# Each row is 1 MiB.
batch_size, total = train()
assert 8 <= batch_size <= 16 and total == batch_size << 18, (batch_size, total)
""",
        env={"TENCACHE_QUIET": "1"},
    )


def test_empty_and_tiny(run_forked: Run) -> None:
    run_forked(
        """
import torch, tencache
tencache.enable()
assert torch.empty(0).data_ptr() == 0
assert torch.empty(0).clone().numel() == 0
for size in (1, 63, 4096, 1 << 20, (1 << 21) + 1):
    tensor = torch.empty(size, dtype=torch.uint8)
    assert tensor.data_ptr() % 64 == 0
    storage = tensor.fill_(7).untyped_storage()
    storage.resize_(size * 2)
    bytes_kept = torch.empty(0, dtype=torch.uint8).set_(storage)[:size]
    assert bytes_kept.eq(7).all()
    storage.resize_(0)
    assert storage.data_ptr() == 0
""",
        env=QUIET,
    )


def test_onednn_allocates_and_frees_raw(run_forked: Run) -> None:
    # oneDNN calls raw_allocate, which demands that context and data pointer are equal.
    run_forked(
        """
import torch, tencache
inputs = torch.arange(3 * 64 * 64, dtype=torch.float32).reshape(1, 3, 64, 64)
layer = torch.nn.Conv2d(3, 64, 3)
expected = layer(inputs).sum().item()
tencache.enable()
assert torch.backends.mkldnn.is_available()
assert layer(inputs.clone()).sum().item() == expected
opaque = torch.ones(512, 512).to_mkldnn()
assert (opaque + opaque).to_dense().sum().item() == 2 * 512 * 512
""",
        env=QUIET,
    )


@pytest.mark.parametrize("enable", ["", "tencache.enable()"])
def test_profiler_sees_sizes(run_forked: Run, enable: str) -> None:
    # The same assertions hold for the stock allocator.
    run_forked(
        f"""
import torch, tencache
{enable}
with torch.profiler.profile(profile_memory=True) as profile:
    big = torch.empty(1 << 20)
    small = torch.empty(25)
    del big
sizes = [event.cpu_memory_usage for event in profile.events() if event.name == "[memory]"]
assert sizes == [-(4 << 20)], sizes
by_op = {{event.key: event.cpu_memory_usage for event in profile.key_averages()}}
assert by_op["aten::empty"] == (4 << 20) + 100, by_op
""",
        env=QUIET,
    )


def test_tensors_from_before_stay_valid(run_forked: Run) -> None:
    run_forked(
        """
import torch, tencache
before = torch.arange(1 << 20)
tencache.enable()
after = before + 1
assert torch.equal(after - 1, before)
before.untyped_storage().resize_(16)
assert before[:2].tolist() == [0, 1]
""",
        env=QUIET,
    )


def test_install_twice_and_describe(run_forked: Run) -> None:
    run_forked(
        """
import ctypes, json, pathlib, torch, tencache
from tencache._library import shim
from tencache._torch_version import running
version = running(torch)
doors = shim(version)
assert doors.describe()["torch"].startswith(version.minor + ".")
assert not doors.describe()["installed"]
tencache.enable()
first = doors.describe()
assert first["installed"]
doors.install()
assert doors.describe() == first
folder = pathlib.Path(tencache.__file__).parent
library = ctypes.CDLL(str(folder / f"libtencache_torch-{version.minor}.so"))
library.tencache_torch_describe_json.restype = ctypes.c_size_t
short = ctypes.create_string_buffer(b"x" * 16, 16)
needed = library.tencache_torch_describe_json(short, ctypes.c_size_t(16))
assert len(short.value) == 15 and short.value.startswith(b'{"torch":"')
# A second call may need another digit for its counters.
length = len(json.dumps(first, separators=(",", ":")))
assert abs(needed - 1 - length) < 8, (needed, length)
assert library.tencache_torch_describe_json(None, ctypes.c_size_t(0)) == needed
""",
        env=QUIET,
    )
