# SPDX-License-Identifier: Apache-2.0
"""Failures outside tencache: each gives one clear message, and no bit is lost.

A message names the value, the reason and the remedy. A failure that can be known at the start ends
the program before it runs a line. One in the middle (a full disk) leaves every tensor where it is,
and the program gets an error that it can handle.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment

# These tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

Run = Callable[..., Any]
ON = {"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "32MiB"}
# Twenty tensors of 4 MiB with known elements.
TENSORS = """
    import torch, tencache

    def make(count=20):
        return [torch.full((1 << 20,), float(i)) for i in range(count)]

    def check(tensors, added=0):
        for i, t in enumerate(tensors):
            assert bool((t == i + added).all()), i
"""


def lines_of(done: Any, kind: str) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith(f"tencache: {kind}")]


# ---- Known at the start -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("TENCACHE_DEVICE_MEMORY", "lots", ["device_memory", "lots", "1.5GiB"]),
        ("TENCACHE_DEVICE_MEMORY", "12XB", ["device_memory", "12XB"]),
        ("TENCACHE_DEVICE_MEMORY", "-1GiB", ["device_memory", "-1GiB"]),
        ("TENCACHE_DEVICE_MEMORY", "4KiB", ["device_memory", "4KiB", "at least"]),
        ("TENCACHE_DISK_SPACE", "1.2.3GiB", ["disk_space", "1.2.3GiB"]),
        ("TENCACHE_DEVICE_MEMROY", "1GiB", ["TENCACHE_DEVICE_MEMROY", "device_memory"]),
        ("TENCACHE_CHAOS", "yes", ["chaos", "yes", "whole number"]),
        ("TENCACHE", "2GiB", ["TENCACHE=2GiB", "TENCACHE_DEVICE_MEMORY"]),
    ],
)
def test_value_that_cannot_be_used(
    run_python: Run, name: str, value: str, parts: list[str]
) -> None:
    environment = {**ON, name: value}
    done = run_python("import torch; print('ran')", env=environment, status=None)
    assert done.returncode == 2 and done.stdout == "", done
    errors = lines_of(done, "error:")
    assert len(errors) == 2 and "The program ends here" in errors[1], done.stderr
    for part in parts:
        assert part.lower() in errors[0].lower(), (part, errors[0])
    assert "Traceback" not in done.stderr


def refused_directory(run_python: Run, directory: Path, reason: str) -> None:
    done = run_python(
        "import torch; print('ran')",
        env={**ON, "TENCACHE_SPILL_DIR": str(directory)},
        status=None,
    )
    assert done.returncode == 2 and done.stdout == "", done
    errors = lines_of(done, "error:")
    assert len(errors) == 2, done.stderr
    assert str(directory) in errors[0] and reason in errors[0], errors[0]
    assert "--spill-dir" in errors[0] or "TENCACHE_SPILL_DIR" in errors[0], errors[0]


def test_spill_directory_that_is_missing(run_python: Run, tmp_path: Path) -> None:
    refused_directory(run_python, tmp_path / "nowhere", "does not exist")


def test_spill_directory_that_is_a_file(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused_directory(run_python, tmp_path / "file", "not a directory")


def test_spill_directory_in_memory(run_python: Run) -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is not a tmpfs of its own here")
    refused_directory(run_python, Path("/dev/shm"), "tmpfs")


def test_room_for_thread_locals_that_others_have_taken(run_python: Run, tmp_path: Path) -> None:
    compiler = shutil.which("g++-12") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    source, library = tmp_path / "greedy.cpp", tmp_path / "greedy.so"
    source.write_text(
        '__attribute__((tls_model("initial-exec"))) thread_local char bytes[64];\n'
        "char* first() { return bytes; }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    program = f"""
        import ctypes, shutil, torch, tencache

        for i in range(60):
            try:
                ctypes.CDLL(shutil.copy({str(library)!r}, f"{tmp_path}/greedy{{i}}.so"))
            except OSError:
                break
        try:
            tencache.enable(device_memory="1GiB")
        except tencache.TencacheError as error:
            print(error)
        else:
            print("enabled", i + 1)
    """
    refused = run_python(program)
    assert "libtencache.so cannot be loaded" in refused.stdout, refused
    assert "build again" not in refused.stdout
    remedy = re.search(r"GLIBC_TUNABLES=(\S+)", refused.stdout)
    assert remedy is not None, refused
    assert run_python(program, env={"GLIBC_TUNABLES": remedy[1]}).stdout == "enabled 60\n"


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of another user, or mount")


def test_spill_directory_of_another_user(run_python: Run, tmp_path: Path) -> None:
    needs_root()
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o755)
    os.chown(directory, 65534, 65534)
    refused_directory(run_python, directory, "belongs to user 65534")


def test_spill_directory_that_cannot_be_written(run_python: Run, mount: Mount) -> None:
    directory = mount.ext4(options="ro")
    refused_directory(run_python, directory, "Read-only file system")


def test_spill_directory_on_a_full_disk(run_python: Run, mount: Mount) -> None:
    directory = mount.ext4()
    with (directory / "filler").open("wb") as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    refused_directory(run_python, directory, "are free there")


# ---- In the middle of a run ---------------------------------------------------------------------


class Mount:
    """Small ext4 file systems in an image file; unmounted at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.mounted: list[Path] = []

    def ext4(self, megabytes: int = 96, options: str = "rw") -> Path:
        image, directory = self._folder / "image", self._folder / "mounted"
        directory.mkdir()
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        make = ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)]
        mount = ["mount", "-o", f"loop,{options}", str(image), str(directory)]
        for command in (make, mount):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"{command[0]} fails here: {done.stderr.strip()}")
        self.mounted.append(directory)
        return directory


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    needs_root()
    for tool in ("mkfs.ext4", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    mount = Mount(tmp_path)
    yield mount
    for directory in mount.mounted:
        unmount(directory)


def unmount(directory: Path) -> None:
    """Unmounts the disk. The kernel closes a ring's file a moment after its process has ended."""
    deadline = time.monotonic() + 20
    while subprocess.run(["umount", str(directory)], capture_output=True).returncode != 0:
        assert time.monotonic() < deadline, f"{directory} stays busy"
        time.sleep(0.1)


# The program allocates more than device and disk hold together. The error comes, half is freed, the
# rest is unharmed and the program goes on. Nothing is computed in between: even the smallest result
# needs room.
OUTGROW = """
    tensors = []
    try:
        for i in range(40):
            tensors.append(torch.full((1 << 20,), float(i)))
            for t in tensors[-3:]: t.add_(0)
    except RuntimeError as error:
        print(error)
        assert len(error.args) == 1
    else:
        raise AssertionError("it should have run out of both")
    assert len(tensors) >= 11  # more than fits on the device
    kept = tensors[::2]
    del tensors, t
    for i, t in enumerate(kept): assert bool((t == 2 * i).all()), i
    for t in kept: t.add_(1)
    more = make(2)
    check(more)
    for i, t in enumerate(kept): assert bool((t == 2 * i + 1).all()), i
    stats = tencache.stats()
    assert stats["eviction_failures"] > 0, stats
    assert stats["peak"]["device"] <= stats["budget"]["device"] or stats["over_budget"]["events"]
"""


def test_quota_used_up_in_the_middle(run_python: Run) -> None:
    done = run_python(TENSORS, OUTGROW, env={**ON, "TENCACHE_DISK_SPACE": "16MiB"})
    assert " out of memory." in done.stdout
    assert "--disk-space" in done.stdout, done.stdout
    assert len(lines_of(done, "warning:")) == 1, done.stderr


def test_disk_full_in_the_middle(run_python: Run, mount: Mount) -> None:
    directory = mount.ext4()
    environment = {
        **ON,
        "TENCACHE_SPILL_DIR": str(directory),
        "TENCACHE_DISK_SPACE": "10GiB",
        "TENCACHE_DISK_WAIT": "0",
    }
    done = run_python(TENSORS, OUTGROW, env=environment)
    assert " out of memory." in done.stdout
    assert "No space left on device" in done.stdout or "full" in done.stdout, done.stdout
    assert len(lines_of(done, "warning:")) == 1, done.stderr


def test_disk_full_for_a_moment_is_waited_for(run_python: Run, mount: Mount) -> None:
    directory = mount.ext4(megabytes=160)
    done = run_python(
        TENSORS,
        f"""
        import os, threading

        filler = "{directory}/filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True: file.write(bytes(1 << 16))
            except OSError as error:
                assert "No space" in str(error)

        def make_room():
            while tencache.stats()["eviction_failures"] == 0: pass
            os.unlink(filler)

        others = threading.Thread(target=make_room)
        others.start()
        tensors = make()
        for t in tensors: t.add_(1)
        others.join()
        check(tensors, added=1)
        stats = tencache.stats()
        assert stats["over_budget"]["events"] == 0, stats
        assert stats["peak"]["device"] <= stats["budget"]["device"], stats
        """,
        # The disk has room at the start, and none when the program fills it.
        env={**ON, "TENCACHE_SPILL_DIR": str(directory), "TENCACHE_DISK_WAIT": "10min"},
    )
    assert any("--disk-wait" in line for line in lines_of(done, "warning:")), done.stderr


def test_quota_that_just_suffices_is_enough(run_python: Run) -> None:
    """Slots are reused: many rounds need no more disk than the tensors cold at one time."""
    run_python(
        TENSORS,
        """
        tensors = make()
        for round_number in range(5):
            for t in tensors: t.add_(1)
        check(tensors, added=5)
        stats = tencache.stats()
        assert stats["eviction_failures"] == 0, stats
        assert stats["peak"]["disk"] <= 84 << 20, stats
        """,
        env={**ON, "TENCACHE_DISK_SPACE": "84MiB"},
    )


def test_op_that_needs_more_than_the_budget_goes_over_it_and_says_so(run_python: Run) -> None:
    done = run_python(
        TENSORS,
        """
        tensors = make(6)
        total = torch.stack(tensors).sum(0) + torch.cat(tensors)[: 1 << 20]
        assert bool((total == 15).all())
        check(tensors)
        stats = tencache.stats()
        assert stats["over_budget"]["events"] > 0
        assert stats["peak"]["device"] == stats["budget"]["device"] + (
            stats["over_budget"]["peak_bytes"])
        """,
        env={**ON, "TENCACHE_DEVICE_MEMORY": "10MiB"},
    )
    warnings = lines_of(done, "warning:")  # another one comes whenever the excess has doubled
    assert warnings
    for warning in warnings:
        assert "the budget of 10.0 MiB" in warning and "over_budget" in warning, warning
        assert "--device-memory" in warning, warning


# ---- Descriptors and limits of the process ------------------------------------------------------


@pytest.mark.parametrize("redirections", ["0<&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_descriptors_are_not_taken(tmp_path: Path, redirections: str) -> None:
    program, result = tmp_path / "program.py", tmp_path / "result"
    body = f"""
        import os
        tensors = make()
        for t in tensors: t.add_(1)
        links = []
        for number in (0, 1, 2):
            try: links.append(os.readlink(f"/proc/self/fd/{{number}}"))
            except OSError: links.append("closed")
        for number in (1, 2):
            try: os.write(number, b"what a C library prints " * 1000)
            except OSError: pass
        for t in tensors: t.add_(1)
        check(tensors, added=2)
        with open({str(result)!r}, "w") as file: print(links, file=file)
    """
    program.write_text(textwrap.dedent(TENSORS) + textwrap.dedent(body))
    subprocess.run(
        ["bash", "-c", f'exec "$0" "$1" {redirections}', sys.executable, str(program)],
        env=clean_environment({**ON, "TENCACHE_SPILL_DIR": str(tmp_path), "TENCACHE_QUIET": "1"}),
        check=True,
    )
    text = result.read_text()
    for ours in (str(tmp_path), "io_uring", "userfaultfd", "/pagemap", "/statm", "tencache"):
        assert ours not in text, text


@pytest.mark.parametrize("io_uring", ["auto", "off"])
def test_program_that_closes_all_descriptors_loses_no_file(
    run_python: Run, tmp_path: Path, io_uring: str
) -> None:
    done = run_python(
        TENSORS,
        f"""
        import os
        tensors = make()
        for t in tensors: t.add_(1)
        os.closerange(3, 256)
        for k in range(14):
            path = f"{tmp_path}/precious{{k}}"
            with open(path, "wb") as file: file.write(bytes([65 + k]) * (1 << 20))
            os.open(path, os.O_RDWR)
        print("opened", flush=True)
        more = make(24)
        print("allocated", flush=True)
        """,
        env={**ON, "TENCACHE_IO_URING": io_uring, "TENCACHE_SPILL_DIR": str(tmp_path)},
        status=None,
    )
    assert done.stdout == "opened\n" and done.returncode < 0, done
    (message,) = lines_of(done, "fatal:")
    assert "the spill file" in message and "precious" in message, message
    for k in range(14):
        assert (tmp_path / f"precious{k}").read_bytes() == bytes([65 + k]) * (1 << 20), k


def test_limit_on_addresses_leaves_a_smaller_arena(run_python: Run) -> None:
    limited = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (24_000_000 << 10, 24_000_000 << 10))
    """
    body = "for t in (tensors := make()): t.add_(1)\ncheck(tensors, added=1)"
    enable = 'tencache.enable(device_memory="32MiB")'
    run_python(limited, TENSORS, enable, body)
    refused = run_python(limited, TENSORS, 'tencache.enable(device_memory="20GiB")', status=None)
    assert refused.returncode == 1 and "ulimit -v" in refused.stderr, refused.stderr


def test_limit_on_file_sizes_is_known_at_the_start(run_python: Run) -> None:
    limited = """
        import resource, tencache
        resource.setrlimit(resource.RLIMIT_FSIZE, ({0} << 20, {0} << 20))
        tencache.enable(device_memory="32MiB")
        print(tencache.stats()["budget"]["disk"] >> 20)
    """
    assert run_python(limited.format(100)).stdout == "100\n"
    refused = run_python(limited.format(1), status=None)
    assert refused.returncode == 1 and "ulimit -f" in refused.stderr, refused.stderr


# ---- Calls at the wrong time --------------------------------------------------------------------


def test_enable_with_other_options_changes_nothing(run_python: Run) -> None:
    done = run_python(
        TENSORS,
        """
        tensors = make()
        for arguments in (dict(device_memory="64MiB"), dict(spill_dir="/"), dict(strict=True)):
            try:
                tencache.enable(**arguments)
            except RuntimeError as error:
                print(error)
            else:
                raise AssertionError(arguments)
        tencache.enable(device_memory="32768 KiB")  # the value in force
        for t in tensors: t.add_(1)
        check(tensors, added=1)
        assert tencache.stats()["budget"]["device"] == 32 << 20
        """,
        env=ON,
    )
    first, second, third = done.stdout.splitlines()
    assert "32MiB" in first and "64MiB" in first
    assert "spill_dir" in second and "strict" in third


def test_enable_after_tensors_exist_spares_them_and_warns(run_python: Run) -> None:
    done = run_python(
        TENSORS,
        """
        old = make(4)
        tencache.enable(device_memory="32MiB", quiet=True)
        new = make()
        for t in old + new: t.add_(1)
        check(old, added=1)
        check(new, added=1)
        del old
        assert tencache.stats()["peak"]["device"] <= 32 << 20
        """,
    )
    (line,) = lines_of(done, "warning:")
    assert "16.0 MiB" in line and "before" in line, done.stderr


def test_strict_error_suits_those_who_look_for_a_batch_size(run_python: Run) -> None:
    done = run_python(
        TENSORS,
        """
        from accelerate.utils import find_executable_batch_size
        tried = []

        @find_executable_batch_size(starting_batch_size=32)
        def train(batch_size):
            tried.append(batch_size)
            tensors = make(batch_size)
            check(tensors)
            return batch_size

        assert train() < 9
        print(tried)
        """,
        env={**ON, "TENCACHE_STRICT": "1"},
    )
    assert len(json.loads(done.stdout)) > 1


def test_program_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    spill = tmp_path / "spill"
    spill.mkdir()
    lines = [*map(textwrap.dedent, (TENSORS, "tensors = make()\nprint('up', flush=True)"))]
    program.write_text("\n".join([*lines, "import time", "time.sleep(600)"]))
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env=clean_environment({**ON, "TENCACHE_SPILL_DIR": str(spill), "TENCACHE_QUIET": "1"}),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    assert list(spill.iterdir()) == []
    process.kill()
    process.wait()
    assert list(spill.iterdir()) == []
