# SPDX-License-Identifier: Apache-2.0
"""`tencache doctor`: what this machine offers, what is missing, and how to get it.

The core probes the machine and returns a JSON object (allocator/abi/runtime_json.cpp). Python adds
whether tencache supports the installed torch. The table shows all of it, so a new probe in the core
needs no change here: a key that ends in `bytes` shows as a size, and `x_reason` (or `reason` alone)
beside the value it explains. Below the table, one line names each missing thing and its remedy.
This module imports no torch: it reads the version from torch's files. Threads: none of its own.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tencache import _autoload, _backend, _options, _torch_version
from tencache._library import Core, guard_path
from tencache._units import format_bytes

_REASON = "reason"
# The default of vm.max_map_count on most kernels. The core makes at most one extent for each four
# mappings.
_MAP_COUNT_USUAL = 65530


def collect(library: Core) -> dict[str, Any]:
    """The core's findings and ours. Probing opens things only for a moment, and starts nothing."""
    found = library.doctor()
    installed = _torch_version.installed()
    reason = _backend.why_not_served(found["gpu"], installed)
    found["gpu"].update(served=reason is None, served_reason=reason or "")
    found["gpu"]["launch_guard"] = guard_path() is not None
    torch = torch_section(installed)
    why_not_loaded = _autoload.why_not_loaded(os.environ)
    torch.update(loads_extensions=why_not_loaded is None, loads_extensions_reason=why_not_loaded)
    return {
        "tencache": {
            "version": found.pop("version"),
            "python": f"{platform.python_version()} ({sys.executable})",
            "unused_variables": _autoload.unused_variables(os.environ),
        },
        "torch": torch,
        **found,
    }


def torch_section(installed: _torch_version.TorchVersion | None) -> dict[str, Any]:
    """Whether this build has a library for the installed torch, and the remedy."""
    supported = _torch_version.supported()
    section: dict[str, Any] = {
        "installed": None if installed is None else installed.text,
        "supported": supported,
    }
    if installed is None:
        remedy = f"torch is not installed here: `pip install 'torch=={supported[-1]}.*'`."
    else:
        remedy = _torch_version.why_no_shim(installed) or ""
    section["fits"] = not remedy
    if remedy:
        section["remedy"] = remedy
    return section


def blockers(report: Mapping[str, Any]) -> list[str]:
    """The problems that keep a program from starting under tencache here, each with its remedy."""
    found = []
    if not report["torch"]["fits"]:
        found.append(report["torch"]["remedy"])
    if not report["torch"].get("loads_extensions", True):
        found.append(report["torch"]["loads_extensions_reason"])
    backend = report["options"]["backend"]
    gpu = report["gpu"]
    if backend == _backend.CUDA and not gpu["served"]:
        found.append(_backend.no_cuda_message(gpu["served_reason"]))
    start = report.get("start", {"works": True})
    if not start["works"]:
        found.append(start["reason"])
    if backend == _backend.CUDA or (backend == _backend.AUTO and gpu["served"]):
        return found  # A GPU's tensors can go to host memory.
    if report["options"]["strict"] == "on":
        return found  # Nothing is spilled.
    if "error" in report["disk"]:
        found.append(report["disk"]["error"])
    if not report["page_map"]["works"]:
        found.append(report["page_map"]["reason"])
    return found


def hints(report: Mapping[str, Any]) -> list[str]:
    """The things that work but could work better, each with its remedy."""
    found = []
    unused = report["tencache"]["unused_variables"]
    if unused:
        consequence = "a program that does not call tencache.enable() runs without tencache"
        found.append(_autoload.unused_message(unused, consequence))
    disk = report["disk"]
    if disk.get("io_uring") is False:
        found.append(
            f"io_uring is not available ({disk['io_uring_reason']}), so a pool of threads reads "
            "and writes the spill file. Container profiles often refuse it; with Docker, "
            "`--security-opt seccomp=unconfined` or a profile that allows io_uring_* gives it."
        )
    if disk.get("direct_io") is False:
        found.append(
            f"{disk['directory']} does not take O_DIRECT ({disk['direct_io_reason']}), so spilled "
            "bytes pass the page cache. A directory on a local ext4 or xfs takes it: --spill-dir."
        )
    if report["huge_pages"] in ("never", "absent"):
        found.append(
            f"transparent huge pages are {report['huge_pages']}, so memory is filled page by page. "
            "As root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`."
        )
    if not report["userfaultfd"]["works"]:
        found.append(
            f"pages of spilled tensors go back to the kernel ({report['userfaultfd']['reason']}), "
            "which clears them before their next use. Give your group access to /dev/userfaultfd "
            "(Linux 6.1), or as root: `sysctl vm.unprivileged_userfaultfd=1`; with Docker: "
            "`--device /dev/userfaultfd`, or `--cap-add SYS_PTRACE` and a seccomp profile that "
            "allows userfaultfd."
        )
    if report["map_count_max"] < _MAP_COUNT_USUAL:
        found.append(
            f"vm.max_map_count is {report['map_count_max']}, which limits how many tensors may be "
            "extents. As root: `sysctl vm.max_map_count=262144`."
        )
    return found


def changed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their defaults."""
    defaults = {option.name: option.default for option in _options.table()}
    changed = {name: value for name, value in options.items() if value != defaults.get(name)}
    return changed or {"all": "at their defaults"}


def rows(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A section as (label, text) rows, each reason beside the first value it explains."""
    first = next(iter(section), None)
    reasons = {}
    for key, value in section.items():
        if key == _REASON:
            reasons[first] = value
        elif key.endswith(f"_{_REASON}"):
            reasons[key.removesuffix(f"_{_REASON}")] = value
    told = set()
    for key, value in section.items():
        name = key.removesuffix("_bytes")
        if key == _REASON or key.endswith(f"_{_REASON}"):
            continue
        reason = reasons.get(name)
        if reason in told:
            reason = None
        told.add(reason)
        text = value_text(key, value)
        yield name.replace("_", " "), f"{text} ({reason})" if reason else text


def value_text(key: str, value: object) -> str:
    """One value as text: a size, yes or no, or that it is absent."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "" or value == []:
        return "none"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, int) and key.endswith("bytes"):
        return format_bytes(value)
    return str(value)


def show(report: Mapping[str, Any], console: Console) -> None:
    """Prints the report as one table, a part for each section, then problems and improvements."""
    table = Table(title="tencache doctor", show_header=False, title_justify="left")
    table.add_column("part", style="bold", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, section in report.items():
        part = name.replace("_", " ")
        if name == "options":
            section = changed_options(section)
        if not isinstance(section, Mapping):
            table.add_row(part, "", escape(value_text(name, section)))
            continue
        table.add_section()
        for index, (label, text) in enumerate(rows(section)):
            table.add_row("" if index else part, label, escape(text))
        table.add_section()
    console.print(table)
    for title, lines in (("Blocked", blockers(report)), ("Could be better", hints(report))):
        for line in lines:
            console.print(f"[bold]{title}:[/bold] ", end="")
            console.print(line, markup=False, highlight=False)
    if not blockers(report):
        console.print("Nothing is blocked: tencache can start here.")
