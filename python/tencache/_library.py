# SPDX-License-Identifier: Apache-2.0
"""The shared libraries, loaded with ctypes.

`core()` gives libtencache.so, the allocator itself. It knows neither torch nor Python, so the
command line, `tencache doctor` and the option table work even if torch is absent or has the wrong
version. `shim()` gives libtencache_torch-<minor>.so, the doors into PyTorch. It reads the C++
structures of one minor version of torch, so it is loaded only if that version runs
(`_torch_version.py`). `cuda_shim()` gives libtencache_torch_cuda-<minor>-cu<major>.so, the doors
for GPU memory. libtencache_guard.so and libtencache_preload.so are not loaded here: a program is
started with them.

The libraries are in the package's folder, beside the `_build_info.py` that the build writes.
Invariants: (1) nothing here imports torch; (2) every C function has its argument types declared
before its first call; (3) an error of the C ABI becomes a TencacheError with its message unchanged;
(4) text that C would cut, because of a zero character, is refused.
Threads: any. Calls release the GIL, except `is_armed`, which is too short for that.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tencache._messages import shortened
from tencache._torch_version import (
    REBUILD_COMMAND,
    TorchVersion,
    why_no_cuda_shim,
    why_no_shim,
)

_FOLDER = Path(__file__).resolve().parent
_GUARD, _PRELOAD = "libtencache_guard.so", "libtencache_preload.so"

# The only value of tencache_error.code that this module looks for (allocator/abi/tencache.h).
_INVALID_ARGUMENT = 1
_PLAN_JSON_BYTES = 1024
_TIMELINE_BYTES, _TIMELINE_BYTES_PER_OP = 1 << 16, 256
_HISTORY_BYTES = 1 << 18


class TencacheError(RuntimeError):
    """tencache cannot do what was asked; the message says value, reason and remedy."""


class OptionError(TencacheError, ValueError):
    """An option's value cannot be used."""


class _ErrorStruct(ctypes.Structure):
    """tencache_error: the code and a zero-terminated message."""

    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 2048))


class PeriodStruct(ctypes.Structure):
    """tencache_period: one period of a program in flat arrays, which the struct keeps alive."""

    _fields_ = (
        ("fixed_bytes", ctypes.c_uint64),
        ("tensor_count", ctypes.c_uint32),
        ("tensor_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("allocated_at", ctypes.POINTER(ctypes.c_uint32)),
        ("freed_at", ctypes.POINTER(ctypes.c_uint32)),
        ("op_count", ctypes.c_uint32),
        ("compute_ns", ctypes.POINTER(ctypes.c_uint64)),
        ("access_counts", ctypes.POINTER(ctypes.c_uint32)),
        ("access_tensors", ctypes.POINTER(ctypes.c_uint32)),
        ("access_writes", ctypes.POINTER(ctypes.c_uint8)),
    )


class MachineStruct(ctypes.Structure):
    """tencache_machine: a budget and the speeds of the tiers below it."""

    _fields_ = (
        ("budget_bytes", ctypes.c_uint64),
        ("read_bytes_per_s", ctypes.c_double),
        ("write_bytes_per_s", ctypes.c_double),
        ("read_fixed_ns", ctypes.c_uint64),
        ("write_fixed_ns", ctypes.c_uint64),
        ("is_half_duplex", ctypes.c_int),
        ("read_work_ns_per_byte", ctypes.c_double),
        ("write_work_ns_per_byte", ctypes.c_double),
        ("drop_work_ns_per_byte", ctypes.c_double),
        ("host_bytes", ctypes.c_uint64),
        ("disk_read_bytes_per_s", ctypes.c_double),
        ("disk_write_bytes_per_s", ctypes.c_double),
    )


# Types of arguments and results.
_TEXT, _SIZE = ctypes.c_char_p, ctypes.c_size_t
_ERROR, _POINTERS = ctypes.POINTER(_ErrorStruct), ctypes.POINTER(ctypes.c_void_p)
_PERIOD, _MACHINE = ctypes.POINTER(PeriodStruct), ctypes.POINTER(MachineStruct)


def package_version() -> str:
    """The version of this package, e.g. "0.1.0".

    Raises ImportError if the package was imported from its sources, where nothing is built.
    """
    try:
        from tencache._build_info import VERSION
    except ImportError as error:
        raise ImportError(_not_built("_build_info.py")) from error
    return VERSION


def _not_built(name: str) -> str:
    return (
        f"tencache's {name} is missing from {_FOLDER}: this copy of the package was not built. "
        "Run `make build` (or `pip install --no-build-isolation .`) in tencache's source folder "
        "and do not put its `python` folder on PYTHONPATH."
    )


def _built(name: str) -> Path:
    """The path of a file that the build made; raises TencacheError if there is none."""
    path = _FOLDER / name
    if not path.exists():
        raise TencacheError(_not_built(name))
    return path


def _load(name: str) -> ctypes.CDLL:
    path = _built(name)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise TencacheError(f"{path} cannot be loaded: {error}. {_remedy(error)}") from error


def _remedy(error: OSError) -> str:
    """The remedy if a library of ours cannot be loaded."""
    if "static TLS" in str(error):
        return (
            "Other libraries of this program have taken the little room for such "
            "thread-local variables. Either enable tencache before they are imported, or start the "
            "program with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384 in its environment."
        )
    return (
        "If this names a system library, install its package; otherwise build again in tencache's "
        f"source folder: `{REBUILD_COMMAND}`."
    )


def _declare(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = list(arguments)
    return function  # type: ignore[no-any-return]


def _refusing(library: ctypes.CDLL, name: str, *arguments: Any) -> Callable[..., None]:
    """A C function whose last argument is the error that it fills; called here, it raises that."""
    function = _declare(library, name, ctypes.c_int, *arguments, _ERROR)

    def call(*values: Any) -> None:
        error = _ErrorStruct()
        _raise_if(function(*values, error), error)

    return call


def _json_of(library: ctypes.CDLL, name: str, size: int = 1 << 14) -> Callable[[], Any]:
    """A C function that writes JSON into a buffer; called here, it returns what the JSON says."""
    function = _declare(library, name, _SIZE, _TEXT, _SIZE)
    return lambda: json.loads(_read_text(function, size))


def _raise_if(code: int, error: _ErrorStruct) -> None:
    if code == 0:
        return
    message = error.message.decode("utf-8", "replace") or f"tencache failed with code {code}."
    raise OptionError(message) if code == _INVALID_ARGUMENT else TencacheError(message)


def _c_text(what: str, text: str | os.PathLike[str]) -> bytes:
    """A text or path as C takes it.

    Raises OptionError, with a message that begins with `what`, if C cannot take the text.
    """
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError as error:
        reason = f"it holds {error.object[error.start]!a}, which is no character"
    else:
        if b"\0" not in encoded:
            return encoded
        reason = "it holds a zero character, where a text ends for the operating system"
    raise OptionError(f"{what} '{shortened(os.fspath(text))}': {reason}. Leave that character out.")


def _option_text(name: str, text: str) -> bytes:
    return _c_text(f"Option {name} does not take the value", text)


def _file_name(path: Path) -> bytes:
    return _c_text("No file can have the name", path)


class Core:
    """libtencache.so. Use `core()`, which loads it once."""

    def __init__(self) -> None:
        library = _load("libtencache.so")
        declare = functools.partial(_declare, library)
        refusing = functools.partial(_refusing, library)
        json_of = functools.partial(_json_of, library)

        self._option_table = declare("tencache_option_table", _TEXT)
        self._option_text = declare("tencache_option_text", _SIZE, _TEXT, _TEXT, _SIZE)
        self._set_option = refusing("tencache_set_option", _TEXT, _TEXT)
        self._check_option = refusing("tencache_check_option", _TEXT, _TEXT)
        self._parse_bytes = refusing("tencache_parse_bytes", _TEXT, ctypes.POINTER(ctypes.c_uint64))
        # Sets every option to its TENCACHE_* variable, else to its default. OptionError names a
        # variable that cannot be used; nothing is set then.
        self.read_environment = refusing("tencache_read_environment")
        # Probes the machine and opens the tiers; does nothing on a second call.
        self.start = refusing("tencache_start")

        self.doctor: Callable[[], dict[str, Any]] = json_of("tencache_doctor_json")
        self.stats: Callable[[], dict[str, Any]] = json_of("tencache_stats_json")
        # The life of the process so far, as tencache_history_json() describes it.
        self.history: Callable[[], dict[str, list[float]]] = json_of(
            "tencache_history_json", _HISTORY_BYTES
        )
        self.recorded: Callable[[], int] = declare("tencache_recorded", ctypes.c_int)
        self.reset_peak_stats: Callable[[], None] = declare("tencache_reset_peak_stats", None)
        self._empty_cache = declare("tencache_empty_cache", ctypes.c_uint64)
        self._set_label = declare("tencache_set_label", None, _TEXT)
        self._name_extent = declare("tencache_name_extent", None, ctypes.c_void_p, _TEXT)

        self._begin_reading = declare(
            "tencache_begin_reading", None, _POINTERS, ctypes.c_uint32, _POINTERS
        )
        self.end_reading: Callable[[ctypes.c_void_p], None] = declare(
            "tencache_end_reading", None, _POINTERS
        )
        # The same library again, for a call that reads one flag: releasing the GIL would cost more
        # than the call.
        self.is_armed: Callable[[], int] = _declare(
            ctypes.PyDLL(library._name), "tencache_is_armed", ctypes.c_int
        )

        self._write_trace = refusing("tencache_write_trace", _TEXT)
        self._write_file = refusing("tencache_write_file", _TEXT, _TEXT, _SIZE)
        self._try_file = refusing("tencache_try_file", _TEXT)
        self._is_shared_output = declare("tencache_is_shared_output", ctypes.c_int, _TEXT)
        self._is_same_output = declare("tencache_is_same_output", ctypes.c_int, _TEXT, _TEXT)

        self._plan = refusing("tencache_plan", _PERIOD, _MACHINE, _TEXT, _SIZE)
        self._plan_timeline = declare(
            "tencache_plan_timeline", _SIZE, _PERIOD, _MACHINE, _TEXT, _SIZE, _ERROR
        )
        self._learn_from = refusing("tencache_learn_from", _PERIOD, ctypes.POINTER(_TEXT))

    def option_table(self) -> list[dict[str, str]]:
        table: list[dict[str, str]] = json.loads(self._option_table())
        return table

    def set_option(self, name: str, text: str) -> None:
        """Sets one option. After start only the value in force is accepted (TencacheError)."""
        self._set_option(name.encode(), _option_text(name, text))

    def check_option(self, name: str, text: str) -> None:
        """Raises OptionError if set_option would refuse the text."""
        self._check_option(name.encode(), _option_text(name, text))

    def option_text(self, name: str) -> str:
        """The option's value; the same value always has the same text ("on", "2GiB")."""
        # A path may have any encoding; an invalid text was refused when it was set.
        return os.fsdecode(_read_bytes(functools.partial(self._option_text, name.encode())))

    def parse_bytes(self, text: str) -> int:
        """Parses a size such as "1.5GiB", as options take it; raises OptionError if it is none."""
        parsed = ctypes.c_uint64()
        self._parse_bytes(_c_text("There is no size", text), parsed)
        return parsed.value

    def set_label(self, label: str) -> None:
        """Names this process in the core's messages; the first name counts."""
        self._set_label(label.encode())

    def name_extent(self, address: int, name: str) -> None:
        """Says what the program calls the extent at the address, for traces."""
        self._name_extent(address, name.encode(errors="replace"))

    def empty_cache(self) -> int:
        return int(self._empty_cache())

    def begin_reading(self, addresses: Sequence[int], reading: ctypes.c_void_p) -> None:
        """Announces reads at these addresses, until `end_reading(reading)`."""
        count = len(addresses)
        self._begin_reading(_address_array(count)(*addresses), count, reading)

    def write_trace(self, path: Path) -> None:
        """Writes the events so far; the message of an error is a clause without the path."""
        self._write_trace(_file_name(path))

    def write_file(self, path: Path, content: bytes) -> None:
        """Writes a file that the user asked for (allocator/platform/output_file.h).

        What has the name is replaced as a whole if it is a regular file, else written to. The
        message of an error is a clause without the path.
        """
        self._write_file(_file_name(path), content, len(content))

    def why_not_writable(self, path: Path) -> str | None:
        """Why `write_file` could not write there as things stand, as a clause; None if it could."""
        try:
            self._try_file(_file_name(path))
        except TencacheError as refusal:
            return str(refusal)
        return None

    def is_shared_output(self, path: Path) -> bool:
        """Whether the path stands for a device, a pipe or an open descriptor."""
        return bool(self._is_shared_output(_file_name(path)))

    def is_same_output(self, one: Path, other: Path) -> bool:
        """Whether what is written under one name would take the place of what has the other."""
        return bool(self._is_same_output(_file_name(one), _file_name(other)))

    def plan(self, period: PeriodStruct, machine: MachineStruct) -> dict[str, int]:
        """The planner's prediction; raises OptionError for an impossible period or machine."""
        buffer = ctypes.create_string_buffer(_PLAN_JSON_BYTES)
        self._plan(period, machine, buffer, _PLAN_JSON_BYTES)
        result: dict[str, int] = json.loads(buffer.value)
        return result

    def plan_timeline(self, period: PeriodStruct, machine: MachineStruct) -> dict[str, Any]:
        """The timeline of the plan; fails as `plan` does."""
        error = _ErrorStruct()

        def fill(buffer: ctypes.Array[ctypes.c_char], size: int) -> int:
            needed = int(self._plan_timeline(period, machine, buffer, size, error))
            if not needed:
                _raise_if(error.code, error)
            return needed

        # This is enough for most plans; a second call would plan again.
        size = _TIMELINE_BYTES + _TIMELINE_BYTES_PER_OP * int(period.op_count)
        result: dict[str, Any] = json.loads(_read_text(fill, size))
        return result

    def learn_from(self, period: PeriodStruct, op_names: Sequence[bytes]) -> None:
        """Has the period followed from the first step on; raises OptionError if that cannot be."""
        self._learn_from(period, (ctypes.c_char_p * len(op_names))(*op_names))


class Shim:
    """libtencache_torch-<minor>.so. Use `shim()`, which picks it by torch's version.

    Around a kernel that the dispatcher does not see, it opens the gate. An exception may come at
    any point, like KeyboardInterrupt once `open` has waited for the disk. So callers read the
    depth, open within a `try`, and close down to the depth at its end: `depth` and `close_to` are
    functions of C, which no exception interrupts.
    """

    def __init__(self, minor: str) -> None:
        library = _load(f"libtencache_torch-{minor}.so")
        declare = functools.partial(_declare, library)
        # The function puts tencache under torch's CPU allocator and starts the runtime. It raises
        # TencacheError if the running torch is not laid out like the one compiled against; nothing
        # is installed then.
        self.install = _refusing(library, "tencache_torch_install")
        self.describe: Callable[[], dict[str, Any]] = _json_of(
            library, "tencache_torch_describe_json"
        )
        self._open = declare("tencache_torch_open", None, _TEXT, _POINTERS, _TEXT, ctypes.c_uint32)
        self.depth: Callable[[], int] = declare("tencache_torch_depth", ctypes.c_uint32)
        self.close_to: Callable[[int], None] = declare(
            "tencache_torch_close_to", None, ctypes.c_uint32
        )

    def open(self, name: bytes, addresses: Sequence[int], modes: bytes) -> None:
        """Opens the gate on this thread; the addresses' extents are resident until `close_to`.

        Each address has a mode: READ, or READ | WRITE.
        """
        count = len(addresses)
        self._open(name, _address_array(count)(*addresses), modes, count)


@functools.cache
def _address_array(count: int) -> type[ctypes.Array[ctypes.c_void_p]]:
    """The ctypes array type for `count` addresses; cached, since making it is slow."""
    return ctypes.c_void_p * count


class CudaShim:
    """libtencache_torch_cuda-<minor>-cu<major>.so. Use `cuda_shim()`, which picks it."""

    def __init__(self, path: Path) -> None:
        _load_nvrtc()
        # The function does what Shim.install does, and makes CUDA tensors come from tencache from
        # now on.
        self.install = _refusing(_load(path.name), "tencache_torch_cuda_install")


def _load_nvrtc() -> None:
    """Loads NVRTC, the compiler of kernels, from torch's packages.

    The core looks for it among the loaded libraries. If torch brought none, the core searches the
    machine, and says what it did not find.
    """
    for path in sorted(_FOLDER.parent.glob("nvidia/*/lib/libnvrtc.so.*")):
        try:
            ctypes.CDLL(str(path))
        except OSError:
            continue
        return


def cuda_shim_path(torch: TorchVersion) -> Path:
    """The library for the GPU memory of that torch; raises TencacheError if there is none."""
    reason = why_no_shim(torch) or why_no_cuda_shim(torch)
    if reason is not None:
        raise TencacheError(reason if reason.endswith(".") else f"{reason}.")
    return _FOLDER / f"libtencache_torch_cuda-{torch.cuda_key}.so"


def guard_path() -> Path | None:
    """The library that is preloaded to see kernel launches; None if it was not built."""
    path = _FOLDER / _GUARD
    return path if path.exists() else None


def preload_path() -> Path:
    """The library that enables tencache in a program that is started with it."""
    return _built(_PRELOAD)


def cmake_folder() -> Path:
    """The folder with tencacheConfig.cmake."""
    return _built("cmake/tencacheConfig.cmake").parent


def _read_text(function: Callable[..., Any], size: int = 1 << 14) -> str:
    return _read_bytes(function, size).decode("utf-8", "replace")


def _read_bytes(function: Callable[..., Any], size: int = 1 << 14) -> bytes:
    """Calls a C function that fills a buffer and returns the size it needs, until it fits."""
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = int(function(buffer, size))
        if needed <= size:
            return buffer.value
        # A counter may grow by a digit between two calls.
        size = needed + 256


@functools.cache
def core() -> Core:
    """The core library. Raises TencacheError if it is missing or cannot be loaded."""
    return Core()


@functools.cache
def shim(torch: TorchVersion) -> Shim:
    """The torch library for the running torch.

    If there is none for that version, none is even loaded, because a call through a wrong vtable
    would corrupt memory. The TencacheError names the version and the remedy.
    """
    reason = why_no_shim(torch)
    if reason is not None:
        raise TencacheError(reason)
    core()
    return Shim(torch.minor)


@functools.cache
def cuda_shim(torch: TorchVersion) -> CudaShim:
    """The library for GPU memory. Loads the library for host memory (`shim`) first."""
    path = cuda_shim_path(torch)
    shim(torch)
    return CudaShim(path)
