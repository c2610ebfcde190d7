# SPDX-License-Identifier: Apache-2.0
"""The gate around launches of Triton kernels.

There is no GPU to launch on, so other classes stand in for Triton's. One test checks that the real
classes are where we look for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys

import pytest
from fake_gate import FakeGate

from tencache import _triton


class FakeTensor:
    def __init__(self, address):
        self._address = address

    def data_ptr(self):
        if self._address is None:
            raise RuntimeError("a fake tensor")
        return self._address


class Descriptor:
    def __init__(self, base):
        self.base = base


def make_launcher():
    def add_kernel():
        pass

    class Launcher:
        fn = staticmethod(add_kernel)

        def run(self, *arguments, grid, fail=False, **keywords):
            if fail:
                raise ValueError("no")
            return len(arguments), grid, sorted(keywords)

    return Launcher


def test_a_launch_is_announced_with_every_tensor():
    gate, launcher = FakeGate(), make_launcher()
    _triton.patch(launcher, gate, gate)
    arguments = (FakeTensor(1), 7, (FakeTensor(2), [FakeTensor(3)]), Descriptor(FakeTensor(4)))
    result = launcher().run(*arguments, FakeTensor(None), grid=(1,), out=FakeTensor(5), size=8)
    assert result == (5, (1,), ["out", "size"])
    assert gate.calls == [(b"triton::add_kernel", [1, 2, 3, 4, 5], [3] * 5), "close"]


def test_a_launch_that_fails_closes_the_gate():
    gate, launcher = FakeGate(), make_launcher()
    _triton.patch(launcher, gate, gate)
    with pytest.raises(ValueError, match="no"):
        launcher().run(FakeTensor(1), grid=(1,), fail=True)
    assert gate.calls == [(b"triton::add_kernel", [1], [3]), "close"]


def test_an_interrupt_after_the_opening_closes_the_gate():
    gate, launcher = FakeGate(), make_launcher()
    gate.interrupts = True
    _triton.patch(launcher, gate, gate)
    with pytest.raises(KeyboardInterrupt):
        launcher().run(FakeTensor(1), grid=(1,))
    assert gate.calls == [(b"triton::add_kernel", [1], [3]), "close"]


def test_inputs_of_inductors_kernels_count_as_read():
    gate, launcher = FakeGate(), make_launcher()
    launcher.fn.arg_names = ["in_out_ptr0", "in_ptr0", "in_ptr1", "out_ptr0", "xnumel", "XBLOCK"]
    launcher.mutated_arg_names = ["in_out_ptr0", "in_ptr1"]
    _triton.patch(launcher, gate, gate)
    launcher().run(*(FakeTensor(address) for address in (1, 2, 3, 4)), 8, grid=(1,))
    assert gate.calls == [(b"triton::add_kernel", [1, 2, 3, 4], [3, 1, 3, 3]), "close"]
    # A template does not say what it writes to, and neither does a kernel of the program.
    launcher.mutated_arg_names = ()
    launcher().run(*(FakeTensor(address) for address in (1, 2)), grid=(1,))
    launcher.mutated_arg_names, launcher.custom_kernel = ["out_ptr0"], True
    launcher().run(*(FakeTensor(address) for address in (1, 2)), grid=(1,))
    assert gate.calls[2::2] == [(b"triton::add_kernel", [1, 2], [3, 3])] * 2


def test_a_launch_passes_by_until_armed():
    gate, launcher = FakeGate(), make_launcher()
    gate.armed = False
    _triton.patch(launcher, gate, gate)
    assert launcher().run(FakeTensor(1), grid=(1,)) == (1, (1,), [])
    assert gate.calls == []


def test_both_classes_are_watched_until_they_are_imported(tmp_path, monkeypatch):
    (tmp_path / "launchers.py").write_text(
        "class Launcher:\n    fn = None\n    def run(self, *arguments):\n        return arguments\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_triton, "LAUNCHERS", (("launchers", "Launcher"),))
    watchers = list(sys.meta_path)
    gate = FakeGate()
    _triton.install(gate, gate)
    try:
        launchers = importlib.import_module("launchers")
        launchers.Launcher().run(FakeTensor(1))
        assert gate.calls == [(b"triton::kernel", [1], [3]), "close"]
        assert sys.meta_path == watchers
    finally:
        sys.modules.pop("launchers", None)


@pytest.mark.parametrize(("module", "name"), _triton.LAUNCHERS)
def test_torch_and_triton_have_these_classes(module, name):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    run = getattr(importlib.import_module(module), name).run
    kinds = [parameter.kind for parameter in inspect.signature(run).parameters.values()]
    assert inspect.Parameter.VAR_POSITIONAL in kinds
