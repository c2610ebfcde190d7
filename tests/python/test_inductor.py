# SPDX-License-Identifier: Apache-2.0
"""Kernels of torch.compile pass the gate: the same bits while everything around them is cold."""

from __future__ import annotations

import json
import sys
import textwrap
from types import ModuleType

import pytest
from conftest import run_command
from fake_gate import FakeGate

from tencache import _inductor

# Kernels compiled once serve all of these tests.
pytestmark = pytest.mark.xdist_group("inductor")


def gate_calls_append(gate):
    return lambda *arguments: gate.calls.append(arguments)


class FakeTensor:
    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def test_kernel_runs_between_open_and_close_of_its_tensors():
    gate = FakeGate()
    types = ["float*", "const int64_t", "const float*", "const float"]
    kernel = _inductor.KernelGate(gate_calls_append(gate), types, gate, gate).run
    a, b = FakeTensor(100), FakeTensor(200)
    kernel(a, 3, b, 4.0)
    assert gate.calls == [(b"inductor::cpp_kernel", [100, 200], [3, 1]), (a, 3, b, 4.0), "close"]


def test_gate_is_closed_when_the_kernel_raises():
    gate = FakeGate()

    def fail(_):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        _inductor.KernelGate(fail, (), gate, gate).run(FakeTensor(1))
    assert gate.calls == [(b"inductor::cpp_kernel", [1], [3]), "close"]


def test_gate_is_closed_when_an_interrupt_follows_its_opening():
    gate = FakeGate()
    gate.interrupts = True
    kernel = _inductor.KernelGate(gate_calls_append(gate), (), gate, gate).run
    with pytest.raises(KeyboardInterrupt):
        kernel(FakeTensor(1))
    assert gate.calls == [(b"inductor::cpp_kernel", [1], [3]), "close"]


def test_kernel_passes_by_until_armed_and_then_asks_no_more():
    gate = FakeGate()
    gate.armed = False
    kernel = _inductor.KernelGate(lambda _: 7, (), gate, gate).run
    assert kernel(FakeTensor(1)) == 7
    assert gate.calls == []
    gate.armed = True
    kernel(FakeTensor(1))
    kernel(FakeTensor(1))
    assert gate.asked == 2
    assert len(gate.calls) == 4


def make_module():
    """A module with an AsyncCompile like torch's: kernels at once, or through a future."""

    class Future:
        def __init__(self, result_fn):
            self.result_fn = result_fn

    class AsyncCompile:
        def cpp_pybinding(self, argtypes, source_code):

            def kernel(_):
                return source_code

            return kernel if argtypes == ["now"] else Future(lambda: kernel)

        def wait(self, scope):
            for name, value in scope.items():
                if isinstance(value, Future):
                    scope[name] = value.result_fn()

    module = ModuleType("async_compile")
    module.AsyncCompile = AsyncCompile
    return module


@pytest.mark.parametrize("how", ["now", "later"])
def test_kernels_are_wrapped_and_named(how):
    gate = FakeGate()
    module = make_module()
    _inductor.patch(module, gate, gate)
    compiler = module.AsyncCompile()
    scope = {"cpp_fused_add_0": compiler.cpp_pybinding([how], "source"), "other": 3}
    compiler.wait(scope)
    assert scope["cpp_fused_add_0"](FakeTensor(5)) == "source"
    assert gate.calls == [(b"inductor::cpp_fused_add_0", [5], [3]), "close"]


# The program trains with Inductor kernels forward and backward, and needs more than the budget it
# gets below. The layer is compiled once; it consists of kernels and of matrix products, which stay
# ops.
TRAIN = """
    import hashlib, torch
    torch.manual_seed(0)
    torch.set_num_threads(1)

    @torch.compile
    def layer(x, a, b):
        return torch.nn.functional.gelu(x @ a) @ b + x

    weights = [torch.randn(2, 512, 1024).div_(32).requires_grad_() for _ in range(6)]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    data = torch.randn(1024, 512)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        x = data
        for a, b in weights:
            x = layer(x, a, b.view(1024, 512))
        loss = (x - data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    bits = b"".join(w.detach().numpy().tobytes() for w in weights)
    print(losses, hashlib.sha256(bits).hexdigest())
"""


def kinds_of_accesses(events):
    """What Inductor's kernels do with the tensors they name."""
    kinds = set()
    open_ops = {}  # by thread
    for event in events:
        ops = open_ops.setdefault(event.get("thread"), [])
        if event["kind"] == "op_begin":
            ops.append(event["op"])
        elif event["kind"] == "op_end" and ops:
            ops.pop()
        elif event["kind"] in ("read", "write") and ops and ops[-1].startswith("inductor::"):
            kinds.add(event["kind"])
    return kinds


@pytest.fixture(scope="module")
def compiled_code(tmp_path_factory):
    """Kernels are compiled by the first program and loaded by the others."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}


@pytest.fixture(scope="module")
def stock(tmp_path_factory, compiled_code):
    """The output of training without tencache."""
    program = tmp_path_factory.mktemp("stock") / "program.py"
    program.write_text(textwrap.dedent(TRAIN))
    done = run_command([sys.executable, str(program)], cwd=program.parent, env=compiled_code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compiled_training_gives_the_same_bits_while_everything_goes_cold(
    run_python, tmp_path, stock, compiled_code
):
    spilled = run_python(
        TRAIN,
        env={
            **compiled_code,
            "TENCACHE": "1",
            "TENCACHE_DEVICE_MEMORY": "32MiB",
            "TENCACHE_STATS": "run.json",
            "TENCACHE_TRACE": "run.trace",
            "TENCACHE_CHAOS": "1",
        },
    )
    assert spilled.stdout == stock
    stats = json.loads((tmp_path / "run.json").read_text())
    assert stats["bytes"]["evicted"] > 0
    lines = (tmp_path / "run.trace").read_text().splitlines()[1:]
    events = [json.loads(line) for line in lines]
    assert any(event.get("op", "").startswith("inductor::cpp_fused") for event in events)
    assert kinds_of_accesses(events) == {"read", "write"}, "kernels only read their inputs"
    # Every kernel was announced; only the reads by NumPy at the end were not.
    weight_count = 6
    assert stats["unannounced"]["writes"] == 0
    assert stats["unannounced"]["reads"] <= weight_count


@pytest.mark.slow
def test_compiled_program_that_fits_passes_no_gate(run_python, tmp_path, stock, compiled_code):
    done = run_python(
        TRAIN,
        env={
            **compiled_code,
            "TENCACHE": "1",
            "TENCACHE_DEVICE_MEMORY": "2GiB",
            "TENCACHE_STATS": "run.json",
        },
    )
    assert done.stdout == stock
    stats = json.loads((tmp_path / "run.json").read_text())
    assert stats["ops"] == 0
    assert stats["extents"] > 0


def test_inductor_tries_instructions_without_tencache(run_python):
    """The trial has another folder and no stderr: a failure would cost the vector code."""
    code = """
        import sys
        from torch._inductor.cpu_vec_isa import VecISA
        from tencache import _autoload
        trial = VecISA._avx_py_load.replace("__lib_path__", "/tmp/x y/a.so")
        print(_autoload.is_launcher([sys.executable, "-c", trial]))
        print(_autoload.is_launcher([sys.executable, "-c", trial + "train()"]))
    """
    assert run_python(code).stdout == "True\nFalse\n"
