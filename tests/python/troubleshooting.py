# SPDX-License-Identifier: Apache-2.0
"""The messages of docs/troubleshooting.md, and whether a program's output has one.

Each message is a heading of the third level in backquotes, where "…" stands for any text of the
same line. Those below the heading "With GPUs" need a GPU, a real or an emulated one.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
_GPU_PART = "\n## With GPUs\n"


def messages(*, with_gpus: bool) -> list[str]:
    """The page's messages, in order: those that need a GPU, or all others."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(_GPU_PART) == 1
    headings = re.findall(r"(?m)^### (.*)$", text.split(_GPU_PART)[with_gpus])
    assert all(heading.startswith("`") and heading.endswith("`") for heading in headings)
    return [heading.strip("`") for heading in headings]


def has(output: str, message: str) -> bool:
    """Whether a line of the output says the message."""
    pattern = ".*".join(map(re.escape, message.split("…")))
    return re.search(pattern, output) is not None
