# SPDX-License-Identifier: Apache-2.0
"""benchmarks/disk_tier.py: huge pages where the kernel has them."""

from pathlib import Path

import disk_tier
import pytest


def test_huge_pages_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "nr_hugepages"
    setting.write_text("3")
    monkeypatch.setattr(disk_tier, "HUGE_PAGES", setting)
    with disk_tier.reserved_huge_pages(2 * disk_tier.HUGE_PAGE_BYTES) as has_them:
        assert has_them
        assert setting.read_text() == "5"
    assert setting.read_text() == "3"


def test_a_kernel_without_huge_pages_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_tier, "HUGE_PAGES", tmp_path / "absent" / "nr_hugepages")
    with disk_tier.reserved_huge_pages(disk_tier.HUGE_PAGE_BYTES) as has_them:
        assert not has_them
