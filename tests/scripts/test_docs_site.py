# SPDX-License-Identifier: Apache-2.0
"""docs_site.py on made-up pages: what the site consists of, and what it finds wrong.

`make lint` builds the site itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from docs_site import (
    CONFIGURATION,
    ROOT,
    build,
    closure,
    foreign_loads,
    linked_files,
    misread_lists,
    pages_in,
)
from repository import source_files

PAGE = PurePosixPath("docs/a.md")


def test_the_navigation_names_every_document() -> None:
    named = {str(page) for page in pages_in(CONFIGURATION.read_text(encoding="utf-8"))}
    documents = {str(path) for path in source_files((".md",)) if path.parts[0] == "docs"}
    assert documents <= named
    assert {"README.md", "CHANGELOG.md", "benchmarks/README.md"} <= named


# The programs that pages show whole, without their first line, which is the license.
PROGRAMS = {
    "docs/containers.md": "Dockerfile",
    "docs/integrations.md": "examples/ray_train.py",
    "docs/lightning.md": "examples/lightning_logs.py",
    "docs/torchrun.md": "examples/distributed.py",
    "docs/trainer.md": "examples/trainer_logs.py",
}


def pages_of(*parts: str) -> Iterator[PurePosixPath]:
    """The pages in these parts of the navigation."""
    _, *pieces = re.split(r"(?m)^  - ([^:\n]+):\n", CONFIGURATION.read_text(encoding="utf-8"))
    bodies = dict(zip(pieces[::2], pieces[1::2], strict=True))
    for part in parts:
        yield from pages_in(bodies[part])


def test_pages_for_users_need_nothing_of_the_sources() -> None:
    """Whoever has installed the wheel has the site, and not what else the repository holds."""
    pages = list(pages_of("Start", "How to", "Reference"))
    assert PurePosixPath("docs/quickstart.md") in pages and len(pages) > 15
    sources = [
        f"{page} leads to {file}"
        for page in pages
        for file in linked_files(page, (ROOT / page).read_text(encoding="utf-8"))
        if file.suffix not in (".md", ".png", ".svg")
    ]
    assert sources == []


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_program_on_a_page_is_the_one_that_is_tested(page: str) -> None:
    _, program = (ROOT / PROGRAMS[page]).read_text(encoding="utf-8").split("\n", 1)
    block = f"\n{program.removeprefix('#').lstrip()}```\n"
    assert block in (ROOT / page).read_text(encoding="utf-8")


def test_a_page_brings_what_it_links_to() -> None:
    texts = {
        "docs/a.md": "[b](../b.md#part), [c](https://a.org/c.md), [d](#d), [gone](gone.md)",
        "b.md": "![picture](docs/picture.svg)\n[source](src/core.h) and [back](docs/a.md)",
        "docs/picture.svg": "",
        "src/core.h": "[never](never.md)",
        "never.md": "",
    }
    found = closure([PAGE], lambda path: texts.get(str(path)))
    assert [str(path) for path in found] == ["b.md", "docs/a.md", "docs/picture.svg", "src/core.h"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# A\n\n[b](b.md#there), [core](core.h)\n", ""),
        ("# A\n\n[gone](gone.md)\n", "gone.md"),
        ("# A\n\n[gone](gone.h)\n", "gone.h"),
        ("# A\n\n[b](b.md#nowhere)\n", "#nowhere"),
        ("# A\n\n[here](#nowhere)\n", "#nowhere"),
        ("# A\n\n[root](/b.md)\n", "/b.md"),
    ],
)
def test_links_that_lead_nowhere_are_found(tmp_path: Path, text: str, problem: str) -> None:
    pytest.importorskip("mkdocs", reason="the environment of the newest torch has no MkDocs")
    settings = CONFIGURATION.read_text(encoding="utf-8")
    validation = re.search(r"(?ms)^validation:\n.*?\n(?=\S)", settings)
    assert validation is not None
    (tmp_path / "docs").mkdir()
    for name, content in (("a.md", text), ("b.md", "# B\n\n## There\n"), ("core.h", "")):
        (tmp_path / "docs" / name).write_text(content)
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text(f"site_name: test\nnav: [a.md, b.md]\n{validation[0]}")
    found = build(configuration)
    assert problem in found if problem else not found, found


@pytest.mark.parametrize(
    "text",
    [
        "Text\n\n- one\n- two\n  goes on\n- three\n",
        "1. one\n    - within\n    - and\n2. two\n",
        "1. one:\n    1. within\n",
        "1. one\n\n    goes on\n\n2. two\n",
        "```\ntext\n- no list\n```\n",
        "Text with a dash - here\nand -1 there\n",
        "# Heading\n\n10. ten\n    goes on\n11. eleven\n",
    ],
)
def test_lists_that_the_site_shows_as_meant(text: str) -> None:
    assert list(misread_lists(PAGE, text)) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Text\n- one\n", 2),
        ("1. one\n   - within\n", 2),
        ("- a\n  1. b\n", 2),
        ("Text:\n1. a\n", 2),
        ("1. a\n\n    goes on\n2. b\n", 4),
        ("Text:\n    - a\n", 2),
    ],
)
def test_lists_that_the_site_would_misread(text: str, line: int) -> None:
    (problem,) = misread_lists(PAGE, text)
    assert problem.line == line


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.org/a.js"></script>',
        '<link rel="stylesheet" href="//cdn.org/a.css">',
        '<link rel="preload stylesheet" href="https://cdn.org/a.css">',
        '<img alt="" src="http://cdn.org/a.png">',
        "<style>@font-face { src: url('https://cdn.org/a.woff2') }</style>",
        '<style>@import "https://cdn.org/a.css";</style>',
        '<p style="background: url(https://cdn.org/a.png)">',
    ],
)
def test_what_another_server_would_have_to_give_is_found(html: str) -> None:
    assert len(foreign_loads(f"<!doctype html><body>{html}</body>")) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<script src="../assets/a.js"></script>',
        '<a href="https://a.org">elsewhere</a>',
        '<link rel="canonical" href="https://a.org/page">',
        "<p>url(https://a.org/a.css)</p>",
        "<style>body { background: url(data:image/svg+xml;base64,AA) }</style>",
    ],
)
def test_what_loads_nothing_is_left_alone(html: str) -> None:
    assert foreign_loads(f"<!doctype html><body>{html}</body>") == []
