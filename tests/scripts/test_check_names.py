# SPDX-License-Identifier: Apache-2.0
"""check_names on made-up sources: it finds stale names and retired words, and accepts the rest."""

from pathlib import PurePosixPath

import pytest

import check_names

HEADER = """
// Seal::close is what a comment says, and defines nothing.
enum class Kind : uint8_t { kOpen, kShut };
class Base { public: void rest(); };
class LOCK("x") Door final : public Base {
 public:
  struct Hinge { int pin = 0; };
  bool close(const char* why = "}");
  Mutex mutex_;
};
using Gate = Door;
"""
SOURCES = [
    (PurePosixPath("allocator/door.h"), HEADER),
    (PurePosixPath("allocator/door.cpp"), "bool Door::close(const char*) { return Tensor().ok; }"),
    (PurePosixPath("notes.md"), "class Window { int pane; };"),
]


def problems(path: str, text: str) -> list[str]:
    check = check_names.check_names(check_names.Names(SOURCES))
    return [str(problem) for problem in check(PurePosixPath(path), text)]


@pytest.mark.parametrize(
    "name",
    [
        "Door::close",
        "Door::mutex_",
        "Door::rest",  # a member of its base
        "Door::~Door",
        "Door::Hinge::pin",
        "Gate::close",  # by another name
        "Kind::kShut",
        "tencache::Door::close",
        "Tensor::data_ptr",  # of a library that sources use
        "at::Window::pane",  # of a library, by its namespace
        "TORCH::thing",  # no class
    ],
)
def test_names_that_are_there_pass(name: str) -> None:
    assert problems("a.h", f"// As {name}() does.\n") == []
    assert problems("docs/a.md", f"As `{name}` does.\n") == []


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Door::open", "Door has no open"),
        ("Kind::kAjar", "Kind has no kAjar"),
        ("Gate::open", "Gate has no open"),
        ("Door::Hinge::bolt", "Hinge has no bolt"),
        ("tencache::Door::open", "Door has no open"),
        ("Window::pane", "no source has a Window"),
        ("Seal::close", "no source has a Seal"),
    ],
)
def test_stale_names_are_found(name: str, missing: str) -> None:
    stale = name.removeprefix("tencache::")
    for path, text in (
        ("a.h", f"int x;  // as {name}() does\n"),
        ("a.cpp", f"/* as {name} does */\n"),
        ("docs/a.md", f"As `{name}` does.\n"),
        ("a.py", f"# as {name} does\n"),
        ("CMakeLists.txt", f"  # as {name} does\n"),
    ):
        assert problems(path, text) == [f"{path}:1: names {stale}, and {missing}"]


def test_code_and_strings_are_the_compiler_s() -> None:
    assert problems("a.cpp", 'auto x = Door::open;\nauto y = "Door::open // Door::open";\n') == []
    assert problems("a.py", 'x = "Door::open"\n') == []


def test_what_a_header_introduces_is_there() -> None:
    check = check_names.check_introductions(check_names.Names(SOURCES))

    def found(path: str, sentence: str) -> list[str]:
        text = f"// SPDX-License-Identifier: x\n//\n// {sentence}\n// Portal: no introduction.\n"
        return [str(problem) for problem in check(PurePosixPath(path), text)]

    assert found("a.h", "Door: opens and closes.") == []
    assert found("a.h", "close, rest: what doors do.") == []
    assert found("a.h", "Checks of doors, as in a Portal: all.") == []
    assert found("a.cpp", "Portals: what they do.") == []
    assert found("a.h", "Door, Portal: open and close.") == [
        "a.h:3: introduces Portal, and no source has that"
    ]


def test_paths_in_documents() -> None:
    files = (
        "allocator/engine/gate/gate.h",
        "docs/a.md",
        "docs/b.md",
        "shim/hooks.cpp",
        "README.md",
    )
    check = check_names.check_paths(PurePosixPath(file) for file in files)

    def found(text: str) -> list[str]:
        return [str(problem) for problem in check(PurePosixPath("docs/a.md"), text)]

    assert (
        found("`engine/gate/gate`, `engine/gate/gate.h`, `allocator/engine/`, `shim/hooks`\n") == []
    )
    assert found("[b](b.md#there), [top](../README.md), [c](https://a.org/c.md), [d](#d)\n") == []
    assert found("`torch/nn.py`, `pread/pwrite`, `build/debug`\n") == []  # not ours
    assert found("`engine/portal.h`\n") == [
        "docs/a.md:1: names engine/portal.h, which is not there"
    ]
    assert found("\n`shim/door`\n") == ["docs/a.md:2: names shim/door, which is not there"]
    assert found("[c](c.md)\n") == ["docs/a.md:1: links to c.md, which is not there"]
    comment = list(
        check(PurePosixPath("a.h"), '#include "engine/x.h"  // see engine/portal.cpp.\n')
    )
    assert [str(problem) for problem in comment] == [
        "a.h:1: names engine/portal.cpp, which is not there"
    ]


def test_retired_words() -> None:
    check = check_names.check_retired({"Portal": "Door", "shut(": "close("})

    def found(path: str, text: str) -> list[str]:
        return [str(problem) for problem in check(PurePosixPath(path), text)]

    assert found("a.cpp", "int x;\nPortal portal;  // a Portal\n") == [
        "a.cpp:2: says Portal; today's word is Door",
        "a.cpp:2: says Portal; today's word is Door",
    ]
    assert found("docs/a.md", "`x.shut()` ends it.\n") == [
        "docs/a.md:1: says shut(; today's word is close("
    ]
    assert found("a.cpp", "Portals of a shut_portal(), shut\n") == []
    assert found("CHANGELOG.md", "Portal is Door now.\n") == []


def test_so_many() -> None:
    def found(path: str, text: str) -> list[str]:
        return [str(problem) for problem in check_names.check_so_many(PurePosixPath(path), text)]

    assert found("a.h", "int x;  // bytes. So much is kept.\n/// So many are tried.\n") == [
        "a.h:1: says So much; say what is counted, or: this much",
        "a.h:2: says So many; say what is counted, or: this many",
    ]
    assert found("a.py", "# So many fit.\n") == [
        "a.py:1: says So many; say what is counted, or: this many"
    ]
    assert found("a.h", '// There are so many that none fits.\nauto x = "So many";\n') == []
    assert found("docs/a.md", "So much for that.\n") == []


def test_begin_is_no_noun() -> None:
    def found(path: str, text: str) -> list[str]:
        return [str(problem) for problem in check_names.check_begin(PurePosixPath(path), text)]

    assert found("a.h", "int x;  // from the begin on\n") == [
        "a.h:1: says the begin: a begin is a start"
    ]
    assert found("docs/a.md", "It begins.\nAt each begin it waits.\n") == [
        "docs/a.md:2: says each begin: a begin is a start"
    ]
    assert found("a.cpp", "it = row.begin();  // ops begin here\n") == []


def test_no_retired_word_is_today_s() -> None:
    assert not set(check_names.RETIRED) & set(check_names.RETIRED.values())
    assert list(check_names.check_retired({})(PurePosixPath("a.h"), "any")) == []
