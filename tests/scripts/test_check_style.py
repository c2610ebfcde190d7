# SPDX-License-Identifier: Apache-2.0
"""check_style on made-up sources: each rule finds its violation and accepts the limit."""

from pathlib import PurePosixPath

import pytest

import check_style

HEADER = "// " + check_style.SPDX + "\n"
LATER = "TO" + "DO"


def problems(path: str, text: str) -> list[str]:
    return [
        str(problem) for check in check_style.CHECKS for problem in check(PurePosixPath(path), text)
    ]


def function(lines: int, head: str = "int f()") -> str:
    return head + " {\n" + "  g();\n" * (lines - 2) + "}\n"


def test_a_clean_source_passes() -> None:
    assert problems("allocator/base/a.cpp", HEADER + function(60)) == []


def test_the_licence_line_comes_first() -> None:
    assert problems("a.cpp", "int x;\n") == [
        f"a.cpp:1: begins without the line `{check_style.SPDX}`"
    ]
    assert "SPDX" in problems("CMakeLists.txt", "project(x)\n")[0]
    assert "SPDX" in problems("a.py", "x = 1\n")[0]
    assert problems("a.py", f"#!/usr/bin/env python3\n# {check_style.SPDX}\n") == []
    assert problems("empty/__init__.py", "") == []
    assert problems("notes.md", "text\n") == []


def test_columns() -> None:
    assert problems("a.cpp", HEADER + "x" * 100 + "\n") == []
    assert problems("a.cpp", HEADER + "x" * 101 + "\n") == ["a.cpp:2: has 101 columns; 100 at most"]


def test_columns_of_documents() -> None:
    assert problems("docs/a.md", "word " * 20 + "\n") == []
    assert problems("docs/a.md", "word " * 21 + "\n") == [
        "docs/a.md:1: has 105 columns; 100 at most"
    ]
    row, link = "| a | " + "b " * 60 + "|", "- [a name](https://a.org/" + "b" * 100 + ")."
    assert problems("docs/a.md", f"{row}\n{link}\n!{link[2:]}\n") == []
    assert problems("docs/a.md", f"see {link}\n") != []
    assert problems("benchmarks/results/a.md", "word " * 21 + "\n") == []


def test_lines_of_a_file() -> None:
    assert problems("a.cpp", HEADER + "int x;\n" * 599) == []
    assert "has 601 lines" in problems("a.cpp", HEADER + "int x;\n" * 600)[0]


def test_nothing_is_left_for_later() -> None:
    assert problems("a.h", HEADER + f"// {LATER}: more\n") == [
        f"a.h:2: says {LATER}; do it, or drop it"
    ]
    assert problems("a.h", HEADER + f"// {LATER.lower()} and {LATER}S are words\n") == []


def test_paths_of_one_machine() -> None:
    head = f"# {check_style.SPDX}\n"
    folder = "/" + "home/me"
    assert "path of one machine" in problems("a.py", f"{head}x = '{folder}/x'\n")[0]
    assert problems("a.py", f"{head}x = 'https://a.org{folder}/x'\n") == []


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("int f()", "f"),
        ("void Heap::free(void* p) noexcept", "Heap::free"),
        ("Heap::Heap(int a) : a_{a}, b_(1)", "Heap::Heap"),
        ("Heap::Heap(int a) : a_(a), b_{1}", "Heap::Heap"),
        ("struct stat g(int fd)", "g"),
        ("template <typename T>\nauto h(T t) -> std::vector<T>", "h"),
        ("TEST(HeapTest, GivesBack)", "TEST(HeapTest, GivesBack)"),
        ("namespace a { class B { void f(int x = 1) const", "f"),
        ("class LOCK(     ) M { M() = default; void f(char c = '}')", "f"),
        ("const int table[] = {1, 2};\nenum class E : int { kA, kB };\nint f()", "f"),
        ('#define OPEN {\nint f(const char* s = "{")', "f"),
    ],
)
def test_long_functions_of_cpp_are_found(head: str, name: str) -> None:
    body = function(61, head)
    found = check_style.cpp_functions(body)
    assert [item[0] for item in found][-1] == name
    assert [problem for problem in problems("a.cpp", HEADER + body) if f"{name} has" in problem]


def test_lines_between_functions_do_not_count() -> None:
    text = function(60) + "\n// text { text\n" * 40 + "struct S {\n" + "  int x;\n" * 90 + "};\n"
    assert check_style.cpp_functions(text) == [("f", 1, 60)]


def test_long_functions_of_python_are_found() -> None:
    head = f"# {check_style.SPDX}\ndef f():\n"
    assert problems("a.py", head + "    g()\n" * 59) == []
    assert problems("a.py", head + "    g()\n" * 60) == ["a.py:2: f has 61 lines; 60 at most"]
