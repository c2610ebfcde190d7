# SPDX-License-Identifier: Apache-2.0
"""Which backend a program gets, and the error where it asks for a GPU and there is none.

The tests run without a GPU. The doors for GPU memory can be installed all the same, as long as
nothing is allocated. What they do then is tested over a simulated driver (test_shim_cuda_*.py).
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_report import STATS

from tencache import TencacheError, _backend, _build_info, _doctor, _runtime
from tencache._library import core, cuda_shim_path
from tencache._torch_version import TorchVersion, running

has_cuda_torch = pytest.mark.skipif(
    torch.version.cuda is None, reason="this torch is built without CUDA"
)
has_no_gpu = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU here")


# A build that has the library for GPU memory of torch 2.11.
BUILT = {"2.11-cu13": "2.11.0+cu130"}


def torch_with(gpu_count: int, cuda: str | None = "13.0") -> Any:
    """A torch that sees `gpu_count` GPUs through NVML, and none through CUDA."""
    functions = {"_device_count_nvml": lambda: gpu_count, "device_count": lambda: 0}
    return SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(**functions),
    )


# ---- What is chosen ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count", "cuda", "built", "expected"),
    [
        ("auto", 2, "13.0", True, "cuda"),
        ("AUTO", 0, "13.0", True, "cpu"),
        ("auto", -1, "13.0", True, "cpu"),  # CUDA itself sees none
        ("auto", 2, "12.6", True, "cpu"),
        ("auto", 2, None, True, "cpu"),
        ("cpu", 2, "13.0", True, "cpu"),
        ("Cuda", 1, "13.0", True, "cuda"),
    ],
)
def test_the_backend_follows_the_option_and_the_gpus(
    monkeypatch, capsys, text, count, cuda, built, expected
):
    monkeypatch.setattr(_build_info, "CUDA_SHIMS", BUILT if built else {})
    _runtime.set_checked(core(), {"backend": text})
    assert _backend.resolve(core().option_text("backend"), torch_with(count, cuda)) == expected
    # A GPU that cannot be served is not passed over in silence.
    is_passed_over = text == "auto" and expected == "cpu" and count > 0 and cuda is not None
    assert ("although there is a GPU" in capsys.readouterr().err) is is_passed_over


@pytest.mark.parametrize(
    ("count", "cuda", "built", "reason"),
    [
        (2, None, True, "torch 2.11.0 is built without CUDA"),
        (2, "13.0", False, "built without the library for GPU memory"),
        (2, "12.6", True, "with CUDA 13 only"),
        (0, "13.0", True, "torch sees no GPU"),
        (-1, "13.0", True, "torch sees no GPU"),
    ],
)
def test_cuda_where_there_is_none_says_why(monkeypatch, count, cuda, built, reason):
    monkeypatch.setattr(_build_info, "CUDA_SHIMS", BUILT if built else {})
    with pytest.raises(TencacheError, match="backend=cuda was asked for") as error:
        _backend.resolve("cuda", torch_with(count, cuda))
    assert reason in str(error.value)
    assert "--backend cpu" in str(error.value)


def test_a_reason_that_is_a_sentence_gets_no_second_full_stop():
    message = _backend.no_cuda_message("There is no CUDA driver here. Install NVIDIA's driver.")
    assert "Install NVIDIA's driver. `tencache doctor`" in message
    assert ".." not in message


# ---- In a program ------------------------------------------------------------------------------


@has_no_gpu
def test_a_program_without_a_gpu_gets_the_cpu_backend(run_python):
    done = run_python(
        """
        import json, tencache, torch
        try:
            tencache.enable(backend="cuda", device_memory="1GiB")
        except tencache.TencacheError as error:
            print(json.dumps(str(error)))
        assert not tencache.is_enabled()
        try:
            tencache.allocator()
        except tencache.TencacheError as error:
            print(json.dumps(str(error)))
        tencache.enable(device_memory="32MiB")
        tencache.enable(backend="auto")
        tencache.enable(backend="cpu")
        print(json.dumps([tencache.options()["backend"], tencache.stats()["backend"]]))
        try:
            tencache.allocator()
        except tencache.TencacheError as error:
            print(json.dumps(str(error)))
        """
    )
    asked, allocator, chosen, late = (json.loads(line) for line in done.stdout.splitlines())
    assert asked.startswith("backend=cuda was asked for, but no GPU can be used here: ")
    assert allocator.startswith("tencache.allocator() is the allocator of CUDA tensors, and no GPU")
    assert 'call tencache.enable(backend="cpu")' in allocator
    assert chosen == ["cpu", "cpu"]
    assert "already enabled with backend=cpu" in late


@has_no_gpu
def test_a_program_whose_call_was_refused_hears_that_it_ran_without(run_python):
    done = run_python(
        """
        import tencache
        try:
            tencache.allocator()
        except tencache.TencacheError as error:
            print(error)
        """,
        env={"TENCACHE_BACKEND": "cpu"},
    )
    assert "no GPU can be used here" in done.stdout
    assert "--backend" not in done.stdout
    assert done.stderr == (
        "tencache: warning: TENCACHE_BACKEND had no effect: the program asked for tencache and was "
        "refused, so it ran without.\n"
    )


@has_no_gpu
def test_run_refuses_a_gpu_before_the_program_starts(run_tencache):
    done = run_tencache("run", "--backend", "cuda", "--", sys.executable, "-c", "print('ran')")
    assert done.returncode == 2
    assert "no GPU can be used here" in done.stderr
    assert "ran" not in done.stdout
    done = run_tencache("run", "--host-memory", "lots", "--", sys.executable, "-c", "print('ran')")
    assert done.returncode == 2
    assert "Option host_memory does not take the value" in done.stderr


@has_no_gpu
def test_the_variable_asks_as_the_flag_does(run_python):
    done = run_python("import torch", env={"TENCACHE": "1", "TENCACHE_BACKEND": "cuda"}, status=2)
    assert "no GPU can be used here" in done.stderr


@has_cuda_torch
@has_no_gpu
def test_the_doors_show_themselves_to_torch(run_python):
    done = run_python(
        """
        import json, torch
        from tencache._library import core, cuda_shim, shim
        from tencache._torch_version import running

        core().set_option("backend", "cuda")
        core().set_option("quiet", "on")
        doors = cuda_shim(running(torch))
        doors.install()
        doors.install()
        memory = torch.cuda.memory
        # torch's documentation installs an allocator by this call, and nothing stands in its way.
        memory.change_current_allocator(memory._get_current_allocator())
        weight = torch.ones(1 << 20, requires_grad=True)
        torch.optim.SGD([weight], lr=0.5).zero_grad()
        weight.sum().backward()
        stats = core().stats()
        print(json.dumps([
            memory.get_allocator_backend(),
            shim(running(torch)).describe()["backend"],
            stats["backend"], stats["gpus"], stats["extents"], torch.cuda.is_initialized(),
        ]))
        """
    )
    assert json.loads(done.stdout) == ["tencache", "cuda", "cuda", [], 0, False]


@has_cuda_torch
@has_no_gpu
def test_the_pluggable_allocator_finds_its_functions(run_python):
    path = cuda_shim_path(running(torch))
    done = run_python(
        f"""
        import torch
        made = torch.cuda.memory.CUDAPluggableAllocator(
            {str(path)!r}, "tencache_cuda_malloc", "tencache_cuda_free"
        )
        torch.cuda.memory.change_current_allocator(made)
        print(torch.cuda.memory.get_allocator_backend())
        """
    )
    assert done.stdout.strip() == "pluggable"


@pytest.mark.parametrize(
    ("devices", "version", "reason"),
    [
        ([], TorchVersion("2.11.0+cu130", "13.0"), "no driver"),
        (["a GPU"], None, "torch is not installed"),
        (["a GPU"], TorchVersion("2.11.0+cpu", None), "torch 2.11.0+cpu is built without CUDA"),
        (["a GPU"], TorchVersion("2.11.0+cu126", "12.6"), "is built for CUDA 12.6"),
        (["a GPU"], TorchVersion("2.11.1+cu132", "13.2"), None),
    ],
)
def test_gpus_are_served_with_the_torch_that_is_installed(monkeypatch, devices, version, reason):
    monkeypatch.setattr(_build_info, "CUDA_SHIMS", BUILT)
    why = _backend.why_not_served({"devices": devices, "reason": "no driver"}, version)
    assert why is None if reason is None else reason in why


# ---- doctor ------------------------------------------------------------------------------------


@has_no_gpu
def test_doctor_says_whether_gpus_are_served(run_tencache):
    done = run_tencache("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["gpu"]["served"] is False
    assert report["gpu"]["served_reason"]
    done = run_tencache("doctor", "--backend", "cuda", env={"COLUMNS": "200"})
    assert done.returncode == 1
    assert "no GPU can be used here" in done.stdout
    assert ".." not in done.stdout


def test_a_gpu_needs_no_disk():
    report: dict[str, Any] = {
        "torch": {"fits": True},
        "disk": {"error": "no disk"},
        "page_map": {"works": True},
        "gpu": {"devices": ["one"], "served": True, "served_reason": ""},
        "options": {"backend": "cuda", "strict": "off"},
    }
    assert _doctor.blockers(report) == []
    report["options"]["backend"] = "auto"
    assert _doctor.blockers(report) == []
    report["gpu"]["served"] = False
    assert _doctor.blockers(report) == ["no disk"]
    report["options"]["backend"] = "cpu"
    assert _doctor.blockers(report) == ["no disk"]


def test_stats_of_gpus_are_shown_one_by_one(run_tencache, tmp_path):
    gpus = [
        {"ordinal": ordinal, **{group: STATS[group] for group in ("budget", "peak", "bytes")}}
        for ordinal in (0, 3)
    ]
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**STATS, "backend": "cuda", "gpus": gpus}), encoding="utf-8")
    done = run_tencache("stats", str(file), env={"COLUMNS": "150"})
    assert done.returncode == 0, done.stderr
    assert "gpu 3: peak.device" in done.stdout
    assert "gpu 0: bytes.evicted" in done.stdout
    assert "host memory: peak" in done.stdout
