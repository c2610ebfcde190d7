# SPDX-License-Identifier: Apache-2.0
"""Compiles the core for aarch64 on this machine and runs its suites under qemu's user mode.

The cross compiler and qemu are packages of this system. The libraries for aarch64 are unpacked into
build/aarch64-root, because installing them would make the whole system one of two architectures.

qemu translates the program and passes its system calls on. Some it does not know, and some it
answers differently from a kernel. Tests that find something missing skip themselves, as they do on
a kernel that lacks it. LEFT_OUT names the others, with what qemu does. A real aarch64 machine runs
all of them: `make test-core`.
"""

from __future__ import annotations

import platform
import shutil

from environment import RELEASE
from steps import ROOT, StepFailed, run

PACKAGES = ("dpkg-dev", "g++-12-aarch64-linux-gnu", "qemu-user-static")
LIBRARIES = ("libgmock-dev", "libgtest-dev", "liburing-dev", "libxxhash-dev", "nlohmann-json3-dev")
LIBRARY_ROOT = ROOT / "build" / "aarch64-root"

# What qemu does, and the tests that cannot pass because of it, as patterns of GoogleTest.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "A program cannot start itself anew, as death tests of the style threadsafe do: the kernel "
    "would have to know qemu (binfmt_misc), and containers have none.": (
        "BlockPoolTest.AddressesThatAreNoBlocks",
        "DriverUseTest.AChildOfAProcessThatHasNotCalledItHasItsOwn",
        "DriverUseTest.ADriverThatIsShutDownIsNotCalledAgain",
        "DriverUseTest.ExitHandlersOf*",
        "DriverUseTest.TheStatusOfADriverThatIsShutDownAsksItForNoText",
        "GpuAbiTest.RefusalsSayWhy",
        "HostTierDeathTest.RefusesWhatItDidNotGive",
        "PinnedPoolTest.APrivatePoolKeepsWhatIsFreedInIt",
        "PinnedPoolTest.ForeignAddressesAreNoBlocks",
        "SimulatedDriverDeathTest.*",
        "SimulatedStreamsTest.CallsThatNameADestroyedStreamEndTheProcess",
        "StreamNumbersTest.TheNullStreamIsOneOfThem",
        "StreamNumbersTest.TheSharedBitStandsForAllThatShareIt",
    ),
    "madvise() returns success and does nothing: no page is made present (MADV_POPULATE_WRITE), "
    "and children inherit all memory (MADV_DONTFORK).": (
        "*/ChannelBuffersTest.AForkedChildDoesNotGetTheBuffers/*",
        "HostMemoryTest.AForkedChildDoesNotGetIt",
        "HostMemoryTest.ANodeThatIsNotThereIsReported",
        "HostMemoryTest.IsAlignedPresentAndZero",
        "HostTierFuzzTest.RandomStepsWithFaultsEqualAModel",
        "HostTierFuzzTest.ThreadsAllocateAndReleaseAtOnce",
        "HostTierTest.ABlockIsAlignedPinnedAndOfItsSize",
        "HostTierTest.AChunkThatCannotBePinnedStaysPageable",
        "HostTierTest.AForkedChildHasNoHostTier",
        "HostTierTest.ALargeBlockGetsAChunkOfItsOwnWhichIsUsedAgain",
        "HostTierTest.ChunksMayGrowWithWhatIsMappedAndGoBackWhenNothingLiesInThem",
        "HostTierTest.FreeChunksMakeWayForBlocksThatTheyCannotHold",
        "HostTierTest.NoBlockLiesInTwoChunks",
        "StagingRingTest.AForkedChildUnpinsNothing",
        "StagingRingTest.LendsEachBufferOnce",
        "StagingRingTest.SaysThatItIsNotPinned",
    ),
    "setrlimit() ignores a limit on virtual memory; the one of cmake/aarch64.cmake holds.": (
        "AddressArenaTest.SaysWhatToRaiseWhenAddressesAreLimited",
        "AddressArenaTest.TakesLessThanItWishedWhereTheKernelRefuses",
        "HostMemoryTest.AddressSpaceThatCannotBeHadIsAnError",
        "HostTierTest.AProcessMayHaveNoMoreAddresses",
        "MachineTest.TellsTheAddressesThatALimitLeaves",
    ),
    "/proc tells which signals qemu's own threads block, not those of the program, and userfaultfd "
    "is missing. So a thread that blocks SIGSEGV ends the process, and where qemu blocks it for a "
    "moment, a tensor stays in the spill file.": (
        "*/EngineFuzzTest.*/off",
        "BlockedSignalsTest.*",
        "WriteBarrierEngineTest.WriterThatBlocksTheSignalLives",
    ),
    "process_vm_readv() is missing, so a page that a file does not have is a SIGBUS.": (
        "*/LyingDiskDeathTest.FileThatIsTooShortEndsTheProcess/1",
        "CachedReaderTest.MissingPagesAreAnErrorThatNamesTheOffset",
    ),
    "It writes a line of its own when a signal ends the program.": (
        "BusErrorsDeathTest.OtherBusErrorsAreNotOurs",
    ),
}


def filter_of_tests() -> str:
    """The value of GTEST_FILTER that leaves out the tests of LEFT_OUT."""
    return "-" + ":".join(pattern for patterns in LEFT_OUT.values() for pattern in patterns)


def expect_usable_machine() -> None:
    """Raises StepFailed where this cannot work, with what to do instead."""
    if platform.machine() == "aarch64":
        raise StepFailed("this machine is an aarch64 itself: make test-core")
    if "ID=debian" not in RELEASE:
        raise StepFailed("the libraries for aarch64 are Debian's packages; use a Debian 12")


def unpack_libraries() -> None:
    """Downloads Debian's packages for aarch64 and unpacks them into LIBRARY_ROOT.

    apt keeps separate lists for them, so the system's own lists stay as they are.
    """
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
    # `apt-get download` puts packages into the folder in which it runs.
    in_downloads = ["env", f"--chdir={downloads}"]
    run("Download libraries for aarch64", [*in_downloads, *apt, "download", *LIBRARIES])
    unpacked = folder / "root"
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in sorted(downloads.glob("*.deb")):
        run(f"Unpack {package.name}", ["dpkg-deb", "--extract", package, unpacked])
    unpacked.rename(LIBRARY_ROOT)
