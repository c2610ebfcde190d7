# SPDX-License-Identifier: Apache-2.0
"""Multi-tensor operators that are cut into chunks give the bits of one call.

list_operators.py calls every such operator that the installed torch registers, in a dozen ways
each, once stock and once for each setting here. Blocks of 4 KiB count as extents, so that small
lists are cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Finished, run_command

# The fixtures are two runs of all operators, which several tests share; one process keeps them.
pytestmark = pytest.mark.xdist_group("list_split")

OPERATORS = Path(__file__).with_name("list_operators.py")
ALL_EXTENTS = {
    "TENCACHE_DEVICE_MEMORY": "16MiB",
    "TENCACHE_EXTENT_MIN": "4KiB",
    "TENCACHE_ARM_AT": "0.0001",
}
ONE_POSITION = {**ALL_EXTENTS, "TENCACHE_CHUNK_SHARE": "0.0001"}
FEW_POSITIONS = {**ALL_EXTENTS, "TENCACHE_CHUNK_SHARE": "0.002"}
CHAOS = {**ONE_POSITION, "TENCACHE_CHAOS": "1"}

# Operators that accept none of the arguments of list_operators.py, each with the reason.
NO_ARGUMENTS: dict[str, str] = {}

Report = dict[str, Any]


def call_all(folder: Path, name: str, variables: Mapping[str, str] | None) -> Report:
    """Calls every operator in a fresh process; stock if there are no variables."""
    path = folder / f"{name}.json"
    command = [sys.executable, str(OPERATORS), str(path)]
    if variables is not None:
        command.append("--tencache")
    done = run_command(command, cwd=folder, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    report: Report = json.loads(path.read_text(encoding="utf-8"))
    return report


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return call_all(tmp_path_factory.mktemp("stock"), "stock", None)


@pytest.fixture(scope="module")
def one_position(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return call_all(tmp_path_factory.mktemp("one"), "one", ONE_POSITION)


def assert_same(stock: Report, report: Report) -> None:
    assert report["operators"].keys() == stock["operators"].keys()
    different = [
        f"{operator} ({case}): {outcome['error']!r} instead of {before['error']!r}"
        for operator, cases in stock["operators"].items()
        for case, before in cases.items()
        for outcome in [report["operators"][operator][case]]
        if (outcome["digest"], outcome["error"]) != (before["digest"], before["error"])
    ]
    assert different == []


def test_every_operator_is_called(stock: Report) -> None:
    never = {
        operator
        for operator, cases in stock["operators"].items()
        if all(outcome["digest"] is None for outcome in cases.values())
    }
    assert never == NO_ARGUMENTS.keys()
    # torch decides how many operators there are, but they must be many.
    assert len(stock["operators"]) > 200


def test_every_operator_is_taken(stock: Report, one_position: Report) -> None:
    assert one_position["left_alone"] == []
    assert set(one_position["split"]) == set(stock["operators"])


def test_every_operator_is_cut(one_position: Report) -> None:
    uncut = [
        operator
        for operator, cases in one_position["operators"].items()
        if not any(outcome["runs"] > 1 for outcome in cases.values())
    ]
    assert uncut == list(NO_ARGUMENTS)


def test_one_position_a_run(stock: Report, one_position: Report) -> None:
    assert_same(stock, one_position)


@pytest.mark.slow
def test_few_positions_a_run(stock: Report, one_position: Report, tmp_path: Path) -> None:
    report = call_all(tmp_path, "few", FEW_POSITIONS)
    assert_same(stock, report)
    runs = [
        sum(outcome["runs"] for cases in each["operators"].values() for outcome in cases.values())
        for each in (report, one_position)
    ]
    assert 0 < runs[0] < runs[1]


@pytest.mark.slow
def test_under_chaos(stock: Report, tmp_path: Path) -> None:
    report = call_all(tmp_path, "chaos", CHAOS)
    assert_same(stock, report)
    assert report["stats"]["chaos_evictions"] > 0
    assert report["stats"]["fetches"]["late"] > 0


PREAMBLE = """
import json, torch, tencache
from tencache._library import shim
from tencache._torch_version import running
tencache.enable()
def runs():
    return shim(running(torch)).describe()["split_chunks"]
def tensors(count, size=2048):
    return [torch.arange(size, dtype=torch.float32) + index for index in range(count)]
def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
tensors(1)[0].add_(1)
"""


def test_calls_that_cannot_be_cut_go_on_whole(run_python: Callable[..., Finished]) -> None:
    run_python(
        PREAMBLE
        + """
def refused(call):
    before = runs()
    try:
        call()
    except RuntimeError as error:
        assert runs() == before
        return str(error)
    raise AssertionError("it was accepted")

text = refused(lambda: torch._foreach_add(tensors(4), tensors(3)))
assert "4" in text and "3" in text, text
refused(lambda: torch._foreach_add(tensors(4), [1.0, 2.0]))
refused(lambda: torch._foreach_addcmul(tensors(4), tensors(4), tensors(4), torch.ones(3)))
# These are several values, which the stock kernel refuses; so it must see them.
refused(lambda: torch._foreach_mul(tensors(4), torch.ones(4)))
refused(lambda: torch._foreach_add([], []))
""",
        env=ONE_POSITION,
    )


def test_outputs_that_share_memory_with_inputs(run_python: Callable[..., Finished]) -> None:
    # The stock kernel reads all inputs before it writes the first output, so no chunk may write
    # what a later one reads.
    run_python(
        PREAMBLE
        + """
inputs = tensors(4)
expected = [each + 1 for each in inputs]
before = runs()
torch.ops.aten._foreach_add.Scalar_out(inputs, 1, out=inputs[::-1])
assert same(inputs, expected[::-1])
in_place = tensors(4)
torch.ops.aten._foreach_add.Scalar_out(in_place, 1, out=in_place)
assert same(in_place, expected)
factor = tensors(1)[0][:1]
outs = [factor] + tensors(3)
torch.ops.aten._foreach_mul.Tensor_out(tensors(4, 1), factor.squeeze(), out=outs)
assert same(outs, [torch.zeros(1)] * 4), outs
""",
        env=ONE_POSITION,
    )


def test_ways_to_call(run_python: Callable[..., Finished]) -> None:
    run_python(
        PREAMBLE
        + """
expected = [each * 2 for each in tensors(4)]
def cut(call):
    before = runs()
    result = call()
    assert runs() - before >= 4
    return result

assert same(cut(lambda: torch._foreach_mul(tensors(4), 2)), expected)
with torch.inference_mode():
    assert same(cut(lambda: torch._foreach_mul(tensors(4), 2)), expected)
    outside = tensors(4)
    cut(lambda: torch._foreach_mul_(outside, 2))
    assert same(outside, expected)
with torch.autocast("cpu"):
    assert same(cut(lambda: torch._foreach_mul(tensors(4), 2)), expected)
# Version counters, which autograd relies on, move once a call, not once a run.
parameters = [each.requires_grad_() for each in tensors(4)]
with torch.no_grad():
    cut(lambda: torch._foreach_mul_(parameters, 2))
assert [each._version for each in parameters] == [1] * 4
assert same(parameters, expected)
# A view of conjugated or negated values is resolved above the kernel that cuts.
negated = [torch._neg_view(each) for each in tensors(4)]
assert same(torch._foreach_mul(negated, -2), expected)
""",
        env=ONE_POSITION,
    )


def test_a_list_op_stays_in_the_budget(run_python: Callable[..., Finished]) -> None:
    # The program has 16 tensors of 4 MiB, and as many results, in 24 MiB.
    done = run_python(
        """
import json, torch, tencache
tencache.enable(device_memory="24MiB")
parameters = [torch.full((1 << 20,), float(index)) for index in range(16)]
norms = torch._foreach_norm(parameters)
assert list(norms) == [torch.linalg.vector_norm(each) for each in parameters]
doubled = torch._foreach_mul(parameters, 2.0)
torch._foreach_add_(parameters, doubled)
sums = [each[::4096].sum().item() for each in parameters]
assert sums == [3.0 * index * 256 for index in range(16)], sums
stats = tencache.stats()
print(json.dumps(stats))
""",
        env={"TENCACHE_QUIET": "1"},
    )
    stats = json.loads(done.stdout)
    assert stats["over_budget"]["events"] == 0
    assert stats["peak"]["device"] <= 24 << 20
    assert stats["bytes"]["evicted"] >= 64 << 20
    assert stats["unannounced"] == {"reads": 0, "writes": 0}
