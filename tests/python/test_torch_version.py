# SPDX-License-Identifier: Apache-2.0
"""Which library is taken for which torch, and what a user reads whose torch has none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tencache import TencacheError, _build_info, _library, _torch_version
from tencache._torch_version import TorchVersion

pytestmark = pytest.mark.any_torch

WHEEL = {f"2.{minor}": f"2.{minor}.0+cu130" for minor in range(11, 16)}
WHEEL_CUDA = {f"{minor}-cu13": text for minor, text in WHEEL.items()}


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with libraries for every known torch."""
    monkeypatch.setattr(_build_info, "KNOWN_TORCH", ("2.11", "2.15"))
    monkeypatch.setattr(_build_info, "TORCH_SHIMS", WHEEL)
    monkeypatch.setattr(_build_info, "CUDA_SHIMS", WHEEL_CUDA)


@pytest.fixture
def source_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was built against one torch."""
    monkeypatch.setattr(_build_info, "KNOWN_TORCH", ("2.11", "2.15"))
    monkeypatch.setattr(_build_info, "TORCH_SHIMS", {"2.13": "2.13.0+cpu"})
    monkeypatch.setattr(_build_info, "CUDA_SHIMS", {})


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("2.11.0", "2.11"),
        ("2.11.1", "2.11"),
        ("2.15.0+cpu", "2.15"),
        ("2.13.2+cu130", "2.13"),
        ("2.12.0a0+ebedce2.nv26", "2.12"),
        ("2.14.0.dev20261001+cu132", "2.14"),
    ],
)
@pytest.mark.usefixtures("wheel")
def test_patch_releases_and_local_tags_are_accepted(text: str, minor: str) -> None:
    version = TorchVersion(text, None)
    assert version.minor == minor
    assert _torch_version.why_no_shim(version) is None


@pytest.mark.parametrize("text", ["2.10.1+cu128", "1.13.0", "2.2.0"])
@pytest.mark.usefixtures("wheel")
def test_a_torch_that_is_too_old_gets_the_list(text: str) -> None:
    message = _torch_version.why_no_shim(TorchVersion(text, None))
    assert message == (
        "This tencache supports torch 2.11, 2.12, 2.13, 2.14 and 2.15, but torch "
        f"{text} is installed here, which is too old. Please install a torch that is supported: "
        "`pip install 'torch==2.15.*'`."
    )


@pytest.mark.parametrize("text", ["2.16.0+cu132", "2.100.0", "3.0.0"])
@pytest.mark.usefixtures("wheel")
def test_a_torch_that_is_too_new_gets_the_list(text: str) -> None:
    message = _torch_version.why_no_shim(TorchVersion(text, None))
    assert message is not None
    for part in (
        "2.11, 2.12, 2.13, 2.14 and 2.15",
        f"torch {text} is installed here, which is too new",
        "pip install 'torch==2.15.*'",
        "newer tencache",
    ):
        assert part in message


@pytest.mark.usefixtures("source_build")
def test_a_build_from_source_accepts_its_minor_version_alone() -> None:
    assert _torch_version.why_no_shim(TorchVersion("2.13.1+cu130", "13.0")) is None
    message = _torch_version.why_no_shim(TorchVersion("2.12.0+cu130", "13.0"))
    assert message is not None
    for part in (
        "This tencache supports torch 2.13, but torch 2.12.0+cu130 is installed here",
        "built from source against torch 2.13.0+cpu alone",
        _torch_version.REBUILD_COMMAND,
        "wheel, which supports torch 2.11 to 2.15",
        "pip install 'torch==2.13.*'",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "cuda", "name"),
    [
        ("2.11.0+cu130", "13.0", "libtencache_torch_cuda-2.11-cu13.so"),
        ("2.15.1+cu132", "13.2", "libtencache_torch_cuda-2.15-cu13.so"),
        ("2.12.0", "13.4", "libtencache_torch_cuda-2.12-cu13.so"),
    ],
)
@pytest.mark.usefixtures("wheel")
def test_the_library_for_gpu_memory_goes_by_cudas_major(text: str, cuda: str, name: str) -> None:
    assert _library.cuda_shim_path(TorchVersion(text, cuda)).name == name


@pytest.mark.usefixtures("wheel")
def test_another_major_of_cuda_is_refused_with_both() -> None:
    version = TorchVersion("2.13.0+cu126", "12.6")
    assert _torch_version.why_no_shim(version) is None  # its other memory is served
    with pytest.raises(TencacheError) as refusal:
        _library.cuda_shim_path(version)
    for part in ("torch 2.13.0+cu126", "CUDA 12.6", "CUDA 13 only", "'torch==2.13.*'"):
        assert part in str(refusal.value)


@pytest.mark.usefixtures("source_build")
def test_a_build_without_cuda_says_what_was_missing() -> None:
    with pytest.raises(TencacheError, match="CUDA's headers or libraries were missing") as refusal:
        _library.cuda_shim_path(TorchVersion("2.13.0+cu130", "13.0"))
    assert str(refusal.value).endswith(f"`{_torch_version.REBUILD_COMMAND}`.")


@pytest.mark.usefixtures("wheel")
def test_no_library_is_loaded_for_a_torch_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise AssertionError(f"{name} was loaded")

    monkeypatch.setattr(_library, "_load", fail)
    for load in (_library.shim, _library.cuda_shim):
        with pytest.raises(TencacheError, match="too new"):
            load(TorchVersion("2.16.0", "13.0"))


def test_the_running_torch_tells_both_its_versions() -> None:
    torch = SimpleNamespace(__version__="2.11.1+cu130", version=SimpleNamespace(cuda="13.0"))
    assert _torch_version.running(torch) == TorchVersion("2.11.1+cu130", "13.0")


def test_what_is_installed_is_read_without_importing_it() -> None:
    import torch

    assert _torch_version.installed() == _torch_version.running(torch)


def test_the_package_holds_the_libraries_that_it_lists() -> None:
    names = [f"libtencache_torch-{minor}.so" for minor in _build_info.TORCH_SHIMS]
    names += [f"libtencache_torch_cuda-{key}.so" for key in _build_info.CUDA_SHIMS]
    found = sorted(path.name for path in _library._FOLDER.glob("libtencache_torch*.so"))
    assert found == sorted(names)
    assert _torch_version.supported() == list(_build_info.TORCH_SHIMS)
