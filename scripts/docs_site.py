#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the site of documents with MkDocs, as mkdocs.yml describes it.

The documents are written for two readers: whoever opens them in the repository, and the site. So
they link as the repository lies. This program copies the pages that mkdocs.yml names, and all that
they link to, into a folder where they lie the same way, and has MkDocs build the site from there.
MkDocs, in strict mode, then finds links and headings that are not there. Two things it would not
find are checked here: lists that the site would show as one paragraph, and built pages that load
something from another server.

Usage: docs_site.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

from repository import Problem, source_files

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "mkdocs.yml"
PAGES = ROOT / "build" / "docs" / "pages"  # as mkdocs.yml says
SITE = ROOT / "build" / "docs" / "site"

_PAGE = re.compile(r"(?m)^\s+- [^:]+: (\S+\.md)$")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)")
_FENCE = re.compile(r"\s*```")
_ITEM = re.compile(r"(?P<indent> *)(?:[-*]|\d+\.) ")
# What a browser loads by itself: tags, each with the attribute that has the address.
_LOADING = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
_LOADED_LINKS = {"icon", "manifest", "modulepreload", "preload", "prefetch", "stylesheet"}
_ADDRESS_IN_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s;]+)")


def pages_in(configuration: str) -> list[PurePosixPath]:
    """The pages that the navigation of mkdocs.yml names, in order."""
    return [PurePosixPath(path) for path in _PAGE.findall(configuration)]


def linked_files(page: PurePosixPath, text: str) -> Iterator[PurePosixPath]:
    """The files that a page links to or shows, relative to the root."""
    for target in _LINK.findall(text):
        yield PurePosixPath(os.path.normpath(page.parent / target))


def closure(
    pages: Iterable[PurePosixPath], read: Callable[[PurePosixPath], str | None]
) -> list[PurePosixPath]:
    """The pages and all files that they lead to; `read` gives a file's text, or None if there is
    no such file. Files that are not there are left to MkDocs, which names the page with the link.
    """
    found: dict[PurePosixPath, None] = {}
    left = list(pages)
    while left:
        path = left.pop()
        text = None if path in found else read(path)
        if text is None:
            continue
        found[path] = None
        if path.suffix == ".md":
            left.extend(linked_files(path, text))
    return sorted(found)


def misread_lists(page: PurePosixPath, text: str) -> Iterator[Problem]:
    """Lists that GitHub shows as meant and MkDocs does not."""
    is_code = False
    first = ""  # the first line of this block; empty lines lie between blocks
    for number, line in enumerate(text.splitlines(), start=1):
        if _FENCE.match(line):
            is_code = not is_code
        first = first or line.rstrip()
        item = None if is_code else _ITEM.match(line)
        if item is not None and len(item["indent"]) % 4:
            yield Problem(str(page), number, "indent a list in a list by 4 spaces")
        elif item is not None and not _ITEM.match(first):
            yield Problem(str(page), number, "leave an empty line before this item of a list")
        if not line.strip():
            first = ""


class _Loads(HTMLParser):
    """Collects the addresses of other servers from which a page loads something by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._is_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._is_style = tag == "style"
        self.addresses += _ADDRESS_IN_STYLE.findall(values.get("style", ""))
        address = values.get(_LOADING.get(tag, ""), "")
        if tag == "link" and not _LOADED_LINKS & set(values.get("rel", "").split()):
            return
        if re.match(r"(https?:)?//", address):
            self.addresses.append(address)

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.addresses += _ADDRESS_IN_STYLE.findall(data)
            self._is_style = False


def foreign_loads(html: str) -> list[str]:
    """The addresses of other servers from which the page would load something when it is shown."""
    parser = _Loads()
    parser.feed(html)
    return parser.addresses


def stage() -> list[Problem]:
    """Copies what the site consists of to PAGES."""
    known = set(source_files())

    def read(path: PurePosixPath) -> str | None:
        if path not in known:
            return None
        return (ROOT / path).read_text(encoding="utf-8") if path.suffix == ".md" else ""

    problems: list[Problem] = []
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in closure(pages_in(CONFIGURATION.read_text(encoding="utf-8")), read):
        (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, PAGES / path)
        if path.suffix == ".md":
            problems += misread_lists(path, (ROOT / path).read_text(encoding="utf-8"))
    return problems


def build(configuration: Path) -> str:
    """Builds the site; returns what MkDocs finds wrong, or an empty text."""
    # With --quiet, MkDocs would not count its warnings, so that --strict would have no effect.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"],
        cwd=configuration.parent,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement of the theme's
    )
    return built.stdout + built.stderr if built.returncode != 0 else ""


def main() -> int:
    problems = stage()
    for problem in problems:
        print(problem)
    if found := build(CONFIGURATION):
        print(found)
        return 1
    loads = 0
    for page in sorted(SITE.rglob("*.html")):
        for address in foreign_loads(page.read_text(encoding="utf-8")):
            print(f"{page.relative_to(ROOT)}: loads {address}")
            loads += 1
    if problems or loads:
        return 1
    print(f"the documents are built: {(SITE / 'index.html').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
