# SPDX-License-Identifier: Apache-2.0
"""The preload library: Python programs train under it as under `tencache run`, and programs that
use no torch do not notice it. C++ programs are in test_cpp.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Finished, run_command

from tencache import _library, _preload

pytestmark = pytest.mark.any_torch

PRELOAD = _library.preload_path()
PRELOADED = {"LD_PRELOAD": str(PRELOAD)}
CORE = "libtencache.so"
NOBODY = 65534

# Parameters, gradients and Adam's state take 96 MiB.
TRAIN = """
import hashlib
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
for parameter in model.parameters():
    print(hashlib.sha256(parameter.detach().clone().numpy().tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text(TRAIN, encoding="utf-8")
    return program


@pytest.fixture(scope="module")
def stock(train: Path) -> str:
    done = run_command([sys.executable, str(train)], cwd=train.parent, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("budget_mib", "command"),
    [
        (512, [sys.executable]),
        (56, [sys.executable]),
        # The shell uses no torch, and its child inherits the preload library.
        (56, ["sh", "-c", f'{sys.executable} "$@"; exit $?', "sh"]),
    ],
    ids=["fits", "half", "half-by-a-shell"],
)
def test_a_python_program_trains_under_its_budget(
    train: Path, stock: str, tmp_path: Path, budget_mib: int, command: list[str]
) -> None:
    variables = {
        **PRELOADED,
        "OMP_NUM_THREADS": "1",
        "TENCACHE_DEVICE_MEMORY": f"{budget_mib}MiB",
        "TENCACHE_STATS": str(tmp_path / "stats.json"),
    }
    done = run_command([*command, str(train)], cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == stock
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["over_budget"]["events"] == 0
    assert stats["peak"]["device"] <= budget_mib << 20
    assert (stats["bytes"]["fetched"] > 0) == (budget_mib < 96)


def maps(command: list[str], folder: Path) -> str:
    """The mappings that a program writes to stdout; it must write nothing to stderr."""
    done = run_command(command, cwd=folder, env=PRELOADED)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["cat", "/proc/self/maps"],
        ["sh", "-c", "exec cat /proc/self/maps"],
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
    ],
    ids=["program", "shell", "python"],
)
def test_a_program_without_torch_loads_nothing_of_ours(command: list[str], tmp_path: Path) -> None:
    written = maps(command, tmp_path)
    assert PRELOAD.name in written
    assert CORE not in written


def test_a_static_program_runs_as_ever(tmp_path: Path) -> None:
    source, program = tmp_path / "hello.cpp", tmp_path / "hello"
    source.write_text('#include <cstdio>\nint main() { std::puts("hello"); return 3; }\n')
    subprocess.run(["g++", "-static", "-o", program, source], check=True)
    done = run_command([str(program)], cwd=tmp_path, env=PRELOADED)
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes set-uid programs for others")
def test_a_set_uid_program_is_left_alone(open_folder: Path) -> None:
    if os.statvfs(open_folder).f_flag & os.ST_NOSUID:
        pytest.skip("the temporary folder allows no set-uid programs")
    library = open_folder / PRELOAD.name
    shutil.copy(PRELOAD, library)
    seen = {}
    for mode in (0o755, 0o4755):
        program = open_folder / f"cat-{mode:o}"
        shutil.copy("/bin/cat", program)
        program.chmod(mode)
        done = subprocess.run(
            [program, "/proc/self/maps"],
            env={"LD_PRELOAD": str(library)},
            user=NOBODY,
            group=NOBODY,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        seen[mode] = PRELOAD.name in done.stdout
    assert seen == {0o755: True, 0o4755: False}


@pytest.mark.parametrize(
    ("code", "variables", "status"),
    [
        ("import torch", {}, 2),
        ("import torch", {"TENCACHE": "0"}, 0),
        ("import torchgen", {}, 0),
        ("import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '1'; import torch", {}, 0),
    ],
    ids=["torch", "switched-off", "no-torch", "repaired"],
)
def test_torch_that_loads_no_extensions_is_refused(
    run_python: Callable[..., Finished], code: str, variables: dict[str, str], status: int
) -> None:
    variables = {
        **PRELOADED,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TENCACHE_QUIET": "1",
    } | variables
    done = run_python(code, "print('imported')", env=variables, status=status)
    assert ("TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr) == (status != 0)
    assert ("imported" in done.stdout) == (status == 0)


@pytest.mark.parametrize(("value", "is_enabled"), [("0", False), ("", False), ("on", True)])
def test_the_switch_counts(
    run_python: Callable[..., Finished], value: str, is_enabled: bool
) -> None:
    run_python(
        f"import torch, tencache\nassert tencache.is_enabled() is {is_enabled}",
        env={**PRELOADED, "TENCACHE": value, "TENCACHE_QUIET": "1"},
    )


@pytest.mark.parametrize(
    ("variables", "asker", "remedy"),
    [
        ({}, "LD_PRELOAD", "Set TENCACHE=0 to run"),
        ({"TENCACHE": "1"}, "TENCACHE", "Unset TENCACHE, or set TENCACHE=0, to run"),
    ],
)
def test_an_error_names_what_the_user_has_set(
    run_python: Callable[..., Finished], variables: dict[str, str], asker: str, remedy: str
) -> None:
    variables = {**PRELOADED, "TENCACHE_DEVICE_MEMORY": "lots", **variables}
    done = run_python("import torch", env=variables, status=2)
    assert 'does not take the value "lots"' in done.stderr
    assert f"ends here, since {asker} asked for tencache and it cannot start. {remedy}" in (
        done.stderr
    )


# ---- the commands ------------------------------------------------------------------------------

GUARD = Path("/opt/tencache/libtencache_guard.so")
LIBRARY = Path("/opt/tencache/libtencache_preload.so")
CUDA = {"TENCACHE_BACKEND": "cuda"}


@pytest.mark.parametrize(
    ("variables", "guard", "expected"),
    [
        ({"TENCACHE_BACKEND": "cpu"}, GUARD, str(LIBRARY)),
        (CUDA, GUARD, f"{GUARD}:{LIBRARY}"),
        (CUDA, None, str(LIBRARY)),
        ({**CUDA, "TENCACHE_LAUNCH_GUARD": "off"}, GUARD, str(LIBRARY)),
    ],
)
def test_programs_on_gpus_get_the_guard_too(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], guard: Path | None, expected: str
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    _library.core().read_environment()
    assert _preload.value(_library.core(), guard, LIBRARY) == expected


@pytest.mark.parametrize("folder", ["/opt/my tencache", "/opt/ten:cache"])
def test_a_path_that_cannot_be_preloaded_is_refused(folder: str) -> None:
    _library.core().read_environment()
    with pytest.raises(_library.TencacheError, match="a space or a colon"):
        _preload.value(_library.core(), None, Path(folder) / PRELOAD.name)


def test_the_launcher_goes_on_without_such_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    environment: dict[str, str] = {}
    _preload.add_preload(environment, Path("/opt/my tencache") / PRELOAD.name)
    assert environment == {}
    assert "/opt/my tencache" in capsys.readouterr().err


def test_the_command_prints_the_library_alone(run_tencache: Callable[..., Finished]) -> None:
    done = run_tencache("preload", env={"TENCACHE_BACKEND": "cpu"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{PRELOAD}\n", "")


def test_a_wrong_option_is_told_by_the_command(run_tencache: Callable[..., Finished]) -> None:
    done = run_tencache("preload", env={"TENCACHE_DEVICE_MEMORY": "much"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert "much" in done.stderr


@pytest.mark.parametrize("is_python", [True, False])
def test_the_launcher_preloads_it_into_what_is_no_python(
    run_tencache: Callable[..., Finished], is_python: bool
) -> None:
    script = "import os; print(os.environ.get('LD_PRELOAD', ''))"
    command = [sys.executable, "-c", script] if is_python else ["sh", "-c", "echo $LD_PRELOAD"]
    done = run_tencache("run", "--backend", "cpu", "--", *command)
    assert done.stdout.strip() == ("" if is_python else str(PRELOAD))
