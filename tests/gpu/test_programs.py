# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/python on a GPU: the same bits as stock PyTorch, within the budget.

More tests show what only a GPU can tell: of pinned memory, of ops with kernels for GPUs alone, and
of kernels that no op announces.

The programs are wider than on the cpu (exact.wide), so that parameters are extents: these have at
least 2 MiB, because a GPU maps no less at once. Otherwise the tests are those of
tests/python/test_differential.py: a budget that fits, and 75, 50 and 25 % of the peak, plainly and
in chaos. A program is skipped and named if its stock results differ between two runs on this GPU,
because some kernel adds in no fixed order: it can be compared with nothing.

On an emulated GPU the time goes into arithmetic and, in chaos, into the copies of all that leaves.
So there (PROGRAM_EMULATED) widths are the least at which the larger matrices leave, and batches are
short. That changes what is computed, not which tensors there are. Its kernels are the CPU's, on one
thread, and give the same bits each time.
"""

from __future__ import annotations

import sys
import textwrap

import on_gpu
import pytest
from on_gpu import (
    IS_EMULATED,
    SWITCH,
    Harness,
    assert_right_beyond_memory,
    assert_same_bits,
    budget_of,
    missing,
    output_of,
    program_names,
)

harness = on_gpu.harness
pytestmark = pytest.mark.skipif(missing() != "", reason=missing())

CHAOS_SEED = 20261122
# A GPU has no kernels for these programs.
CPU_ONLY = {"quantized"}


def programs() -> list[object]:
    """Each program runs in one pytest process, which remembers its stock run."""
    return [
        pytest.param(program, marks=pytest.mark.xdist_group(program))
        for program in program_names()
        if program not in CPU_ONLY
    ]


@pytest.fixture(scope="session")
def unstable() -> dict[str, list[str]]:
    """For each program used so far, the stock results that differ between two runs."""
    return {}


def skip_unless_stable(harness: Harness, unstable: dict[str, list[str]], program: str) -> None:
    if IS_EMULATED:
        return
    if program not in unstable:
        first, second = harness.stock(program), harness.run(program, {}).results
        unstable[program] = [name for name in first if first[name] != second.get(name)]
    differing = unstable[program]
    if differing:
        pytest.skip(
            f"{len(differing)} stock results differ between two runs on this GPU, {differing[0]} "
            "among them"
        )


@pytest.mark.parametrize("program", programs())
def test_what_fits_moves_nothing(
    harness: Harness, unstable: dict[str, list[str]], program: str
) -> None:
    skip_unless_stable(harness, unstable, program)
    outcome = harness.run(program, SWITCH)
    assert_same_bits(harness.stock(program), outcome)
    assert outcome.stats is not None
    assert outcome.stats["backend"] == "cuda", outcome.stats
    assert outcome.stats["bytes"]["evicted"] == 0, outcome.stats


@pytest.mark.parametrize("chaos", [False, True], ids=["plain", "chaos"])
@pytest.mark.parametrize("share", [75, 50, 25])
@pytest.mark.parametrize("program", programs())
def test_same_bits(
    harness: Harness, unstable: dict[str, list[str]], program: str, share: int, chaos: bool
) -> None:
    skip_unless_stable(harness, unstable, program)
    variables = {**SWITCH, **budget_of(harness, program, share)}
    if chaos:
        variables["TENCACHE_CHAOS"] = str(CHAOS_SEED)
    outcome = harness.run(program, variables)
    assert_right_beyond_memory(harness.stock(program), outcome)
    if chaos:
        assert outcome.stats is not None
        assert outcome.stats["chaos_evictions"] > 0, outcome.stats


def test_pinned_memory_has_the_size_that_was_asked_for() -> None:
    program = """
    import torch

    torch.cuda.init()  # without it there are no statistics of host memory
    on_host = torch.empty(3 * 2**20 + 4096, dtype=torch.uint8, pin_memory=True)
    assert on_host.is_pinned()
    stats = torch.cuda.host_memory_stats()
    assert stats["active_bytes.current"] == on_host.nbytes, stats
    on_host.random_()
    back = torch.empty_like(on_host, pin_memory=True)
    back.copy_(on_host.cuda(non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, on_host)
    """
    output_of([sys.executable, "-c", textwrap.dedent(program)], env=SWITCH)


def test_an_op_with_kernels_for_gpus_alone_announces_its_tensors() -> None:
    """On the CPU the op is a composite of other ops, which announce theirs."""
    program = """
    import torch
    import tencache

    def names(key):
        return set(torch._C._dispatch_get_registrations_for_dispatch_key(key))

    composite = names("CompositeImplicitAutograd")
    assert "aten::_fused_rms_norm" in composite & names("CUDA"), "this torch has none"
    given = torch.arange(4 << 20, device="cuda").view(-1, 1024).float()
    expected = torch.nn.functional.rms_norm(given.cpu(), (1024,))
    others = [torch.full((4 << 20,), float(index), device="cuda") for index in range(8)]
    for other in others:
        other.add_(1)
    torch.cuda.synchronize()
    before = tencache.stats()["bytes"]["fetched"]
    found = torch.nn.functional.rms_norm(given, (1024,))
    torch.testing.assert_close(found.cpu(), expected)
    assert tencache.stats()["bytes"]["fetched"] > before
    """
    variables = {**SWITCH, "TENCACHE_DEVICE_MEMORY": "64MiB"}
    output_of([sys.executable, "-c", textwrap.dedent(program)], env=variables)


def test_kernels_that_no_op_announces_find_their_tensors() -> None:
    """The driver's own function launches a kernel that is compiled from its text."""
    program = """
    import torch
    import tencache

    source = '''
    extern "C" __global__ void tencache_test_scale(float* data, double factor, int count) {
      const int index = blockIdx.x * blockDim.x + threadIdx.x;
      if (index < count) data[index] *= factor;
    }
    '''
    torch.cuda.init()
    torch.cuda.synchronize()  # loading a kernel needs a context, which it does not make
    scale = torch.cuda._compile_kernel(source, "tencache_test_scale")
    count = 4 << 20
    tensors = [torch.full((count,), float(index), device="cuda") for index in range(16)]
    for _ in range(4):
        for tensor in tensors:
            tensor.add_(1)
        for tensor in tensors:
            scale((count // 256, 1, 1), (256, 1, 1), (tensor, 2.0, count))
    for index, tensor in enumerate(tensors):
        expected = float(index)
        for _ in range(4):
            expected = (expected + 1) * 2
        assert torch.all(tensor == expected).item(), index
    stats = tencache.stats()
    assert stats["launches"]["seen"], stats
    assert stats["launches"]["unannounced"] > 0, stats
    assert stats["launches"]["unreadable"] == 0, stats
    assert stats["bytes"]["fetched"] > 0, stats
    """
    command = ["-m", "tencache", "run", "--backend", "cuda", "--device-memory", "128MiB", "--"]
    output_of([sys.executable, *command, sys.executable, "-c", textwrap.dedent(program)])
