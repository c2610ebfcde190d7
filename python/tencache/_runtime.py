# SPDX-License-Identifier: Apache-2.0
"""The one runtime of this process, seen from Python: enable, is_enabled, options, stats, caches.

`enable` checks every option before it sets the first. It loads the shim for the torch that runs,
installs it, and registers what happens at exit. A process is enabled at most once and stays so. A
forked child sees `is_enabled() == False`: its memory stays readable and right, but it has no budget
and migrates nothing (allocator/abi/tencache.h).

Invariants: (1) `_enabled` is set only after the shim was installed; (2) a failed enable leaves the
process without tencache, and the next call starts from the defaults and the environment again.
Threads: `_lock` serialises enable; the rest only reads `_enabled`, which is written once.
"""

from __future__ import annotations

import atexit
import gc
import glob
import os
import platform
import sys
import threading
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tencache import (
    _backend,
    _checkpoints,
    _collectives,
    _gpu_groups,
    _green_contexts,
    _inductor,
    _names,
    _openmp,
    _options,
    _period_file,
    _report,
    _torch_version,
    _triton,
    _units,
    _warmup,
)
from tencache._library import Core, OptionError, TencacheError, core, cuda_shim, shim
from tencache._messages import (
    counted,
    is_spawned,
    process_label,
    rank_of,
    say,
    set_log_level,
    shortened,
)

# The options that name an output file of the program.
OUTPUT_OPTIONS = ("stats", "trace", "record")
# The option that names a file of an earlier run, and the text by which all these options name none.
_INPUT_OPTION = "learn_from"
_NO_FILE = "off"
_SPILL_DIR = "spill_dir"


@dataclass(frozen=True)
class _Enabled:
    """The state after `enable`: the process, the option texts, the torch version."""

    pid: int
    texts: Mapping[str, str]
    torch_version: str


_lock = threading.Lock()
_enabled: _Enabled | None = None
_was_asked = False


def enable(*unnamed: NoReturn, **options: object) -> None:
    """Puts tencache under torch's allocator, from now until the process ends.

    It takes the place of the allocator of CPU tensors or, where the backend is `cuda` (`auto` is
    that where torch sees a GPU that tencache can serve), of CUDA tensors.
    Keywords are the options that `tencache run --help` lists: `device_memory="2GiB"` (or bytes as
    an int), `spill_dir=...`, `strict=True` and so on. An option that is not given, or None, comes
    from its TENCACHE_* variable, else from probing. Call it before the first tensors exist:
    existing ones stay in memory, outside the budget, and a line on stderr says so (existing CUDA
    tensors are refused). Before `import torch` it also sets GOMP_SPINCOUNT (docs/cpu.md). A second
    call is fine if its options are those in force.

    Raises TypeError for an unknown option, a value without a name or one of a wrong type, and
    OptionError (a ValueError) for a value that cannot be used. Raises TencacheError (a
    RuntimeError) if options differ from those in force, if tencache does not support this torch, or
    if this machine cannot do what is asked.
    """
    _note_asked()
    if unnamed:
        raise TypeError(_unnamed_message(unnamed))
    given = _options.texts_of(options)
    if "torch" not in sys.modules:
        _openmp.let_threads_sleep(os.environ)
    # Import outside the lock: if TENCACHE asks for tencache, this import itself calls enable().
    import torch

    with _lock:
        if _enabled is None:
            _enable_first(torch, given)
        else:
            _enable_again(_enabled, given)


def _unnamed_message(values: Sequence[object]) -> str:
    """The error for `enable("2GiB")`; it shows the value in its place if it is a size."""
    given = ", ".join(shortened(repr(value)) for value in values)
    meant = values[0] if len(values) == 1 and _is_size(values[0]) else "2GiB"
    return (
        f"tencache.enable({given}) gives a value without a name. Name the option, as in "
        f"enable(device_memory={shortened(repr(meant))}); `tencache run --help` lists all."
    )


def _is_size(value: object) -> bool:
    option = _options.find("device_memory")
    try:
        core().check_option(option.name, _options.to_text(option, value))
    except (TypeError, ValueError):
        return False
    return True


def allocator() -> Any:
    """The allocator of CUDA tensors, for `torch.cuda.memory.change_current_allocator`.

    Enables tencache with `backend="cuda"`, unless that was done, and so already puts its allocator
    under torch. change_current_allocator then only checks that nothing stands in the way. Call both
    before the first CUDA tensor. Errors are those of `enable`.
    """
    import torch

    reason = _backend.why_no_cuda(torch) if _enabled is None else None
    if reason is not None:
        _note_asked()
        raise TencacheError(
            "tencache.allocator() is the allocator of CUDA tensors, and no GPU can be used here: "
            f'{reason}. For a budget of tensors in DRAM call tencache.enable(backend="cpu") '
            "instead, without change_current_allocator()."
        )
    enable(backend=_backend.CUDA)
    return torch.cuda.memory._get_current_allocator()


def is_enabled() -> bool:
    """Whether tencache serves this process. False in forked children, where it is passive."""
    return _enabled is not None and _enabled.pid == os.getpid()


def was_asked() -> bool:
    """Whether the program has called for tencache, even in vain."""
    return _was_asked


def _note_asked() -> None:
    global _was_asked
    _was_asked = True


def options() -> dict[str, str]:
    """The text of every option: those in force, or before `enable` those it would take.

    A value has one text, however it was written: "on", "2GiB". Before `enable`, raises OptionError
    for a variable that cannot be used.
    """
    if _enabled is None:
        # Without the lock, read_environment() could replace the options of an enable() under way.
        with _lock:
            if _enabled is None:
                core().read_environment()
                return _texts(core())
    return dict(_enabled.texts)


def _texts(library: Core) -> dict[str, str]:
    return {option.name: library.option_text(option.name) for option in _options.table()}


def stats() -> dict[str, Any]:
    """The counters so far, schema 1; bytes and seconds.

    The page on stats in tencache's documents explains each of them. Raises TencacheError if
    tencache is not enabled.
    """
    enabled = _require_enabled("there are no stats")
    result = core().stats()
    # The core knows only its own version.
    result["versions"].update(torch=enabled.torch_version, python=platform.python_version())
    return result


def name_tensors(named: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Gives tensors names, which traces and reports show: `name_tensors(model.named_parameters())`.

    Names are pairs or a mapping. A name is for the memory that the tensor has now and ends with it.
    With the option trace, modules' parameters and buffers and the state of optimizers get theirs
    without this call. Raises TencacheError if tencache is not enabled, and TypeError for what is
    neither, before anything is named.
    """
    _require_enabled("there is nothing to name")
    _names.name_tensors(core(), _names.pairs_of(named))


def empty_cache() -> int:
    """Gives memory that was freed and waits for reuse back to the machine; returns its bytes.

    tencache keeps at most what the program lately needed at once, so this is only of use before
    something else on the machine needs memory. On the cuda backend it waits for the GPU.

    Raises TencacheError if tencache is not enabled.
    """
    _require_enabled("there is no cache")
    return core().empty_cache()


def reset_peak_stats() -> None:
    """Lets the peaks among the stats begin anew with what is used now.

    That holds for every field of `peak` and for `over_budget.peak_bytes`. Raises TencacheError if
    tencache is not enabled.
    """
    _require_enabled("there are no stats")
    core().reset_peak_stats()


def _require_enabled(consequence: str) -> _Enabled:
    if _enabled is None:
        raise TencacheError(
            f"tencache is not enabled in this process, so {consequence}. Call "
            "tencache.enable() first, or start the program with `tencache run -- …`."
        )
    return _enabled


def set_checked(library: Core, texts: Mapping[str, str]) -> None:
    """Sets every option anew: to its text, else its variable, else its default.

    Checks all texts before it sets any. The spill directory becomes an absolute path, as files do
    where they are checked.
    """
    for name, text in texts.items():
        library.check_option(name, text)
    library.read_environment()
    for name, text in texts.items():
        library.set_option(name, text)
    directory = library.option_text(_SPILL_DIR)
    if directory != _backend.AUTO:
        library.set_option(_SPILL_DIR, str(absolute_path(directory)))


def check_output_files(library: Core) -> None:
    """Makes the paths of output files absolute, since the program may change its folder.

    Tries each; raises OptionError if one could not be written, or would take the place of another
    file of this run: after hours of training it is too late. A worker of multiprocessing, whose
    names are longer than its parent's, goes without the file instead: an error there could end the
    training.
    """
    taken = _input_files(library)
    for name in OUTPUT_OPTIONS:
        text = library.option_text(name)
        if text == _NO_FILE:
            continue
        path = absolute_path(text)
        own_path = _report.ranked_path(path, os.environ)
        reason = library.why_not_writable(own_path)
        remedy = "Give a file in an existing, writable directory"
        if reason is None:
            reason, remedy = _why_taken(library, name, own_path, taken), "Give a file of its own"
        if reason is None:
            taken.append((name, own_path))
            library.set_option(name, str(path))
            continue
        option = _options.find(name)
        message = (
            f"Option {name} does not take the value '{shortened(text)}': {reason}. {remedy} with "
            f"{option.flag} or {option.environment}."
        )
        if not is_spawned():
            raise OptionError(message)
        say(f"warning: {message}")
        library.set_option(name, _NO_FILE)


def _input_files(library: Core) -> list[tuple[str, Path]]:
    """The option learn_from with each name under which this process may look for its file."""
    text = library.option_text(_INPUT_OPTION)
    if text == _NO_FILE:
        return []
    path = absolute_path(text)
    return [(_INPUT_OPTION, path), (_INPUT_OPTION, _report.ranked_path(path, os.environ))]


def _why_taken(
    library: Core, name: str, path: Path, taken: Iterable[tuple[str, Path]]
) -> str | None:
    """Why this option cannot have the file, as a clause; None if no other one has it.

    A period may take the place of the one that is followed: that is read at the start, and the file
    then holds the newest period of the program.
    """
    for other, other_path in taken:
        if (name, other) == ("record", _INPUT_OPTION):
            continue
        if library.is_same_output(path, other_path):
            return (
                f"{shortened(str(other_path))} is also the file of the option {other}, and one "
                "would replace the other"
            )
    return None


def check_input_file(library: Core) -> None:
    """Makes the path of the option learn_from absolute.

    Raises OptionError if no period could be read there. Where a launcher starts ranks, each of them
    will read its own file; here one of them is tried.
    """
    text = library.option_text(_INPUT_OPTION)
    if text == _NO_FILE:
        return
    path = absolute_path(text)
    of_ranks = _files_of_ranks(path)
    _read_stored_period(text, of_ranks[0] if of_ranks and not os.path.exists(path) else path)
    library.set_option(_INPUT_OPTION, str(path))


def _files_of_ranks(path: Path) -> list[Path]:
    try:
        return sorted(path.parent.glob(f"{glob.escape(path.stem)}.rank*{glob.escape(path.suffix)}"))
    except OSError:  # the path itself cannot be used; whoever reads it says why
        return []


def _own_input_path(path: Path) -> Path | None:
    """The file that this rank recorded in an earlier launch, or the one of all processes.

    None if this process goes without: a worker of multiprocessing, as the file tells of what its
    parent does, and a rank that has no file where others have one.
    """
    if is_spawned():
        return None
    own = _report.ranked_path(path, os.environ)
    if os.path.exists(own):
        return own
    return path if os.path.exists(path) or not _files_of_ranks(path) else None


def _read_stored_period(text: str, path: Path) -> _period_file.Period:
    try:
        return _period_file.read_period_to_follow(path)
    except _period_file.PeriodError as error:
        raise _refused_input(text, error.problem) from error


def _refused_input(text: str, reason: str) -> OptionError:
    option = _options.find(_INPUT_OPTION)
    return OptionError(
        f"Option {option.name} does not take the value '{shortened(text)}': {reason} Give a file "
        f"that `tencache run --record FILE` wrote with {option.flag} or {option.environment}."
    )


def _follow(library: Core, text: str, path: Path) -> None:
    period = _read_stored_period(text, path)
    try:
        library.learn_from(period.struct, period.op_names)
    except TencacheError as error:
        raise _refused_input(text, f"{path}: {error}.") from error


def _give_stored_period(library: Core) -> None:
    """Raises OptionError for a file that is no good; one warning in a rank that goes without."""
    text = library.option_text(_INPUT_OPTION)
    if text == _NO_FILE:
        return
    path = _own_input_path(absolute_path(text))
    if path is not None:
        _follow(library, text, path)
    elif not is_spawned():
        own = _report.ranked_path(absolute_path(text), os.environ)
        say(f"warning: there is no {own}, so this rank learns without the option learn_from")
    library.set_option(_INPUT_OPTION, _NO_FILE if path is None else str(path))


def absolute_path(text: str) -> Path:
    """Where the path leads however the program changes its folder."""
    path = Path(os.path.expanduser(text))
    try:
        return path.absolute()
    except OSError:
        return path  # The working directory is gone. What tries the path says so.


def make_paths_absolute(environment: MutableMapping[str, str]) -> None:
    """Makes the paths in variables absolute.

    Processes that the program starts read them, perhaps in another folder.
    """
    for name in (_SPILL_DIR, *OUTPUT_OPTIONS, _INPUT_OPTION):
        variable = _options.find(name).environment
        text = environment.get(variable, "")
        path = str(absolute_path(text))
        if text not in ("", _NO_FILE, _backend.AUTO, path):
            environment[variable] = path


def _own_path(name: str, text: str) -> str:
    """This process's output file of that name.

    The core writes the period by itself and knows no ranks, so it gets the name with the rank;
    files written at exit get theirs then.
    """
    path = absolute_path(text)
    return str(_report.ranked_path(path, os.environ) if name == "record" else path)


def _enable_again(enabled: _Enabled, given: Mapping[str, str]) -> None:
    if enabled.pid != os.getpid():
        say(
            "warning: tencache.enable() was called in a forked child of a process that has "
            "tencache: the child keeps readable memory but has no budget and spills nothing. Start "
            "worker processes with the spawn method to give them a runtime of their own."
        )
        return
    for name, text in given.items():
        if name in OUTPUT_OPTIONS and text != _NO_FILE:
            text = _own_path(name, text)
        elif name == _INPUT_OPTION and text != _NO_FILE:
            own = _own_input_path(absolute_path(text))
            text = _NO_FILE if own is None else str(own)
        elif name == _SPILL_DIR and text != _backend.AUTO:
            text = str(absolute_path(text))
        # The core knows that "2GiB" and "2048MiB" are the same value, and refuses any other.
        core().set_option(name, text)


def _enable_first(torch: Any, given: Mapping[str, str]) -> None:
    global _enabled
    torch_version = _torch_version.running(torch)
    library = core()
    doors = shim(torch_version)
    set_checked(library, given)
    check_output_files(library)
    record = library.option_text("record")
    if record != _NO_FILE:
        library.set_option("record", _own_path("record", record))
    _give_stored_period(library)
    library.set_option("backend", _backend.resolve(library.option_text("backend"), torch))
    texts = _texts(library)
    set_log_level(texts["log_level"])
    library.set_label(process_label(os.environ))
    if texts["backend"] == _backend.CUDA:
        # This refuses if there are CUDA tensors already.
        cuda_shim(torch_version).install()
    else:
        # Count the existing tensors first: once the shim is installed, new tensors are ours.
        _warn_of_existing_tensors(torch, library.parse_bytes(texts["extent_min"]))
        doors.install()
    texts = _texts(library)  # the start has made the directory of the spill file absolute
    _enabled = _Enabled(os.getpid(), texts, torch_version.text)
    _inductor.install(library, doors)
    if texts["backend"] == _backend.CUDA:
        _triton.install(library, doors)
        _gpu_groups.install(library, doors, torch._C)
        _green_contexts.install(torch._C)
        _warmup.install()
        _collectives.install(torch)
    else:
        _checkpoints.install(library, torch)
    if texts["trace"] != _NO_FILE:
        _names.install(library)
    make_paths_absolute(os.environ)
    atexit.register(_at_exit)


def _at_exit() -> None:
    """Writes the files and prints the summary, only in the process that called enable()."""
    if _enabled is None or _enabled.pid != os.getpid():
        return
    files = {
        name: Path(_enabled.texts[name])
        for name in OUTPUT_OPTIONS
        if _enabled.texts[name] != _NO_FILE
    }
    if "trace" in files:
        _names.name_modules(core())
    content = _stats_for_file(_enabled, files) if "stats" in files else stats()
    _report.finish(content, files, quiet=_enabled.texts["quiet"] == "on", library=core())


def _stats_for_file(enabled: _Enabled, files: Mapping[str, Path]) -> dict[str, Any]:
    """The stats with what `tencache report` shows besides: the run's life, options, other files."""
    content = stats()
    content["rank"] = rank_of(os.environ)
    content["program"] = sys.argv[0] if sys.argv else ""
    content["options"] = dict(enabled.texts)
    # The period's name has the rank already.
    content["files"] = {
        name: str(path if name == "record" else _report.ranked_path(path, os.environ))
        for name, path in files.items()
        if name != "stats"
    }
    content["history"] = core().history()
    return content


def _warn_of_existing_tensors(torch: Any, extent_min_bytes: int) -> None:
    """Warns once if CPU tensors exist that would have been extents: they stay where they are."""
    # During `import torch` there can be no tensors, and torch's modules are incomplete.
    if not hasattr(torch, "Tensor") or _is_being_imported(torch):
        return
    seen: dict[int, int] = {}
    for candidate in gc.get_objects():
        # Use type(): isinstance() would run __class__ properties of foreign proxies.
        if not issubclass(type(candidate), torch.Tensor):
            continue
        try:
            if candidate.device.type != "cpu":
                continue
            storage = candidate.untyped_storage()
            if storage.nbytes() >= extent_min_bytes:
                seen[storage.data_ptr()] = storage.nbytes()
        except Exception:  # Sparse, fake and functional tensors have no storage of their own, and
            continue  # those of the program's own classes, or of lazy modules, may raise anything.
    seen.pop(0, None)
    if not seen:
        return
    # A warning of Python's would not do: filters hide these, and the program has no budget that
    # holds.
    say(
        f"warning: tencache was enabled after {counted(len(seen), 'tensor')} of "
        f"{_units.format_bytes(sum(seen.values()))} in total had been made: these stay in memory, "
        "outside the budget, and never spill. Enable it before the model is built: put "
        "tencache.enable() at the top of the program, or start it with `tencache run -- python …`."
    )


def _is_being_imported(module: Any) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))
