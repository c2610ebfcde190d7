# SPDX-License-Identifier: Apache-2.0
"""System packages and virtual environments: from a fresh machine to one that can build.

The needs are listed here (packages of Debian and Ubuntu) and in pyproject.toml and requirements/
(Python). Nothing is done twice: system packages are looked up first, and a virtual environment has
a stamp under build/stamps made from the content of the files that describe it. An environment that
was made by hand and holds the same packages is accepted as it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, StepFailed, run, say

STAMPS = ROOT / "build" / "stamps"
REQUIREMENTS = ROOT / "requirements"
PYTHON_MIN = (3, 10)

# The system packages. All names but two (below) are the same in Debian 12, Ubuntu 22.04 and Ubuntu
# 24.04. Compilers and checkers carry their version, so that every machine compiles and formats
# alike. Several builds compile the core with the same flags; with ccache it is compiled once.
COMPILER = "g++-12"
BUILD_PACKAGES = ("ccache", COMPILER, "liburing-dev", "libxxhash-dev", "nlohmann-json3-dev")
OS_RELEASE = Path("/etc/os-release")
RELEASE = OS_RELEASE.read_text().splitlines() if OS_RELEASE.exists() else []
IS_JAMMY = "VERSION_CODENAME=jammy" in RELEASE
# Clang's sanitizers link with this library; in Ubuntu 22.04 clang-14 itself brings it.
SANITIZER_PACKAGES = () if IS_JAMMY else ("libclang-rt-14-dev",)
# A browser without a window opens the page of `tencache report`. Ubuntu's is a snap, which a
# container cannot install; there the test is skipped unless another browser is found.
BROWSER_PACKAGES = ("chromium-headless-shell",) if "ID=debian" in RELEASE else ()
# The tests use torch.compile, which calls g++ by that name and includes Python.h.
TEST_PACKAGES = (
    "binutils",
    "clang-14",
    "clang-format-14",
    "g++",
    "libbenchmark-dev",
    "libgmock-dev",
    "libgtest-dev",
    "lld-14",  # links suites with a sanitizer in a third of the time
    "python3-dev",
    *SANITIZER_PACKAGES,
    *BROWSER_PACKAGES,
)
# How much memory a job may take: the compiler with torch's headers, a suite of the core under a
# sanitizer, and a test of the largest programs.
COMPILER_BYTES = 2 << 30
SUITE_BYTES = 2 << 30
TEST_BYTES = 6 << 30
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
PACKAGE_SOURCES = ("allocator", "guard", "preload", "shim", "cmake", "python")
EMULATED_GPU_SOURCES = (
    "allocator/base",
    "allocator/platform",
    "cmake",
    "tests/emulated_gpu",
    "tests/support/cuda",
)
BENCHMARK_PACKAGES = ("fio", "libbenchmark-dev")


@dataclass(frozen=True)
class VirtualEnvironment:
    """A virtual environment with one version of torch and what the project needs."""

    folder: Path
    torch: str  # names a file of requirements/ and the build folder
    requirement_files: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def build_folder(self) -> Path:
        return ROOT / "build" / self.torch


MAIN = VirtualEnvironment(ROOT / ".venv", "torch-2.11", ("build.txt", "lint.txt", "docs.txt"))
NEWEST_TORCH = VirtualEnvironment(ROOT / ".venv-2.15", "torch-2.15", ("build.txt",))
# One copy of uv, in the main environment, installs into both.
UV = MAIN.folder / "bin" / "uv"


def install_system_packages(packages: tuple[str, ...]) -> None:
    """Installs what is missing; StepFailed with the line to type if that is not allowed."""
    missing = _missing_packages(packages)
    if not missing:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    prefix: list[str] = []
    if os.geteuid() != 0:
        if not _has_sudo_without_password():
            raise StepFailed(
                "system packages are missing, and this user may not install them. Type\n\n"
                f"    sudo apt-get update && sudo {' '.join(install)}\n\n"
                "or the same as root, and start again."
            )
        prefix = ["sudo", "-n"]
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive"]
    run("Update the list of system packages", [*apt, "apt-get", "update"])
    run(
        f"Install system packages: {', '.join(missing)}",
        [*apt, install[0], "-o", "DPkg::Lock::Timeout=300", *install[1:]],
    )


def _has_sudo_without_password() -> bool:
    if shutil.which("sudo") is None:
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def _missing_packages(packages: tuple[str, ...]) -> list[str]:
    wanted = [*packages, *([] if _can_make_environments() else ["python3-venv"])]
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        if not _can_make_environments():
            raise StepFailed(
                f"{sys.executable} lacks the modules venv and ensurepip. Install them."
            )
        say(
            "    This is not Debian or Ubuntu, so system packages are not checked; what they "
            f"call {', '.join(wanted)} must be here."
        )
        return []
    shown = subprocess.run(
        [
            "dpkg-query",
            "--show",
            "--showformat",
            "${binary:Package} ${db:Status-Status}\n",
            *wanted,
        ],
        capture_output=True,
        text=True,
    ).stdout
    installed = {
        line.split()[0].split(":")[0] for line in shown.splitlines() if line.endswith(" installed")
    }
    return [package for package in wanted if package not in installed]


def _can_make_environments() -> bool:
    command = [sys.executable, "-c", "import ensurepip, venv"]
    return subprocess.run(command, capture_output=True).returncode == 0


def prepare(environment: VirtualEnvironment) -> None:
    """Makes the virtual environment and installs what its files list, once for each content."""
    if sys.version_info < PYTHON_MIN and not environment.python.exists():
        raise StepFailed(
            f"{sys.executable} is Python {sys.version.split()[0]}; tencache needs 3.10 or newer. "
            "Name another one: make PYTHON=python3.11 ..."
        )
    stamp = STAMPS / environment.torch
    if stamp.exists() and stamp.read_text() == _fingerprint(environment):
        return
    name = environment.folder.name
    if not environment.python.exists():
        run(
            f"Make the virtual environment {name}",
            [sys.executable, "-m", "venv", environment.folder],
        )
    if not UV.exists():
        run(
            "Install uv, which installs the other packages",
            [MAIN.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"],
        )
    # Compile now: hundreds of tests each import torch in a process of their own, and may not even
    # be allowed to keep what Python compiled.
    command: list[str | Path] = [UV, "pip", "install", "--compile-bytecode"]
    command += ["--python", environment.python]
    command += ["-r", "pyproject.toml", "--extra", "test", "--extra", "plot"]
    for file in (f"{environment.torch}.txt", *environment.requirement_files):
        command += ["-r", f"requirements/{file}"]
    run(
        f"Install PyTorch and the other Python packages into {name} (the first time about 5 GB)",
        command,
        live=sys.stdout.isatty(),
    )
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(_fingerprint(environment))


def _fingerprint(environment: VirtualEnvironment) -> str:
    """A digest of the files that describe the environment, and of when it was made."""
    digest = hashlib.sha256()
    names = (f"{environment.torch}.txt", *environment.requirement_files)
    for path in (ROOT / "pyproject.toml", *(REQUIREMENTS / name for name in names)):
        digest.update(path.read_bytes())
    made = environment.folder / "pyvenv.cfg"
    digest.update(str(made.stat().st_mtime_ns if made.exists() else 0).encode())
    return digest.hexdigest()


def jobs(bytes_each: int, more_than_cores: int = 0) -> int:
    """How many jobs of that much memory can run at once here: one a core, and so many more.

    More than one a core serve where jobs wait for disks or for processes that they start.
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CONTAINER_LIMITS:
        # A container sees the machine's memory. If it may use less, this file holds that number of
        # bytes; otherwise it holds "max", or in cgroups of version 1 a number beyond all memory.
        limit = path.read_text().strip() if path.exists() else ""
        if limit.isdigit():
            memory_bytes = min(memory_bytes, int(limit))
    count = len(os.sched_getaffinity(0)) + more_than_cores
    return max(1, min(count, memory_bytes // bytes_each))


def build_environment() -> dict[str, str]:
    """Variables for every build: pinned cmake and ninja, one compiler, how many jobs, ccache."""
    variables = {
        "PATH": f"{MAIN.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs(COMPILER_BYTES)),
    }
    if "CXX" not in os.environ and shutil.which(COMPILER):
        variables["CXX"] = COMPILER
    if shutil.which("ccache"):
        variables |= {
            "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
            # Several builds compile the same, but paths are alike only as seen from their folders.
            "CCACHE_BASEDIR": str(ROOT),
            # With -g an object names the folder of its build. Without this, ccache would give no
            # build the object of another folder.
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_SLOPPINESS": "pch_defines,time_macros",  # for precompiled headers
        }
    return variables


def warning_option() -> str:
    """The option of CMake that makes warnings errors where builds use COMPILER.

    Another compiler may warn of more, which must not end the build.
    """
    return f"TENCACHE_WERROR={'ON' if 'CXX' in build_environment() else 'OFF'}"


def clean_variables() -> dict[str, str]:
    """Removes tencache's options from this environment; returns variables for programs under test.

    With these, programs ask no hub, and Python keeps what it compiles.
    """
    for name in [name for name in os.environ if name.startswith("TENCACHE")]:
        del os.environ[name]
    return {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}


def cuda_option() -> str:
    """The option of CMake that names the folder of cuda.h.

    Each torch brings its own. A wheel's core is compiled once, with this one, and so is the core
    of every environment: ccache has its objects from then on.
    """
    (header,) = MAIN.folder.glob("lib/python3*/site-packages/nvidia/cu13/include/cuda.h")
    return f"TENCACHE_CUDA_INCLUDE={header.parent}"


def install_package(environment: VirtualEnvironment) -> None:
    """If sources changed, builds the package against the environment's torch and installs it."""
    stamp = STAMPS / f"{environment.torch}-installed"
    fingerprint = f"{_fingerprint_of(PACKAGE_SOURCES)} {_fingerprint(environment)}"
    command_line = environment.folder / "bin" / "tencache"
    if stamp.exists() and stamp.read_text() == fingerprint and command_line.exists():
        return
    # Use pip, not uv: pip's verbose output shows the build's progress line by line.
    command: list[str | Path] = [environment.python, "-m", "pip", "install", "--verbose"]
    command += ["--disable-pip-version-check", "--no-build-isolation", "--no-deps"]
    command += [
        "--force-reinstall",
        "--config-settings",
        f"build-dir={environment.build_folder}",
    ]
    for option in (warning_option(), cuda_option()):
        command += ["--config-settings", f"cmake.define.{option}"]
    command.append(".")
    run(
        f"Build tencache for {environment.torch} and install it into {environment.folder.name}",
        command,
        environment=build_environment(),
    )
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(fingerprint)


def build_shim_suites(environment: VirtualEnvironment) -> None:
    """Builds the suites of the shim in the package's build folder, where the shim's objects are."""
    _build_target(environment, "the suites of the shim", "SHIM_TESTS", "shim_suites")


def build_cpp_example(environment: VirtualEnvironment) -> None:
    """Builds examples/cpp as a user does, with the installed package and the environment's torch.

    Only Torch_DIR differs: that torch is built for CUDA, and its own CMake files ask for a toolkit,
    which those in tests/support do not.
    """
    (packages,) = environment.folder.glob("lib/python3*/site-packages")
    folder = cpp_example_folder(environment)
    configure: list[str | Path] = ["cmake", "-S", ROOT / "examples" / "cpp", "-B", folder]
    configure += ["-G", "Ninja", f"-Dtencache_DIR={packages / 'tencache' / 'cmake'}"]
    configure += [f"-DTorch_DIR={ROOT / 'tests' / 'support' / 'torch_without_toolkit'}"]
    configure += [f"-DTORCH_FOLDER={packages / 'torch'}"]
    build: list[str | Path] = ["cmake", "--build", folder]
    for title, command in (("Configure", configure), ("Build", build)):
        run(
            f"{title} the example in C++ for {environment.torch}",
            command,
            environment=build_environment(),
        )


def cpp_example_folder(environment: VirtualEnvironment) -> Path:
    return ROOT / "build" / f"{environment.torch}-cpp-example"


def build_emulated_gpu(environment: VirtualEnvironment) -> None:
    """If its sources changed, builds the emulated GPU for the environment's torch."""
    stamp = STAMPS / f"{environment.torch}-emulated-gpu"
    fingerprint = f"{_fingerprint_of(EMULATED_GPU_SOURCES)} {_fingerprint(environment)}"
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    _build_target(environment, "the emulated GPU", "EMULATED_GPU", "emulated_gpu")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(fingerprint)


def configure_shim_for_tidy() -> Path:
    """Configures a build that compiles each source of the shim by itself; returns its folder."""
    folder = ROOT / "build" / "tidy"
    configure = _configuration(MAIN, folder, "TENCACHE_UNITY=OFF")
    run("Configure the shim (for clang-tidy)", configure, environment=build_environment())
    return folder


def _configuration(environment: VirtualEnvironment, folder: Path, option: str) -> list[str | Path]:
    """The command that configures a build of the shim against the environment's torch."""
    configure: list[str | Path] = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja"]
    configure += [f"-DPython3_EXECUTABLE={environment.python}", "-DTENCACHE_BUILD_TORCH=ON"]
    return [*configure, f"-D{option}", f"-D{warning_option()}", f"-D{cuda_option()}"]


def _build_target(environment: VirtualEnvironment, what: str, option: str, target: str) -> None:
    """Configures the package's build folder with TENCACHE_BUILD_<option> and builds the target."""
    folder = environment.build_folder
    configure = _configuration(environment, folder, f"TENCACHE_BUILD_{option}=ON")
    build: list[str | Path] = ["cmake", "--build", folder, "--target", target]
    for title, command in (("Configure", configure), ("Build", build)):
        run(f"{title} {what} for {environment.torch}", command, environment=build_environment())


def _fingerprint_of(folders: tuple[str, ...]) -> str:
    """A digest of all files in the folders and of those that say how to build them."""
    digest = hashlib.sha256()
    files = [ROOT / "CMakeLists.txt", ROOT / "pyproject.toml"]
    for folder in folders:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(files):
        if path.suffix != ".pyc":
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
