# SPDX-License-Identifier: Apache-2.0
"""wheels.py on made-up wheels: names, tags and contents; and what the package says it needs."""

import re
import zipfile
from pathlib import Path

import pytest

import wheels
from repository import ROOT

MINORS = ("2.11", "2.13")
NAME = f"tencache-0.1.0-py3-none-{wheels.POLICY}.whl"
CONTENT = {
    *(f"tencache/{name}" for name in wheels.libraries_of(MINORS)),
    *(f"tencache/{name}" for name in wheels.OTHER_FILES),
    *(f"tencache-0.1.0.dist-info/licenses/{name}" for name in wheels.LICENSES),
    "tencache-0.1.0.dist-info/METADATA",
    "tencache-0.1.0.dist-info/entry_points.txt",
}


def test_a_whole_wheel_has_no_problems() -> None:
    assert wheels.problems_in(NAME, CONTENT, MINORS) == []


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("tencache/libtencache_torch-2.13.so", "lacks tencache/libtencache_torch-2.13.so"),
        ("tencache/libtencache_torch_cuda-2.11-cu13.so", "libtencache_torch_cuda-2.11-cu13.so"),
        ("tencache/libtencache_guard.so", "lacks tencache/libtencache_guard.so"),
        ("tencache/libtencache_preload.so", "lacks tencache/libtencache_preload.so"),
        ("tencache/include/tencache.h", "lacks tencache/include/tencache.h"),
        ("tencache/_build_info.py", "lacks tencache/_build_info.py"),
        ("tencache/_page.html", "lacks tencache/_page.html"),
        ("tencache-0.1.0.dist-info/entry_points.txt", "lacks its entry points"),
        ("tencache-0.1.0.dist-info/licenses/LICENSE", "lacks LICENSE"),
        ("tencache-0.1.0.dist-info/licenses/licenses/xxhash.txt", "lacks licenses/xxhash.txt"),
    ],
)
def test_what_is_missing_is_named(missing: str, problem: str) -> None:
    (found,) = wheels.problems_in(NAME, CONTENT - {missing}, MINORS)
    assert problem in found


@pytest.mark.parametrize(
    "added",
    [
        "tencache/libtencache_torch-2.12.so",
        "tencache.libs/libstdc++-0123abcd.so.6.0.30",
        "tencache/liburing.so.2",
        "tests/test_a.py",
    ],
)
def test_what_does_not_belong_there_is_named(added: str) -> None:
    found = wheels.problems_in(NAME, CONTENT | {added}, MINORS)
    assert found
    assert all(added in problem for problem in found)


@pytest.mark.parametrize(
    "name",
    [
        "tencache-0.1.0-py3-none-linux_x86_64.whl",
        "tencache-0.1.0-py3-none-manylinux_2_36_x86_64.whl",
        f"tencache-0.1.0-cp311-cp311-{wheels.POLICY}.whl",
        "tencache-0.1.0-py3-none-any.whl",
    ],
)
def test_another_tag_is_a_problem(name: str) -> None:
    assert wheels.problems_in(name, CONTENT, MINORS) == [
        f"its tags are not py3-none-{wheels.POLICY}"
    ]


def test_a_new_wheel_replaces_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_wheel(_title: str, command: list[object], **_options: object) -> None:
        if "--wheel-dir" in command:
            folder = Path(str(command[command.index("--wheel-dir") + 1]))
            folder.mkdir(parents=True)
            with zipfile.ZipFile(folder / NAME, "w") as archive:
                for name in CONTENT:
                    archive.writestr(name, "")

    monkeypatch.setattr(wheels, "run", make_wheel)
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    monkeypatch.setattr(wheels, "_BUILD", tmp_path / "build")
    monkeypatch.setattr(wheels, "_torch_folder", lambda minor: tmp_path / minor)
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "tencache-0.0.9-py3-none-any.whl").touch()
    (dist / "other.whl").touch()
    wheels.build(MINORS, dist)
    assert {path.name for path in dist.iterdir()} == {NAME, "other.whl"}


def test_the_wheel_serves_every_torch_that_it_allows() -> None:
    (torch,) = re.findall(r'^  "(torch>.*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    oldest, newest = wheels.MINORS[0], wheels.MINORS[-1]
    too_new = f"2.{int(newest.split('.')[1]) + 1}"
    assert torch == f"torch>={oldest},<{too_new}"
    known = (ROOT / "cmake" / "torch.cmake").read_text()
    assert re.findall(r"set\(TENCACHE_(?:OLDEST|NEWEST)_TORCH ([\d.]+)\)", known) == [
        oldest,
        newest,
    ]
    numbers = [int(minor.split(".")[1]) for minor in wheels.MINORS]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_each_library_inside_has_its_licence() -> None:
    texts = {f"licenses/{path.name}": path.read_text() for path in (ROOT / "licenses").iterdir()}
    assert {"LICENSE", *texts} == {*wheels.LICENSES}
    for name, text in texts.items():
        assert "Copyright" in text, name
    declared = re.search(r"^license-files = (.*)$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert declared and declared[1] == '["LICENSE", "licenses/*.txt"]'


@pytest.mark.parametrize("minor", wheels.MINORS)
def test_each_torch_is_pinned(minor: str) -> None:
    assert re.fullmatch(rf"torch=={minor}\.\d+", wheels._requirement(minor))


def test_a_torch_of_an_environment_is_not_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def record(_title: str, command: list[str], **_options: object) -> None:
        words = [str(word) for word in command]
        commands.append(words)
        Path(words[words.index("--target") + 1]).mkdir(parents=True)

    monkeypatch.setattr(wheels, "run", record)
    monkeypatch.setattr(wheels, "_UNPACKED", tmp_path)
    for _ in range(2):
        assert wheels._torch_folder("2.12") == tmp_path / "2.12" / "torch"
    assert [command[-1] for command in commands] == [wheels._requirement("2.12")]
    (installed,) = wheels.MAIN.folder.glob("lib/python3*/site-packages/torch")
    assert wheels._torch_folder("2.11") == installed
