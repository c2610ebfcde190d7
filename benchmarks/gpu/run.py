# SPDX-License-Identifier: Apache-2.0
"""Everything that needs a GPU, in one run of at most ten minutes: build, tests, benchmarks.

    python benchmarks/gpu/run.py --out results/ [--carried .carried] [--limit 560] [--only suites]
                                 [--small]

Each part runs processes of its own under time limits. A part that fails or hangs costs only its own
time, and all results so far are on disk at any moment:

    DIR/results.json   every part with its status, reason, seconds and figures
    DIR/results.md     the same as tables
    DIR/logs.txt       what the parts printed, one after the other

`benchmarks/gpu/carry.sh .carried` collects and builds beforehand, on a machine without a GPU, what
a machine with one needs: so its time goes into the measurements, and it needs no network. Without a
GPU nothing runs, and the script says why (status 77).

`--small` does the same with a tiny model and one program, on any GPU, even an emulated one
(tests/emulated_gpu/run), to try the script before spending a GPU's time on it. Its figures say
nothing.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reporting import Report, Table

import support
from process_group import run_group

ROOT = support.ROOT
BUILD = ROOT / "build" / "gpu"
# The programs that are not Python, by the part that runs them: folder and name of a target.
PROGRAMS = {"suites": "tests/gpu_core_test", "mappings": "benchmarks/mapping_times"}
SKIPPED = 77
SHARES = (75, 50, 25)
WARMUP, STEPS, STEPS_S = 4, 6, 90.0
# Runs with a disk make fewer steps: on a disk of 1 GB/s, a step that spills 5 GB takes ten seconds.
DISK_WARMUP, DISK_STEPS, DISK_STEPS_S = 3, 2, 180.0
SMALL_SHAPE, SMALL_SHARES, SMALL_WARMUP, SMALL_PROGRAM = "gpt-tiny", (50,), 1, "ema"
PROGRAMS_S = 300.0  # for programs x budgets, of which there could be any number
PROCESSES_MAX = 12  # pytest processes that run the programs
LOG_BYTES_MAX = 4 << 20
GPU_NAME_S = 60.0  # importing torch takes ten seconds; a driver in trouble never answers
# Less time than this is not worth a start: importing torch and transformers takes ten seconds.
PART_S_MIN = 15.0


class Failed(Exception):
    """A part failed; the message says why."""


@dataclass
class Part:
    name: str
    status: str = "not run"
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


class Run:
    """The parts and where they leave their results. Threads: one."""

    def __init__(self, out: Path, limit_s: float, is_small: bool = False) -> None:
        self._out = out
        self.is_small = is_small
        self._deadline = time.monotonic() + limit_s
        self.parts: list[Part] = []
        out.mkdir(parents=True, exist_ok=True)
        (out / "logs.txt").write_text("")

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    def command(self, words: list[str | Path], limit_s: float, **variables: str) -> str:
        """Runs a program, logs and returns its output. Raises Failed with its last lines."""
        limit_s = min(limit_s, self.left_s())
        if limit_s < PART_S_MIN:
            raise Failed("no time was left")
        ended = run_group(words, limit_s, cwd=ROOT, environment={**os.environ, **variables})
        self._log(words, ended.output)
        if ended.status is None:
            raise Failed(f"ran past {limit_s:.0f} s")
        if ended.status != 0:
            last = " / ".join(ended.output.strip().splitlines()[-6:])
            name = Path(str(words[0])).name
            raise Failed(f"{name} ended with {ended.status}: {last[-900:]}")
        return ended.output

    def part(self, name: str, work: Callable[[Part], None]) -> bool:
        """Runs one part; returns whether it passed. It raises nothing."""
        part = Part(name)
        self.parts.append(part)
        begin = time.monotonic()
        try:
            work(part)
            part.status = "passed"
        except (Failed, support.BenchmarkFailed) as failed:
            part.status, part.reason = "failed", str(failed)
        except Exception as error:
            part.status, part.reason = "failed", f"{type(error).__name__}: {error}"
        part.seconds = round(time.monotonic() - begin, 1)
        print(f"{part.name}: {part.status} in {part.seconds:.0f} s {part.reason}", flush=True)
        try:
            self.write()
        except Exception as error:  # the next part writes everything again
            print(f"the results could not be written: {error}", flush=True)
        return part.status == "passed"

    def write(self) -> None:
        report = Report(
            name="results",
            question="Is it right on a GPU, and how fast?",
            command="python benchmarks/gpu/run.py",
            facts={**support.machine_facts(("torch", "transformers")), "gpu": gpu_name()},
            tables=[
                parts_table(self.parts),
                *step_tables(self.parts),
                *mapping_tables(self.parts),
            ],
            data={"parts": [asdict(part) for part in self.parts]},
        )
        report.write(self._out)

    def _log(self, words: list[str | Path], text: str) -> None:
        with (self._out / "logs.txt").open("a") as file:
            file.write(f"\n==== {' '.join(str(word) for word in words)[:300]}\n")
            file.write(text if len(text) < LOG_BYTES_MAX else text[-LOG_BYTES_MAX:])


# ---- Tables ------------------------------------------------------------------------------------


def parts_table(parts: list[Part]) -> Table:
    table = Table("Parts", ("part", "status", "seconds", "remark"))
    for part in parts:
        remark = part.reason or str(part.figures.get("summary", ""))
        table.rows.append((part.name, part.status, f"{part.seconds:.0f}", " ".join(remark.split())))
    return table


def step_tables(parts: list[Part]) -> list[Table]:
    """Step times of each shape against stock."""
    tables = []
    for part in parts:
        rows = part.figures.get("steps", [])
        if not rows:
            continue
        columns = ("variant", "step", "of stock", "peak", "moved a step", "late", "same bits")
        table = Table(f"Training step, {part.name}", columns)
        stock = next((row for row in rows if row["name"] == "stock"), None)
        for row in rows:
            of_stock = f"{row['step_s'] / stock['step_s']:.2f}" if stock else ""
            table.rows.append(
                (
                    row["name"],
                    f"{row['step_s'] * 1e3:.0f} ms",
                    of_stock,
                    support.format_bytes(row["peak_bytes"]),
                    support.format_bytes(row["moved_bytes"]),
                    str(row["late"]),
                    "yes" if stock and row["losses"] == stock["losses"] else "no",
                )
            )
        tables.append(table)
    return tables


def mapping_tables(parts: list[Part]) -> list[Table]:
    """What access to a mapping takes while copies keep the link busy."""
    columns = ("copies", "by", "of MiB", "priority", "pauses", "handles")
    columns += ("of MiB each", "access", "unmap")
    table = Table("Mappings while the link is busy, median", columns)
    for part in parts:
        for row in part.figures.get("mappings", []):
            table.rows.append(
                (
                    row["copies"],
                    "kernel" if row["by_kernel"] else "engine",
                    str(row["copy_mib"]),
                    "high" if row["high_priority"] else "normal",
                    "yes" if row["pauses"] else "no",
                    str(row["handles"]),
                    str(row["handle_mib"]),
                    f"{row['access_median_us']:.1f} us",
                    f"{row['unmap_median_us']:.1f} us",
                )
            )
    return [table] if table.rows else []


@functools.cache
def gpu_name() -> str:
    # Where there is no nvidia-smi, ask in a separate process: a context here would take memory from
    # the programs.
    command = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
    if program := shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max"
        command = [program, query, "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GPU_NAME_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "unknown"
    return done.stdout.strip() or "unknown"


# ---- Parts -------------------------------------------------------------------------------------


def install(run: Run, part: Part, carried: Path | None) -> None:
    """Installs the carried packages into the system and the Python that runs this.

    This package is built here where it was not carried.
    """
    if carried is not None:
        for package in sorted(carried.glob("*.deb")):
            run.command(["dpkg", "-x", package, "/"], 60)
        own = set(carried.glob("tencache-*.whl"))
        others = set(carried.glob("*.whl")) - own
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
        pip += ["--break-system-packages"]
        if others:
            run.command([*pip, *sorted(others)], 120)
        if own:
            # A machine that was used before may have this version of an earlier commit; pip would
            # keep it.
            run.command([*pip, "--force-reinstall", *own], 120)
            part.figures["summary"] = "carried"
            return
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    output = run.command([*pip, "--no-index", "--break-system-packages", "."], 300)
    part.figures["summary"] = output.strip().splitlines()[-1]


def program(run: Run, part: Part, carried: Path | None) -> str:
    """The output of the program of this part, which is built here where it was not carried."""
    target = PROGRAMS[part.name]
    path = carried / Path(target).name if carried is not None else None
    if path is None or not path.exists():
        configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
        configure += [f"-DPython3_EXECUTABLE={sys.executable}"]
        options = ["-DTENCACHE_BUILD_TORCH=OFF", "-DTENCACHE_BUILD_TESTS=ON"]
        options += ["-DTENCACHE_BUILD_BENCHMARKS=ON"] if target.startswith("benchmarks/") else []
        run.command([*configure, *options], 60)
        run.command(["cmake", "--build", BUILD, "--target", Path(target).name], 240)
        path = BUILD / target
    # In these folders the program finds the NVRTC that torch brings along; a carried program knows
    # no other.
    folders = [*nvidia_folders(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return run.command([path], 120, LD_LIBRARY_PATH=os.pathsep.join(map(str, folders)))


def nvidia_folders() -> list[Path]:
    """The folders with libraries of NVIDIA's that pip has installed."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return sorted(path for place in places or () for path in Path(place).glob("*/lib"))


def suites(run: Run, part: Part, carried: Path | None) -> None:
    """The core on the real driver."""
    output = program(run, part, carried)
    if "SKIPPED" in output:
        raise Failed("skipped on a machine that has a GPU: see logs.txt")
    part.figures["summary"] = output.strip().splitlines()[-1]


def mappings(run: Run, part: Part, carried: Path | None) -> None:
    """What the driver's mappings take while the link is busy."""
    lines = program(run, part, carried).splitlines()
    part.figures["mappings"] = [json.loads(line) for line in lines if line.startswith("{")]


def programs(run: Run, part: Part) -> None:
    """All programs x budgets x chaos."""
    pytest = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-ra", "--no-header"]
    processes = str(min(PROCESSES_MAX, os.cpu_count() or 1))
    parallel = ["--numprocesses", processes, "--dist", "loadgroup"] if has_module("xdist") else []
    chosen = ["-k", SMALL_PROGRAM] if run.is_small else []
    output = run.command([*pytest, *parallel, *chosen], PROGRAMS_S, HF_HUB_OFFLINE="1")
    part.figures["summary"] = output.strip().splitlines()[-1]


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def training(run: Run, part: Part, shape: str) -> None:
    """Step times: stock, then a budget that holds everything, then shares of stock's peak."""
    steps = Steps(run, part, shape)
    peak_bytes = steps.measure(support.STOCK)["peak_bytes"]
    steps.attempt(tencache_variant("all fits"))
    for share in SMALL_SHARES if run.is_small else SHARES:
        budget_bytes = peak_bytes * share // 100
        steps.attempt(tencache_variant(f"tencache {share}%", device_memory=budget_bytes))
    steps.finish()


def alternatives(run: Run, part: Part) -> None:
    """What a user would pick instead."""
    steps = Steps(run, part, "gpt-1.3b")
    steps.measure(support.STOCK)
    for instead in ("checkpoint", "save_on_cpu"):
        steps.attempt(support.STOCK, instead)
    steps.finish()


def disk(run: Run, part: Part) -> None:
    """Half of the peak on the GPU, and host memory for only a part of the rest."""
    steps = Steps(run, part, "gpt-1.3b-small-batch", DISK_WARMUP, DISK_STEPS, DISK_STEPS_S)
    peak_bytes = steps.measure(support.STOCK)["peak_bytes"]
    budgets = {"device_memory": peak_bytes // 2, "host_memory": peak_bytes * 3 // 10}
    steps.attempt(tencache_variant("tencache 50%, disk", **budgets))
    steps.attempt(tencache_variant("the same, direct", **budgets, direct_storage=1))
    steps.finish()


class Steps:
    """Measures training steps of one shape, one process for each variant. Threads: one."""

    def __init__(
        self,
        run: Run,
        part: Part,
        shape: str,
        warmup: int = WARMUP,
        steps: int = STEPS,
        limit_s: float = STEPS_S,
    ) -> None:
        self._run = run
        self._job: dict[str, Any] = {"shape": shape, "device": "cuda"}
        self._job |= {"warmup": warmup, "steps": steps}
        if run.is_small:
            self._job |= {"shape": SMALL_SHAPE, "warmup": SMALL_WARMUP}
        self._limit_s = limit_s
        self._rows: list[dict[str, Any]] = []
        self._failures: list[str] = []
        part.figures["steps"] = self._rows

    def measure(self, variant: support.Variant, instead: str | None = None) -> dict[str, Any]:
        if self._run.left_s() < PART_S_MIN:
            raise Failed("no time was left for " + variant.name)
        job = self._job if instead is None else {**self._job, "instead": instead}
        limit_s = min(self._limit_s, self._run.left_s())
        result = support.run_worker("gpu/step.py", job, variant, timeout_s=limit_s)
        self._rows.append(step_row(instead or variant.name, result))
        self._run.write()
        return self._rows[-1]

    def attempt(self, variant: support.Variant, instead: str | None = None) -> None:
        """Measures; a failure does not keep the next variants from running."""
        try:
            self.measure(variant, instead)
        except (Failed, support.BenchmarkFailed) as failed:
            self._failures.append(f"{instead or variant.name}: {failed}")

    def finish(self) -> None:
        """Raises Failed if a variant failed, or if one with tencache has other losses than stock.

        An alternative without tencache may compute something else: save_on_cpu does.
        """
        stock = self._rows[0]
        self._failures += [
            f"{row['name']}: its losses differ from stock's"
            for row in self._rows
            if row["stats"] is not None and row["losses"] != stock["losses"]
        ]
        if self._failures:
            raise Failed("; ".join(self._failures))


def tencache_variant(name: str, **options: object) -> support.Variant:
    return support.Variant(name, {"backend": "cuda", **options})


def step_row(name: str, result: dict[str, Any]) -> dict[str, Any]:
    after, before = result["stats"], result["stats_before"]
    moved = late = 0
    if after is not None:
        for key in ("evicted", "fetched"):
            moved += after["bytes"][key] - before["bytes"][key]
        late = after["fetches"]["late"] - before["fetches"]["late"]
    return {
        "name": name,
        "step_s": support.median(result["seconds"]),
        "seconds": result["seconds"],
        "peak_bytes": after["peak"]["device"] if after else result["allocated_peak_bytes"],
        "moved_bytes": moved // len(result["seconds"]),
        "late": late,
        "losses": result["losses"],
        "thread_seconds": result["thread_seconds"],
        "parameters": result["parameters"],
        "stats": after,
    }


def missing() -> str:
    """Why nothing can run here; empty if everything can."""
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    return "" if torch.cuda.device_count() else "torch finds no GPU"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--carried", type=Path, help="folder that carry.sh has filled")
    parser.add_argument("--limit", type=float, default=560, help="seconds for everything")
    parser.add_argument("--small", action="store_true", help="try the script out")
    parser.add_argument("--only", default="", help="names of parts, with commas between them")
    arguments = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits in every run
    run = Run(arguments.out, arguments.limit, arguments.small)
    parts: dict[str, Callable[[Part], None]] = {
        "install": lambda part: install(run, part, arguments.carried),
        "suites": lambda part: suites(run, part, arguments.carried),
        "mappings": lambda part: mappings(run, part, arguments.carried),
        "gpt-1.3b": lambda part: training(run, part, "gpt-1.3b"),
        "programs": lambda part: programs(run, part),
        "gpt-1.3b-small-batch": lambda part: training(run, part, "gpt-1.3b-small-batch"),
        "disk": lambda part: disk(run, part),
        "alternatives": lambda part: alternatives(run, part),
    }
    chosen = arguments.only.split(",") if arguments.only else list(parts)
    unknown = [name for name in chosen if name not in parts]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}; there are {', '.join(parts)}")
    passed = []
    for name in chosen:
        passed.append(run.part(name, parts[name]))
        if name == "install" and not passed[-1]:
            print("nothing else can run without it")
            break
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
