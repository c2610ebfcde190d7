# SPDX-License-Identifier: Apache-2.0
"""All of torch.cuda.memory, and streams, events, graphs and pinned memory.

Each function gives the same as with PyTorch's own allocator, or differs as written here.
memory_calls.py runs once in a process with each allocator; both write their results. A function
that a later torch adds is in no table, and fails the test until it is.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from test_programs import SWITCH, missing

pytestmark = [
    pytest.mark.skipif(missing() != "", reason=missing()),
    pytest.mark.xdist_group("memory_functions"),  # one pytest process has the calls made
]

CALLS = Path(__file__).parent / "memory_calls.py"
MIB = 1 << 20
SETTINGS = "per_process_memory_fraction:0.75,garbage_collection_threshold:0.9,backend:native"

# The calls that use each public function of torch.cuda.memory.
MEMORY = {
    "caching_allocator_alloc": "raw_allocation",
    "caching_allocator_delete": "raw_allocation",
    "caching_allocator_disabled": "caching_off",
    "caching_allocator_enable": "caching_off",
    "get_per_process_memory_fraction": "fraction",
    "set_per_process_memory_fraction": "fraction",
    "empty_cache": "figures",
    "memory_stats": "figures",
    "memory_stats_as_nested_dict": "figures",
    "reset_accumulated_memory_stats": "figures",
    "reset_peak_memory_stats": "figures",
    "reset_max_memory_allocated": "single_figures",
    "reset_max_memory_cached": "single_figures",
    "host_memory_stats": "pinned",
    "host_memory_stats_as_nested_dict": "pinned",
    "reset_accumulated_host_memory_stats": "pinned",
    "reset_peak_host_memory_stats": "pinned",
    "memory_allocated": "single_figures",
    "max_memory_allocated": "single_figures",
    "memory_reserved": "single_figures",
    "max_memory_reserved": "single_figures",
    "memory_cached": "single_figures",
    "max_memory_cached": "single_figures",
    "memory_snapshot": "figures",
    "memory_summary": "figures",
    "list_gpu_processes": "processes",
    "mem_get_info": "the_drivers_view",
    "get_allocator_backend": "backend",
    "CUDAPluggableAllocator": "another_allocator",
    "change_current_allocator": "another_allocator",
    "MemPool": "private_pools",
    "use_mem_pool": "private_pools",
}


@dataclass
class Difference:
    """How tencache's result differs, and why."""

    reason: str
    is_so: Callable[[Any, Any], bool]  # of the native and tencache's results


def refuses(*features: str) -> Callable[[Any, Any], bool]:
    def is_so(_: Any, ours: Any) -> bool:
        texts = [ours] if isinstance(ours, str) else ours
        return all(
            text.startswith(f"tencache does not support {feature}")
            for text, feature in zip(texts, features, strict=True)
        )

    return is_so


DIFFERENCES = {
    "figures_of_middling_sizes": Difference(
        "from 2 MiB on a tensor has memory of its own, of exactly its size in units of 2 MiB",
        lambda _, ours: ours[1]["reserved_bytes.all.current"] == 10 * MIB,
    ),
    "backend": Difference("tencache's name", lambda _, ours: ours == "tencache"),
    "caching_off": Difference("freed memory is kept", refuses("switching caching off")),
    "pools_of_other_kinds": Difference(
        "pools of one kind only",
        refuses("MemPool(use_on_oom=True)", "MemPool(no_split=True)"),
    ),
    "emptied_within_a_pool": Difference(
        "the common cache stays, as with torch 2.11; with 2.15's own allocator it goes",
        lambda _, ours: ours == 30 * MIB + 12 * MIB,
    ),
    "pinned_and_freed": Difference(
        "freed memory is not active; PyTorch's own stays active for ever if no stream used it",
        lambda _, ours: ours == 0,
    ),
    "pinned_bytes_that_are_mapped": Difference(
        "pieces of at least 2 MiB are pinned, and blocks of exact sizes cut from them",
        lambda _, ours: 0 < ours[1] <= 2 * MIB,
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of both allocators, and what tencache's process wrote to stderr."""
    folder = tmp_path_factory.mktemp("calls")

    def run(name: str, variables: dict[str, str]) -> tuple[Any, str]:
        file = folder / f"{name}.json"
        done = subprocess.run(
            [sys.executable, str(CALLS), str(file)],
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": SETTINGS, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(file.read_text(encoding="utf-8")), done.stderr

    with ThreadPoolExecutor(2) as both:
        native, ours = both.map(run, ("native", "tencache"), ({}, SWITCH))
    return {"native": native[0], "tencache": ours[0], "stderr": ours[1]}


def test_each_function_gives_the_same_or_differs_as_documented(results: dict[str, Any]) -> None:
    native, ours = results["native"], results["tencache"]
    assert list(native) == list(ours)
    failed = {
        name: (value, native[name])
        for name, value in ours.items()
        if not (
            DIFFERENCES[name].is_so(native[name], value)
            if name in DIFFERENCES
            else value == native[name]
        )
    }
    assert not failed, json.dumps(failed, indent=1)
    assert set(DIFFERENCES) <= set(ours)


def test_each_public_function_is_called(results: dict[str, Any]) -> None:
    assert set(torch.cuda.memory.__all__) <= set(MEMORY)
    assert set(MEMORY.values()) <= set(results["tencache"])
    source = CALLS.read_text(encoding="utf-8")
    classes = (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph)
    public = {
        name
        for kind in classes
        for name, member in inspect.getmembers(kind)
        if callable(member) and not name.startswith("_") and name in vars(kind)
    }
    uncalled = {name for name in public if f".{name}(" not in source and f".{name})" not in source}
    assert uncalled <= NOT_CALLED_BY_NAME, uncalled - NOT_CALLED_BY_NAME


# What memory_calls.py need not call by name: functions that ask nothing of an allocator, and those
# that torch.cuda.graph calls for it.
NOT_CALLED_BY_NAME = {
    "debug_dump",
    "enable_debug_mode",
    "from_ipc_handle",
    "get_graph_data",
    "instantiate",
    "register_capture_end_hook",
    "register_capture_start_hook",
    "register_destroy_callback",
    "register_post_instantiate_hook",
    "register_replay_end_hook",
    "register_replay_start_hook",
    "retain_object",
    "raw_cuda_graph",
    "raw_cuda_graph_exec",
    # torch.cuda.graph calls these.
    "capture_begin",
    "capture_end",
    "capture_end_post",
    "capture_end_pre",
}


def test_settings_without_effect_are_named_once(results: dict[str, Any]) -> None:
    assert results["stderr"].count("tencache ignores these settings") == 1, results["stderr"]
    assert "garbage_collection_threshold" in results["stderr"]
    assert "per_process_memory_fraction (" not in results["stderr"]


def output_with_settings(early: str, late: str) -> str:
    """What a program says whose settings are `early` before `import torch` and `late` after it."""
    program = f"""
import os
import torch
os.environ["PYTORCH_ALLOC_CONF"] = {late!r}
try:
    torch.cuda.init()
    print(torch.cuda.get_per_process_memory_fraction(0))
except ValueError as error:
    print(error)
"""
    variables = {k: v for k, v in os.environ.items() if k != "PYTORCH_CUDA_ALLOC_CONF"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**variables, **SWITCH, "PYTORCH_ALLOC_CONF": early},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def test_settings_are_read_when_cuda_starts() -> None:
    assert output_with_settings("", "per_process_memory_fraction:0.5") == "0.5"


def test_a_wrong_setting_is_named_whatever_stands_before_it() -> None:
    settings = "backend:native,max_splt_size_mb:1"
    assert "max_splt_size_mb" in output_with_settings(settings, settings)
