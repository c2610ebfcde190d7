# SPDX-License-Identifier: Apache-2.0
"""What lies below one GPU in a prediction: the link, host memory and the disk, with their speeds.

Where several GPUs of one machine run the period at the same time (`tencache plan --gpus`), each has
a link of its own. All share one host memory and one disk. Each GPU gets an even part of both: every
rank's default for host memory is such a part (default_host_budget() of the core), and ranks that do
the same need the disk in the same moments. Nothing makes them take turns, so no GPU is given more
of the disk than its part.

Units: bytes and bytes per second. Pure functions; threads: any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tencache._library import OptionError, TencacheError, core
from tencache._period_file import Period
from tencache._units import format_bytes, format_rate, option_bytes

GPUS_MAX = 1024
_HOST_HEADROOM = "1/16"  # kHostHeadroomShare of the core


def parse_rate(text: str) -> float:
    """Bytes per second of "5GB/s", "800 MiB/s"; raises OptionError for all else, also for bits."""
    if re.search(r"[KMGTP]i?b", text):
        raise OptionError(f"{text!r} counts bits: write it in bytes, as 5GB/s or 800MB/s.")
    try:
        rate = core().parse_bytes(re.sub(r"\s*/\s*s\s*$", "", text))
    except OptionError:
        rate = 0
    if rate <= 0:
        raise OptionError(f"{text!r} is not a speed: write it as 5GB/s or 800MB/s.")
    return float(rate)


def parse_gpus(text: str) -> int:
    """The number that "8" says; raises OptionError if no machine has that many GPUs."""
    count = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not 1 <= count <= GPUS_MAX:
        raise OptionError(
            f"{text!r} is not a number of GPUs: write a whole number from 1 to {GPUS_MAX}, as in 8."
        )
    return count


@dataclass(frozen=True)
class Given:
    """What a command was told of the machine; None: nothing.

    Links are those of one GPU. Disk and host memory are the machine's, for all GPUs together.
    """

    disk_read: float | None = None
    disk_write: float | None = None
    link_read: float | None = None
    link_write: float | None = None
    is_half_duplex: bool = False
    host_bytes: int = 0
    gpus: int = 1


@dataclass(frozen=True)
class Pipe:
    """The tiers below one GPU: how fast bytes come and go, and whether they take turns.

    With host memory these are the speeds of the link to it, and the disk has its own. Without it (0
    bytes) there is one tier. Of what several GPUs share this is one GPU's part.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    is_half_duplex: bool = False
    host_bytes: int = 0
    disk_read_bytes_per_s: float = 0
    disk_write_bytes_per_s: float = 0
    gpus: int = 1

    @staticmethod
    def of(period: Period, given: Given) -> Pipe:
        """The given disk, else the recording's, behind the link if one is given.

        Where both speeds of the disk are given, whether they are half duplex is given, too; else a
        recording may say so. With host memory all speeds must be given: a recording knows only one
        tier's. For several GPUs those of the disk must be given: each GPU gets a part of the disk,
        but a whole link.
        """
        part = _part_of_one_gpu(period, given)
        if part.host_bytes:
            return Pipe._with_host(part)
        read = part.disk_read or period.read_bytes_per_s
        write = part.disk_write or period.write_bytes_per_s
        if not read or not write:
            missing = " and ".join(
                name for name, rate in (("reads", read), ("writes", write)) if not rate
            )
            raise TencacheError(
                f"the period file does not say how fast the disk {missing}. "
                "Give --disk 5GB/s, or --disk-read 5GB/s and --disk-write 3GB/s."
            )
        is_given = bool(part.disk_read and part.disk_write)
        if given.gpus > 1 and not is_given:
            raise TencacheError(
                f"--gpus {given.gpus} divides the speed of one disk, and the period file does not "
                "tell whether its speeds are those of a disk or of one GPU's link. Give --disk "
                "5GB/s, or --disk-read 5GB/s and --disk-write 3GB/s, for all GPUs together."
            )
        return Pipe(
            min(read, part.link_read or read),
            min(write, part.link_write or write),
            part.is_half_duplex or (period.is_half_duplex and not is_given),
            gpus=part.gpus,
        )

    @staticmethod
    def _with_host(part: Given) -> Pipe:
        if not (part.link_read and part.link_write and part.disk_read and part.disk_write):
            raise TencacheError(
                "--host-memory stands between a link and a disk, and a recording knows the speed "
                "of one of them at most: give both, as in --link 50GB/s --disk 5GB/s."
            )
        if part.is_half_duplex:
            raise TencacheError(
                "--half-duplex does not go with --host-memory: bytes in host memory are read "
                "and written at the same time. Leave one of them out."
            )
        return Pipe(
            part.link_read,
            part.link_write,
            host_bytes=part.host_bytes,
            disk_read_bytes_per_s=part.disk_read,
            disk_write_bytes_per_s=part.disk_write,
            gpus=part.gpus,
        )


def _part_of_one_gpu(period: Period, given: Given) -> Given:
    """The given machine as one of its GPUs sees it; raises TencacheError if that is too little.

    The part of host memory that is kept free is a share of the whole, so it is divided as well.
    """
    if given.gpus == 1:
        return given
    host_bytes = given.host_bytes // given.gpus
    largest_bytes = period.largest_tensor_bytes()
    # The core refuses this, too, but would name neither the whole nor the number; and 0 bytes would
    # say that there is no host memory.
    if given.host_bytes and host_bytes < largest_bytes:
        raise TencacheError(
            f"--host-memory {format_bytes(given.host_bytes)} for --gpus {given.gpus} is "
            f"{format_bytes(host_bytes)} for each, which holds no tensor of "
            f"{format_bytes(largest_bytes)}, so that one could never leave its GPU. Give at least "
            f"--host-memory {option_bytes(given.gpus * largest_bytes)}, or fewer GPUs."
        )
    return replace(
        given,
        disk_read=given.disk_read and given.disk_read / given.gpus,
        disk_write=given.disk_write and given.disk_write / given.gpus,
        host_bytes=host_bytes,
    )


def speeds(pipe: Pipe) -> str:
    """ "reads 2.10 GB/s, writes 4.30 GB/s", "…, for each of 4 GPUs"."""
    text = _speeds_of_one(pipe)
    return f"{text}, for each of {pipe.gpus} GPUs" if pipe.gpus > 1 else text


def _speeds_of_one(pipe: Pipe) -> str:
    if pipe.host_bytes:
        disk = _rates(pipe.disk_read_bytes_per_s, pipe.disk_write_bytes_per_s)
        link = format_rate(pipe.read_bytes_per_s)
        if pipe.write_bytes_per_s != pipe.read_bytes_per_s:
            link = _rates(pipe.read_bytes_per_s, pipe.write_bytes_per_s)
        return (
            f"link {link}, {format_bytes(pipe.host_bytes)} of host memory, of which "
            f"{_HOST_HEADROOM} is kept free for what leaves the device, disk {disk}"
        )
    text = _rates(pipe.read_bytes_per_s, pipe.write_bytes_per_s)
    return f"{text}, in turn" if pipe.is_half_duplex else text


def _rates(read_bytes_per_s: float, write_bytes_per_s: float) -> str:
    return f"reads {format_rate(read_bytes_per_s)}, writes {format_rate(write_bytes_per_s)}"


def sharing(pipe: Pipe) -> str | None:
    """What several GPUs were assumed to share, as a line; None for one GPU."""
    if pipe.gpus == 1:
        return None
    host = "host memory and of " if pipe.host_bytes else ""
    return (
        f"{pipe.gpus} GPUs run this period at the same time, each with the budget and a link for "
        f"itself, and with 1/{pipe.gpus} of {host}the disk's speed"
    )
