#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the exports and needs of a built libtencache.so, libtencache_guard.so or
libtencache_preload.so.

The library exports exactly the functions that the C ABI's headers declare, so that nothing in a
process can bind to an inner symbol by accident. The guard also exports the functions that it
interposes; the preload library exports only the function through which a program starts. The
library needs no symbol of torch or Python, and no shared library outside the C and C++ runtime, so
that one file serves every torch and every Python without installing a package. Its thread-locals
fit into the room that the loader reserves for libraries that come late.

Usage: check_symbols.py LIBRARY
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ABI = Path(__file__).resolve().parent.parent / "allocator" / "abi"
HEADERS = (ABI / "tencache.h", ABI / "tencache_gpu.h", ABI / "tencache_pinned.h")
GUARD_HEADER = ABI / "tencache_guard.h"
# The functions that other libraries find in the guard instead of in the C library or the driver.
INTERPOSED = frozenset(
    {
        "dlsym",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuModuleUnload",
        "cuLibraryUnload",
        "cuStreamDestroy",
        "cuStreamDestroy_v2",
        *(
            f"cuLaunch{name}{suffix}"
            for name in ("Kernel", "KernelEx", "CooperativeKernel")
            for suffix in ("", "_ptsz")
        ),
    }
)
RUNTIME_LIBRARIES = re.compile(r"(libc|libm|libgcc_s|libstdc\+\+|libpthread|ld-linux-.*)\.so\.\d+")
START = "__libc_start_main"  # through which a program starts
# If one thread-local of a library is reached without a call (initial-exec), all of them lie in the
# static block of each thread. The loader reserves some 1.6 KiB of it for all libraries that a
# process loads after its start. If they ask for more, loading one fails with "cannot allocate
# memory in static TLS block".
STATIC_THREAD_LOCALS_MAX = 256
FOREIGN_SYMBOL = re.compile(
    r"^_?Py[A-Z_]|^_ZNK?(2at|3c10|5torch)\d|^_ZNK?St.*(2at|3c10)\d|^cu[A-Z]"
)


def declared_functions(*header_texts: str) -> set[str]:
    """The names that the headers declare with TENCACHE_API."""
    text = re.sub(r"/\*.*?\*/", "", "\n".join(header_texts), flags=re.DOTALL)
    return set(re.findall(r"TENCACHE_API\s[^;]*?\b(tencache_\w+)\s*\(", text))


def static_thread_locals(headers: str) -> int:
    """Bytes that the library takes of each thread's static block.

    `headers` is the output of `readelf --dynamic --program-headers`.
    """
    if not re.search(r"\(FLAGS\).*\bSTATIC_TLS\b", headers):
        return 0
    # A line like "  TLS  0x191188 0x0000000000191188 0x0000000000191188 0x000000 0x000050 R  0x8"
    segment = re.search(r"^ +TLS(?: +0x[0-9a-f]+){4} +0x([0-9a-f]+)", headers, re.MULTILINE)
    return int(segment[1], 16) if segment else 0


def problems_in(
    exported: set[str],
    undefined: set[str],
    needed: set[str],
    declared: set[str],
    thread_locals: int = 0,
) -> list[str]:
    """The problems of a library, one sentence each."""
    problems = [f"exports {name}, which no header declares" for name in sorted(exported - declared)]
    problems += [
        f"does not export {name}, which a header declares" for name in sorted(declared - exported)
    ]
    problems += [
        f"needs {name}, a symbol of torch, Python or CUDA"
        for name in sorted(undefined)
        if FOREIGN_SYMBOL.search(name)
    ]
    problems += [
        f"needs the shared library {name}, which a user may lack"
        for name in sorted(needed)
        if not RUNTIME_LIBRARIES.fullmatch(name)
    ]
    if thread_locals > STATIC_THREAD_LOCALS_MAX:
        problems.append(
            f"has {thread_locals} bytes of thread-locals in the static block, at most "
            f"{STATIC_THREAD_LOCALS_MAX} are sure to find room: hold the large ones by pointer"
        )
    return problems


def _dynamic_symbols(library: str, *options: str) -> set[str]:
    output = subprocess.check_output(["nm", "--dynamic", *options, library], text=True)
    # Lines like "0000000000001a50 T tencache_free" or "U mmap@GLIBC_2.2.5".
    return {line.split()[-1].split("@")[0] for line in output.splitlines() if line.strip()}


def exports_of(library: str) -> set[str]:
    """The functions that the library of that name must export."""
    if "guard" in Path(library).name:
        return declared_functions(GUARD_HEADER.read_text()) | INTERPOSED
    if "preload" in Path(library).name:
        return {START}
    return declared_functions(*(header.read_text() for header in HEADERS))


def main(library: str) -> int:
    headers = subprocess.check_output(
        ["readelf", "--dynamic", "--program-headers", "--wide", library], text=True
    )
    problems = problems_in(
        _dynamic_symbols(library, "--defined-only"),
        _dynamic_symbols(library, "--undefined-only"),
        set(re.findall(r"\(NEEDED\).*\[(.+)\]", headers)),
        exports_of(library),
        static_thread_locals(headers),
    )
    for problem in problems:
        print(f"{library}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
