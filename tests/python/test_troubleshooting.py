# SPDX-License-Identifier: Apache-2.0
"""Every message of docs/troubleshooting.md is said by a program that gets into that trouble.

Messages that need a GPU are in tests/emulated_gpu. Each message of the page has the name of what
says it: a trouble of troubles.py, a command line, or a test of its own below. A message that is on
the page and not here, or the other way round, is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import run_command
from test_cpp import PRELOADED, program_with_libtorch
from test_failures import Mount, needs_root, unmount
from test_self_test import ANSWERS
from troubleshooting import has, messages

# Messages do not depend on the installed torch. The troubles run once, in one process's children.
pytestmark = [pytest.mark.any_torch, pytest.mark.xdist_group("troubleshooting")]

Run = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
RUN = ("run", "--device-memory=64MiB")
TRUE = ("--", "true")

# The messages, by the trouble of troubles.py that says them.
OF_TROUBLES: Mapping[str, tuple[str, ...]] = {
    "wrong_calls": (
        "tencache is not enabled in this process, so …",
        "tencache has no option '…': …",
        "tencache option … is of type …; give …",
        "tencache.enable(…) gives a value without a name. …",
        "tencache.allocator() is the allocator of CUDA tensors, and no GPU can be used here: …",
        "TencacheCallback logs nothing, because tencache is not enabled in this process.",
        "tencache was enabled after … had been made: these stay in memory, outside the budget, …",
        "tencache is already enabled with … and cannot change to …",
        "tencache ran out of memory. Tried to allocate … at once, and this machine holds at most …",
        "tencache.enable() was called in a forked child of a process that has tencache: …",
        "… was not written: no repeating period was seen; …",
    ),
    "neither_yes_nor_no": (
        "TENCACHE=… says neither yes nor no.",
        "The program ends here, since TENCACHE asked for tencache and it cannot start.",
    ),
    "unused_variables": ("… set, and TENCACHE is not, so this program ran without tencache. …",),
    "gpu_passed_over": ("the budget is that of tensors in DRAM, although there is a GPU: …",),
    "no_room_for_thread_locals": ("… cannot be loaded: …",),
    "strict_mode": (
        "learn_from=… has no effect: with … nothing is planned",
        "tencache ran out of memory. Tried to allocate …. Strict mode does not spill; …",
    ),
    "used_up_quota": (
        "there is no …, so this rank learns without the option learn_from",
        "tencache ran out of memory. Tried to allocate …. Nothing can be spilled: …",
        "an eviction failed: …; the tensor stays in memory and nothing is lost …",
        "… failed, since the spill file could not take them; the tensors stayed in memory.",
    ),
    "too_large_an_op": (
        "first spill: use reached … of the device budget of …; …",
        "… exceeds the budget of … by … (counted as over_budget); --device-memory … would hold it",
        "over budget …, by up to … (a warning has named the cause): --device-memory … would hold "
        "them",
        "cold tensors were touched outside of ops: … (right, but slow), as by NumPy views …",
        "learn_from: the recorded period was not followed; …",
        "the … file … could not be written: …",
    ),
    "failing_disk": (
        "the program waits for room until the disk takes tensors again, for … at most "
        "(--disk-wait): …",
        "…, nothing can leave for it, and the budget of … is exceeded by … (counted as "
        "over_budget): …",
    ),
    "many_tensors": ("… extents use up the mappings of this process (vm.max_map_count); …",),
    "machine_without_memory": ("tencache: the machine is out of memory. Tried to allocate …",),
    "disk_that_lies": ("the spill file in … returned other bytes than were written: …",),
    "disk_that_cannot_be_read": ("tensors cannot be read back from the spill file in …: …",),
    "page_that_is_lost": ("the spill file in … cannot be read at file offset …: …",),
    "closed_descriptors": ("the program has closed descriptor …, which was …",),
    "writer_that_cannot_wait": (
        "a tensor stays in the spill file, where it can be used but slowly: …",
    ),
}

# Each message with the arguments of `tencache` that make it say so.
OF_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Option … does not take the value …": ("run", "--device-memory=lots", *TRUE),
    "… would run this program, and tencache is not installed there: …": (
        *RUN,
        "--",
        os.path.realpath(sys.executable),
    ),
    "…: command not found on PATH.": (*RUN, "--", "no-such-program"),
    "… is not executable. For a Python script write …": (*RUN, "--", "./train.py"),
    "Cannot spill to …: it does not exist.": (*RUN, "--spill-dir=nowhere", *TRUE),
    "Cannot spill to …: it is in memory (…), …": (*RUN, "--spill-dir=/dev/shm", *TRUE),
    "backend=cuda was asked for, but no GPU can be used here: …": (*RUN, "--backend=cuda", *TRUE),
    "… holds no stats of tencache (…)": ("stats", "train.py"),
    "… is no recorded period: it is …": ("plan", "page.html"),
    "…, line …, is not from a trace: …": ("trace", "dump", "train.py"),
    "… cannot be read: …": ("run", "--learn-from=nowhere.jsonl", *TRUE),
    "there is no process …": ("top", "--once", str((1 << 22) + 1)),
    "process … does not run under tencache, or has ended, or does not publish its counters.": (
        "top",
        "--once",
        str(os.getpid()),
    ),
    "the period file does not say how fast the disk …": ("plan", "period.jsonl"),
    "… is not a budget: write a size, as in 1.5GiB, or 50% of the peak.": (
        "plan",
        "period.jsonl",
        "--disk=5GB/s",
        "--device-memory=half",
    ),
}

# Each message with the variable, and its value, that makes `tencache run` say so.
OF_VARIABLES: Mapping[str, tuple[str, str]] = {
    'There is no option "…". Did you mean "…"…?': ("TENCACHE_MEMORY", "1GiB"),
    "TORCH_DEVICE_BACKEND_AUTOLOAD=… stops torch from loading extensions, …": (
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "0",
    ),
    "tencache's … is missing from …: this copy of the package was not built.": (
        "PYTHONPATH",
        str(ROOT / "python"),
    ),
}

# Each message with the version of torch that is installed for it.
OF_TORCH: Mapping[str, str] = {
    "This tencache supports torch …, but torch … is installed here, which is too new.": "2.99.0",
    "This tencache supports torch …, but torch … is installed here, which is too old.": "2.3.1",
    "…: it was built from source against torch … alone.": "2.13.0+cpu",
}

# Each message with a limit of the shell, in KiB or in blocks of a KiB, and an argument.
OF_LIMITS: Mapping[str, tuple[str, ...]] = {
    "the limit on file sizes of this process (ulimit -f) is …": ("-f 1024", "--spill-dir=."),
    "No directory for the spill file was found.": ("-f 1024", "--device-memory=64MiB"),
    "could not reserve the … of virtual addresses that the budget needs…": (
        "-v 24000000",
        "--device-memory=20GiB",
    ),
}

# What the shell and Python say where tencache is not, each with a command line of bash that makes
# them say so. In it "$0" is Python. With -S, Python lacks its site packages, like a Python that has
# no tencache.
OF_SHELL: Mapping[str, str] = {
    "tencache: command not found": "PATH=/nowhere; tencache doctor",
    "ModuleNotFoundError: No module named 'tencache'": '"$0" -S -c "import tencache"',
}

# Each message with the code that the libtorch of a preloaded C++ program has.
OF_LIBTORCH: Mapping[str, str] = {
    "The program ends here, since LD_PRELOAD asked for tencache and it cannot start.": "",
    "This tencache supports torch …, but this program runs with torch …": (
        "unsigned long aoti_torch_abi_version() { return 2ul << 56 | 99ul << 48; }"
    ),
    "The libtorch of this process does not tell its version, …": "",
}

OF_ANOTHER_LAYOUT = (
    "… is not laid out like torch …, which this part of tencache was compiled against: …"
)
OF_ANOTHER_USER = "Cannot spill to …: it belongs to user …, and is not sticky as /var/tmp is."
OF_A_FULL_DISK = "Cannot spill to …: only … are free there and at least … are needed."


def test_the_page_has_these_messages_and_no_others() -> None:
    here = [message for said in OF_TROUBLES.values() for message in said]
    for by_message in (OF_COMMANDS, OF_VARIABLES, OF_TORCH, OF_LIMITS, OF_SHELL, OF_LIBTORCH):
        here += by_message
    here += [OF_ANOTHER_LAYOUT, OF_ANOTHER_USER, OF_A_FULL_DISK]
    assert sorted(here) == sorted(messages(with_gpus=False))


# ---- In a program -------------------------------------------------------------------------------

GREEDY = """
__attribute__((tls_model("initial-exec"))) thread_local char bytes[64];
char* first() { return bytes; }
"""


def compiled(folder: Path, name: str, source: str) -> Path:
    compiler = shutil.which("g++-12") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    file = folder / f"{name}.cpp"
    file.write_text(source, encoding="utf-8")
    library = file.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, file], check=True)
    return library


@pytest.fixture(scope="module")
def troubles(tmp_path_factory: pytest.TempPathFactory, faults: Path) -> dict[str, Any]:
    """What each trouble said, and how it ended."""
    folder = tmp_path_factory.mktemp("troubles")
    done = run_command(
        [sys.executable, str(Path(__file__).with_name("troubles.py")), str(folder)],
        cwd=folder,
        env={
            "LD_PRELOAD": str(faults),
            "GREEDY_LIBRARY": str(compiled(folder, "greedy", GREEDY)),
            # Threads do not survive a fork.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = json.loads(done.stdout)
    return {name: (ends, (folder / f"{name}.txt").read_text()) for name, ends in ended.items()}


@pytest.mark.parametrize("name", OF_TROUBLES)
def test_program_in_trouble_says_so(troubles: dict[str, Any], name: str) -> None:
    ends, output = troubles[name]
    assert ends["status"] == ends["expected"], output
    for message in OF_TROUBLES[name]:
        assert has(output, message), f"{message}\n{output}"


def test_every_trouble_has_a_message(troubles: dict[str, Any]) -> None:
    assert troubles.keys() == OF_TROUBLES.keys()


def test_torch_of_another_layout(run_python: Run, tmp_path: Path) -> None:
    code, _ = ANSWERS["elements"]
    source = f'#include <cstdint>\nextern "C" {{\n{code}\n}}\n'
    done = run_python(
        "import torch",
        env={
            "TENCACHE": "1",
            "TENCACHE_DEVICE_MEMORY": "32MiB",
            "LD_PRELOAD": str(compiled(tmp_path, "answer", source)),
        },
        status=2,
    )
    assert has(done.stderr, OF_ANOTHER_LAYOUT), done.stderr


@pytest.mark.parametrize("message", OF_LIBTORCH)
def test_cpp_program_says_so(tmp_path: Path, message: str) -> None:
    program = program_with_libtorch(tmp_path, OF_LIBTORCH[message])
    done = run_command([str(program)], cwd=tmp_path, env=PRELOADED)
    assert done.returncode == 2, done.stdout + done.stderr
    assert has(done.stderr, message), done.stderr


# ---- On the command line ------------------------------------------------------------------------


def said_by(run_tencache: Run, *arguments: str, **variables: str) -> str:
    done = run_tencache(*arguments, env={"COLUMNS": "2000", **variables})
    assert done.returncode != 0, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


@pytest.mark.parametrize("message", OF_COMMANDS)
def test_command_line_says_so(run_tencache: Run, tmp_path: Path, message: str) -> None:
    arguments = OF_COMMANDS[message]
    if "--spill-dir=/dev/shm" in arguments and not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is not a tmpfs of its own here")
    if os.path.realpath(sys.executable) in arguments and sys.prefix == sys.base_prefix:
        pytest.skip("this Python is in no virtual environment")
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "page.html").write_text("<!doctype html>\n")
    (tmp_path / "period.jsonl").write_text(
        '{"format": "tencache-period", "version": 1}\n{"id": 0, "bytes": 4096}\n'
        '{"name": "aten::mm", "compute_ns": 1, "reads": [0]}\n'
    )
    output = said_by(run_tencache, *arguments, CUDA_VISIBLE_DEVICES="-1")
    assert has(output, message), output


@pytest.mark.parametrize("message", OF_VARIABLES)
def test_variable_has_it_say_so(run_tencache: Run, message: str) -> None:
    name, value = OF_VARIABLES[message]
    output = said_by(run_tencache, *RUN, "--", sys.executable, "-c", "", **{name: value})
    assert has(output, message), output


@pytest.mark.parametrize("message", OF_TORCH)
def test_doctor_says_which_torch_is_needed(run_tencache: Run, tmp_path: Path, message: str) -> None:
    version = OF_TORCH[message]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = {version!r}\ncuda = None\n")
    output = said_by(run_tencache, "doctor", PYTHONPATH=str(tmp_path))
    assert has(output, message), output


@pytest.mark.parametrize("message", OF_LIMITS)
def test_limit_of_the_shell_has_it_say_so(tmp_path: Path, message: str) -> None:
    limit, option = OF_LIMITS[message]
    command = f'ulimit {limit}; exec "$0" -m tencache run {option} -- true'
    done = run_command(["bash", "-c", command, sys.executable], cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert has(done.stderr, message), done.stderr


@pytest.mark.parametrize("message", OF_SHELL)
def test_shell_says_that_it_is_not_there(tmp_path: Path, message: str) -> None:
    command = ["bash", "-c", OF_SHELL[message], sys.executable]
    done = run_command(command, cwd=tmp_path, env={"PYTHONPATH": ""})
    assert done.returncode != 0, done.stdout + done.stderr
    assert has(done.stderr, message), done.stderr


def test_directory_of_another_user(run_tencache: Run, tmp_path: Path) -> None:
    needs_root()
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o755)
    os.chown(directory, 65534, 65534)
    output = said_by(run_tencache, *RUN, f"--spill-dir={directory}", *TRUE)
    assert has(output, OF_ANOTHER_USER), output


def test_full_disk(run_tencache: Run, tmp_path: Path) -> None:
    needs_root()
    mount = Mount(tmp_path)
    try:
        directory = mount.ext4(megabytes=8)
        output = said_by(run_tencache, *RUN, f"--spill-dir={directory}", *TRUE)
    finally:
        for mounted in mount.mounted:
            unmount(mounted)
    assert has(output, OF_A_FULL_DISK), output
