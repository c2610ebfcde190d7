# SPDX-License-Identifier: Apache-2.0
"""System packages and stamps: what is installed, what is said, and when work is repeated."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

import environment
import steps


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collects the steps that would run; none does."""
    ran: list[list[str]] = []

    def record(_title: str, command: list[str], **_options: object) -> None:
        ran.append([str(word) for word in command])

    monkeypatch.setattr(environment, "run", record)
    return ran


def test_nothing_is_installed_twice(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_missing_packages", lambda _packages: [])
    environment.install_system_packages(("fio",))
    assert commands == []


def test_root_installs_what_is_missing(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_missing_packages", lambda _packages: ["fio"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    environment.install_system_packages(("fio", "g++"))
    assert [command[2:4] for command in commands] == [
        ["apt-get", "update"],
        ["apt-get", "-o"],
    ]
    assert commands[1][-1] == "fio"


@pytest.mark.parametrize("has_sudo", [True, False])
def test_others_use_sudo_or_are_told_what_to_type(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, has_sudo: bool
) -> None:
    monkeypatch.setattr(environment, "_missing_packages", lambda _packages: ["fio"])
    monkeypatch.setattr(environment, "_has_sudo_without_password", lambda: has_sudo)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if has_sudo:
        environment.install_system_packages(("fio",))
        assert [command[:2] for command in commands] == [["sudo", "-n"]] * 2
        return
    with pytest.raises(steps.StepFailed, match=r"sudo apt-get install .* fio\n"):
        environment.install_system_packages(("fio",))
    assert commands == []


def test_packages_that_are_not_installed_are_missing() -> None:
    if not environment._can_make_environments() or shutil.which("dpkg-query") is None:
        pytest.skip("this is not Debian or Ubuntu")
    missing = environment._missing_packages(("libc6", "tencache-no-such-package"))
    assert missing == ["tencache-no-such-package"]


def test_the_documents_name_what_a_build_needs() -> None:
    text = (steps.ROOT / "docs" / "install.md").read_text()
    line = next(line for line in text.splitlines() if "apt-get install" in line)
    # ccache only saves time.
    assert {*line.split()} >= {*environment.BUILD_PACKAGES} - {"ccache"}
    assert "pip install -r requirements/build.txt" in text


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> environment.VirtualEnvironment:
    """A separate project with a virtual environment that looks complete."""
    (tmp_path / "requirements").mkdir()
    for name in ("torch-0.txt", "build.txt"):
        (tmp_path / "requirements" / name).write_text("torch\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for name in ("python", "uv"):
        (tmp_path / "env" / "bin" / name).touch()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "REQUIREMENTS", tmp_path / "requirements")
    monkeypatch.setattr(environment, "STAMPS", tmp_path / "stamps")
    monkeypatch.setattr(environment, "UV", tmp_path / "env" / "bin" / "uv")
    return environment.VirtualEnvironment(tmp_path / "env", "torch-0", ("build.txt",))


def test_an_environment_is_filled_once_for_each_content(
    commands: list[list[str]], project: environment.VirtualEnvironment
) -> None:
    environment.prepare(project)
    environment.prepare(project)
    assert len(commands) == 1
    (environment.REQUIREMENTS / "build.txt").write_text("torch\nninja\n")
    environment.prepare(project)
    environment.prepare(project)
    assert len(commands) == 2
    os.utime(project.folder / "pyvenv.cfg", (1, 1))  # as if it had been made anew
    environment.prepare(project)
    assert len(commands) == 3


def test_an_environment_that_is_not_there_is_made(
    commands: list[list[str]], project: environment.VirtualEnvironment
) -> None:
    other = dataclasses.replace(project, folder=project.folder.with_name("other"))
    environment.prepare(other)
    assert commands[0][1:] == ["-m", "venv", str(other.folder)]


@pytest.mark.parametrize("has_own_compiler", [True, False])
def test_warnings_end_no_build_with_a_compiler_of_the_users(
    commands: list[list[str]],
    project: environment.VirtualEnvironment,
    monkeypatch: pytest.MonkeyPatch,
    has_own_compiler: bool,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CXX", raising=False)
    if has_own_compiler:
        monkeypatch.setenv("CXX", "g++-15")
    for name in ("CMakeLists.txt", "pyproject.toml"):
        (environment.ROOT / name).touch()
    environment.install_package(project)
    environment.build_shim_suites(project)
    package, configure, _build = commands
    option = f"TENCACHE_WERROR={'OFF' if has_own_compiler else 'ON'}"
    assert f"cmake.define.{option}" in package
    assert f"-D{option}" in configure


def test_the_package_is_built_again_when_a_source_changes(
    commands: list[list[str]], project: environment.VirtualEnvironment
) -> None:
    for name in ("allocator/base/log.cpp", "python/tencache/__init__.py", "CMakeLists.txt"):
        source = environment.ROOT / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("1")
    (project.folder / "bin" / "tencache").touch()
    environment.install_package(project)
    environment.install_package(project)
    assert len(commands) == 1
    (environment.ROOT / "allocator/base/log.cpp").write_text("2")
    environment.install_package(project)
    assert len(commands) == 2
    (environment.ROOT / "allocator/base/new.cpp").write_text("3")
    environment.install_package(project)
    assert len(commands) == 3
