#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a built libtencache.so or libtencache_guard.so exports and needs.

It exports the functions that the C ABI's headers declare, all of them and nothing else, so that
nothing in a process can bind to an inner symbol by accident; the guard also those that it stands in
for. It needs no symbol of torch or Python, and no shared library outside the C and C++ run time, so
that one file serves every torch and every Python on a machine where no package was installed for
it.

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
# What other libraries find in the guard instead of in the C library and in the driver.
INTERPOSED = frozenset(
    {
        "dlsym",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuModuleUnload",
        "cuLibraryUnload",
        *(
            f"cuLaunch{name}{suffix}"
            for name in ("Kernel", "KernelEx", "CooperativeKernel")
            for suffix in ("", "_ptsz")
        ),
    }
)
RUNTIME_LIBRARIES = re.compile(r"(libc|libm|libgcc_s|libstdc\+\+|libpthread|ld-linux-.*)\.so\.\d+")
FOREIGN_SYMBOL = re.compile(
    r"^_?Py[A-Z_]|^_ZNK?(2at|3c10|5torch)\d|^_ZNK?St.*(2at|3c10)\d|^cu[A-Z]"
)


def declared_functions(*header_texts: str) -> set[str]:
    """The names that the headers declare with TENCACHE_API."""
    text = re.sub(r"/\*.*?\*/", "", "\n".join(header_texts), flags=re.DOTALL)
    return set(re.findall(r"TENCACHE_API\s[^;]*?\b(tencache_\w+)\s*\(", text))


def problems_in(
    exported: set[str], undefined: set[str], needed: set[str], declared: set[str]
) -> list[str]:
    """What is wrong with a library, one sentence each."""
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
    return problems


def _dynamic_symbols(library: str, *options: str) -> set[str]:
    output = subprocess.check_output(["nm", "--dynamic", *options, library], text=True)
    # "0000000000001a50 T tencache_free" or "U mmap@GLIBC_2.2.5"
    return {line.split()[-1].split("@")[0] for line in output.splitlines() if line.strip()}


def exports_of(library: str) -> set[str]:
    """What the library of that name is to export."""
    if "guard" in Path(library).name:
        return declared_functions(GUARD_HEADER.read_text()) | INTERPOSED
    return declared_functions(*(header.read_text() for header in HEADERS))


def main(library: str) -> int:
    needed = set(
        re.findall(
            r"\(NEEDED\).*\[(.+)\]",
            subprocess.check_output(["readelf", "--dynamic", "--wide", library], text=True),
        )
    )
    problems = problems_in(
        _dynamic_symbols(library, "--defined-only"),
        _dynamic_symbols(library, "--undefined-only"),
        needed,
        exports_of(library),
    )
    for problem in problems:
        print(f"{library}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
