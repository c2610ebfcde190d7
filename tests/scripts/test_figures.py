# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/ match the sources: states and their arrows, threads, and layers.

A figure is XML. Its texts have classes that say what they name ("state", "thread", "layer"); the
title of an arrow says which one it is. The tests compare each set of names with its header, calls
or table, in both directions.
"""

import re
import xml.etree.ElementTree as ElementTree

import check_layers
from repository import ROOT, source_files, without_comments

SVG = "{http://www.w3.org/2000/svg}"
EXTENT = (ROOT / "allocator/memory/extent.h").read_text()
EXTENT_WORD = (ROOT / "allocator/memory/extent_word.h").read_text()
Arrow = tuple[str, str, str]


def figure(name: str) -> ElementTree.Element:
    return ElementTree.parse(ROOT / "docs" / name).getroot()


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    """The texts of a class, from the top of the figure to its bottom."""
    found = [text for text in root.iter(f"{SVG}text") if kind in text.get("class", "").split()]
    found.sort(key=lambda text: float(text.get("y", "0")))
    return [text.text or "" for text in found]


def arrows(line: str) -> set[Arrow]:
    """(from, method, to) of each arrow in a line like `A, B --x--> C --y--> D      E --z--> F`."""
    found = set()
    for chain in re.split(r"\s{4,}", line):
        parts = [part.strip() for part in re.split(r"--(\w+)-->", chain)]
        for place in range(0, len(parts) - 2, 2):
            for state in parts[place].split(","):
                target = re.split(r"\s{2,}|\(", parts[place + 2])[0]
                found.add((state.strip(), parts[place + 1], target.strip()))
    return found


def test_states() -> None:
    body = re.search(r"enum class ExtentState[^{]*\{(.*?)\}", EXTENT_WORD, re.DOTALL)
    assert body
    states = re.findall(r"\bk(\w+)", body[1])
    assert len(states) > 5
    assert sorted(texts(figure("states.svg"), "state")) == sorted(states)


def test_arrows_between_states() -> None:
    header = {arrow for line in EXTENT.splitlines() for arrow in arrows(line.removeprefix("//"))}
    titles = [title.text or "" for title in figure("states.svg").iter(f"{SVG}title")]
    drawn = {arrow for title in titles for arrow in arrows(title)}
    assert len(drawn) == len(titles)
    assert drawn == header
    root = figure("states.svg")
    assert {state for arrow in drawn for state in (arrow[0], arrow[2])} == {
        *texts(root, "state"),
        *texts(root, "substate"),
    }
    for method in {method for _, method, _ in drawn}:
        assert re.search(rf"\b{method}\(", without_comments(EXTENT)), f"Extent has no {method}()"


def test_threads() -> None:
    started: set[str] = set()
    for path in source_files((".cpp", ".h")):
        if path.parts[0] in ("allocator", "shim", "guard", "preload"):
            code = without_comments((ROOT / path).read_text(), keep_strings=True)
            started.update(re.findall(r'start_service_thread\(\s*"([^"]+)"', code))
    assert started
    assert sorted(texts(figure("threads.svg"), "thread")) == sorted(started)


def test_layers() -> None:
    root = figure("layers.svg")
    assert texts(root, "layer") == list(reversed(check_layers.LAYERS))
    headers = {name for text in texts(root, "header") for name in text.split(", ")}
    assert headers == {*check_layers.CORE_HEADERS, check_layers.GUARD_HEADER}


def test_nothing_is_drawn_outside_of_its_figure() -> None:
    for name in ("states.svg", "threads.svg", "layers.svg"):
        root = figure(name)
        _, _, width, height = (float(number) for number in root.get("viewBox", "").split())
        for text in root.iter(f"{SVG}text"):
            assert 0 < float(text.get("x", "-1")) < width
            assert 0 < float(text.get("y", "-1")) < height


def test_arrows_are_read_from_text() -> None:
    assert arrows(" A, B --x--> C --y--> D      E --z--> F   (cuda)") == {
        ("A", "x", "C"),
        ("B", "x", "C"),
        ("C", "y", "D"),
        ("E", "z", "F"),
    }
