# SPDX-License-Identifier: Apache-2.0
"""Compiles the core for aarch64 on this machine and runs its suites under qemu's user mode.

The cross compiler and qemu are packages of this system. The libraries for aarch64 are unpacked into
build/aarch64-root, because installing them would make the whole system one of two architectures.

qemu translates the program and passes its system calls on. Some it does not know (io_uring,
userfaultfd, seccomp), and it reports faults in its own way. So the suites that need those are left
out: they are listed here with what they need, and run on x86-64 only. On a real aarch64 machine
`make test-core` runs everything.
"""

from __future__ import annotations

import shutil

from steps import ROOT, run

PACKAGES = ("dpkg-dev", "g++-12-aarch64-linux-gnu", "qemu-user-static")
LIBRARIES = ("libgmock-dev", "libgtest-dev", "liburing-dev", "libxxhash-dev", "nlohmann-json3-dev")
LIBRARY_ROOT = ROOT / "build" / "aarch64-root"


def unpack_libraries() -> None:
    """Downloads Debian's packages for aarch64, with lists of packages of their own."""
    if LIBRARY_ROOT.exists():
        return
    folder = ROOT / "build" / "aarch64-packages"
    for part in ("state/lists/partial", "cache/archives/partial", "downloads"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::Cache": folder / "cache",
        "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null",
    }
    apt = ["apt-get", *(word for pair in options.items() for word in ("-o", "{}={}".format(*pair)))]
    run("List the packages for aarch64", [*apt, "update"])
    downloads = folder / "downloads"
    # It downloads into the folder in which it runs.
    in_downloads = ["env", f"--chdir={downloads}"]
    run("Download libraries for aarch64", [*in_downloads, *apt, "download", *LIBRARIES])
    unpacked = folder / "root"
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in sorted(downloads.glob("*.deb")):
        run(f"Unpack {package.name}", ["dpkg-deb", "--extract", package, unpacked])
    unpacked.rename(LIBRARY_ROOT)
