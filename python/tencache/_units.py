# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and rates as people read them; everywhere else bytes and seconds are the units.

These are pure functions. This module imports nothing of the package. Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence


def format_bytes(count: float) -> str:
    """ "1.50 GiB", "640 MiB", "12 B": powers of 1024 and three digits, as the core writes them."""
    return _scaled(count, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), base=1024)


def format_seconds(seconds: float) -> str:
    """ "0.52 s", "41.3 s", "312 s"."""
    decimals = 2 if seconds < 9.995 else 1 if seconds < 99.95 else 0
    return f"{seconds:.{decimals}f} s"


def option_bytes(count: int) -> str:
    """A size as an option takes it, rounded up to whole MiB."""
    return f"{-(-count // (1 << 20))}MiB"


def format_time(ns: float) -> str:
    """ "230 ns", "1.52 ms", "41.3 s": three digits."""
    return _scaled(ns, ("ns", "us", "ms", "s"))


def format_rate(bytes_per_s: float) -> str:
    """ "2.10 GB/s", "800 MB/s": powers of 1000, as disks and links are sold."""
    return _scaled(bytes_per_s, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))


def _scaled(value: float, units: Sequence[str], base: int = 1000) -> str:
    unit = 0
    while value >= base - 0.5 and unit + 1 < len(units):
        value, unit = value / base, unit + 1
    decimals = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f} {units[unit]}"
