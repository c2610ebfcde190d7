# SPDX-License-Identifier: Apache-2.0
"""Trains the same model twice, stock and beyond a memory budget, and compares every bit.

1. Measures the memory that stock PyTorch needs: runs two steps of examples/train_gpt2.py. On the
   CPU malloc is set to return large blocks as soon as they are freed, so that the growth of
   resident memory is the peak of the tensors.
2. Trains with stock PyTorch.
3. Trains again under `tencache run` with a device budget of 38% of that peak. On the CPU the rest
   goes to disk, with --cuda to host memory.

Prints the losses of both runs, the differing bits of losses, gradient norms, parameters and
optimizer state (from the checkpoints of both runs, and from hashes of the live tensors), peak bytes
against the budget, bytes moved, the time of both, and a plot of memory over time. Ends with a page
about the run (`tencache report`), which stays. Exits with 1 if a bit differs or the budget was not
kept.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import plotext
from rich.console import Console
from rich.table import Table
from rich.text import Text

SCRIPT = Path(__file__).with_name("train_gpt2.py")
# Blocks of GIVE_BACK_BYTES and larger get their own mapping, which is returned when they are freed.
# malloc keeps smaller blocks, a few MB in all.
GIVE_BACK_BYTES = 1 << 20
CHUNK_BYTES = 16 << 20

# Losses are shown with all their digits, even if no terminal tells its width.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def format_bytes(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"


def stock_environment():
    """The variables of this process but tencache's, with which torch would not be stock."""
    return {name: text for name, text in os.environ.items() if not name.startswith("TENCACHE")}


def run(title, command, environment=None):
    """Runs a command on this terminal, with these variables or else this process's own.

    Returns its wall-clock seconds.
    """
    console.rule(title)
    console.print("[dim]$ " + " ".join(str(part) for part in command), soft_wrap=True)
    begin = time.monotonic()
    status = subprocess.run(command, env=environment).returncode
    if status != 0:
        console.print(f"[red]The command above ended with status {status}; the demo stops here.")
        sys.exit(1)
    return time.monotonic() - begin


def train_command(folder, steps, options):
    return [
        sys.executable,
        str(SCRIPT),
        "--steps",
        str(steps),
        "--output",
        str(folder / "checkpoints"),
        "--report",
        str(folder / "report.json"),
        *(["--cuda"] if options.cuda else []),
    ]


def measure_peak(folder, options):
    environment = {
        **stock_environment(),
        "MALLOC_MMAP_THRESHOLD_": str(GIVE_BACK_BYTES),
        "MALLOC_MMAP_MAX_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": "0",
    }
    run(
        "1 of 3: how much memory does stock PyTorch need?",
        train_command(folder, 2, options),
        environment,
    )
    report = json.loads((folder / "report.json").read_text())
    shutil.rmtree(folder)
    return report["peak_bytes"]


def tencache_executable():
    """The tencache command beside this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name("tencache")
    found = str(beside) if beside.exists() else shutil.which("tencache")
    if not found:
        sys.exit(f"no tencache command beside {sys.executable} nor on PATH: run `make build` first")
    return found


# ---- Comparing ----------------------------------------------------------------------------------


def float_bits(stock, other):
    """Differing bits of two lists of float.hex() texts."""
    assert len(stock) == len(other) and stock, "both runs report the same number of values"
    pairs = zip(stock, other, strict=True)
    raw = (
        (struct.pack("<d", float.fromhex(a)), struct.pack("<d", float.fromhex(b))) for a, b in pairs
    )
    return sum(array_bits(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8)) for a, b in raw)


def array_bits(stock, other):
    """Differing bits of two byte arrays, a chunk at a time."""
    if stock.size != other.size:
        raise SystemExit(f"sizes differ: {stock.size} and {other.size} bytes")
    count = 0
    for begin in range(0, stock.size, CHUNK_BYTES):
        part = slice(begin, begin + CHUNK_BYTES)
        count += int(np.bitwise_count(stock[part] ^ other[part]).sum())
    return count


def tensor_bits(stock, other):
    """Differing bits of two dictionaries of tensors; both must have the same names."""
    import torch

    def as_bytes(tensor):
        return (
            tensor.reshape(-1).view(torch.uint8).numpy()
            if tensor.numel()
            else np.empty(0, np.uint8)
        )

    if stock.keys() != other.keys():
        raise SystemExit(f"names differ: {sorted(stock.keys() ^ other.keys())}")
    return sum(array_bits(as_bytes(stock[name]), as_bytes(other[name])) for name in stock)


def checkpoint_tensors(folder):
    """The parameters and the optimizer state of the one checkpoint under `folder`."""
    import torch
    from safetensors.torch import load_file

    (checkpoint,) = (folder / "checkpoints").glob("checkpoint-*")
    state = torch.load(checkpoint / "optimizer.pt", map_location="cpu", mmap=True)["state"]
    flat = {f"{index}.{name}": value for index, s in state.items() for name, value in s.items()}
    return load_file(checkpoint / "model.safetensors"), flat


def compare(stock_folder, other_folder, stock, other):
    """The number of differing bits for each thing compared."""
    bits = {}
    for key in ("losses", "eval_losses", "gradient_norms"):
        bits[key.replace("_", " ")] = float_bits(stock[key], other[key])
    parameters, state = checkpoint_tensors(stock_folder)
    parameters_other, state_other = checkpoint_tensors(other_folder)
    bits["parameters (checkpoint)"] = tensor_bits(parameters, parameters_other)
    bits["optimizer state (checkpoint)"] = tensor_bits(state, state_other)
    return bits


def differing_hashes(stock, other):
    """How many live tensors (parameters and optimizer state) end with different hashes."""
    count = 0
    for key in ("parameters", "optimizer"):
        assert stock[key].keys() == other[key].keys()
        count += sum(stock[key][name] != other[key][name] for name in stock[key])
    return count


# ---- Reporting ----------------------------------------------------------------------------------


def print_losses(stock, other):
    table = Table(title="Exact losses and gradient norms", title_justify="left")
    for column in ("step", "loss, stock", "loss, tencache", "norm, stock", "norm, tencache"):
        table.add_column(column, justify="right")
    rows = zip(
        stock["losses"],
        other["losses"],
        stock["gradient_norms"],
        other["gradient_norms"],
        strict=True,
    )
    for step, row in enumerate(rows, 1):
        table.add_row(str(step), *(repr(float.fromhex(value)) for value in row))
    for index, row in enumerate(zip(stock["eval_losses"], other["eval_losses"], strict=True), 1):
        table.add_row(f"eval {index}", *(repr(float.fromhex(value)) for value in row))
    console.print(table)


def print_summary(device, bits, hashes, stats, peak, seconds):
    title = f"Stock against tencache, on {device}"
    table = Table(title=title, title_justify="left", show_header=False)
    for what, count in bits.items():
        table.add_row(f"differing bits, {what}", str(count))
    table.add_row("differing hashes of live tensors", str(hashes))
    budget, used = stats["budget"]["device"], stats["peak"]["device"]
    moved = stats["bytes"]
    table.add_row("peak of tensors, stock", format_bytes(peak))
    table.add_row("budget, tencache", f"{format_bytes(budget)} ({100 * budget / peak:.0f}% of it)")
    table.add_row(
        "peak, tencache", f"{format_bytes(used)} ({100 * used / budget:.1f}% of the budget)"
    )
    table.add_row("times over the budget", str(stats["over_budget"]["events"]))
    table.add_row(
        "evicted / fetched", f"{format_bytes(moved['evicted'])} / {format_bytes(moved['fetched'])}"
    )
    early = moved["fetched_early"]
    share = 100 * early / max(1, moved["fetched"])
    table.add_row(
        "fetched before its use", f"{format_bytes(early)} ({share:.0f}% of what came back)"
    )
    table.add_row(
        "written to / read from disk",
        f"{format_bytes(moved['disk_written'])} / {format_bytes(moved['disk_read'])}",
    )
    table.add_row("evicted without a write (clean)", format_bytes(moved["clean_dropped"]))
    table.add_row("waited for data", f"{stats['stall_s']:.1f} s")
    for phase, (stock_s, other_s) in seconds.items():
        ratio = f"{stock_s:.1f} s / {other_s:.1f} s = {other_s / stock_s:.2f} x"
        table.add_row(f"{phase}, stock / tencache", ratio)
    if "Emulated" in device:
        table.add_row("these times", "say nothing: the CPU does the GPU's work")
    console.print(table)


def print_memory(stats):
    """Plots the bytes on each tier over the run."""
    history = stats["history"]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(console.width, 100), 16)
    plotext.title("GiB on each tier over the seconds of the run")
    budget = stats["budget"]["device"] / (1 << 30)
    for tier, name in (("device", "in memory"), ("host", "host memory"), ("disk", "on disk")):
        if any(history[tier]):
            plotext.plot(
                history["at_s"], [count / (1 << 30) for count in history[tier]], label=name
            )
    plotext.hline(budget)
    plotext.ylim(0, None)
    console.print(Text.from_ansi(plotext.build()))
    console.print(f"The line at {budget:.2f} GiB is the budget.")


def write_report(tencache, folder):
    """Writes the page about the run; returns its path."""
    stats, page = folder / "demo.json", folder / "demo.html"
    command = [tencache, "report", str(stats), "--output", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return page


def verdict(bits, hashes, stats):
    """True if the run kept its promises; prints each one that it broke."""
    broken = [f"{count} differing bits in {what}" for what, count in bits.items() if count]
    if hashes:
        broken.append(f"{hashes} live tensors differ")
    over = stats["over_budget"]
    if over["events"]:
        excess = format_bytes(over["peak_bytes"])
        broken.append(f"times over the budget: {over['events']}, by {excess} at most")
    elif stats["peak"]["device"] > stats["budget"]["device"]:
        broken.append("the peak exceeds the budget and no event says so")
    if not stats["bytes"]["evicted"]:
        broken.append("nothing was evicted: the budget was never felt")
    for line in broken:
        console.print(f"[red]FAILED: {line}")
    if not broken:
        console.print("[green]Same bits, within the budget.")
    return not broken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.38, help="budget as a share of the peak")
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("build"),
        help="folder for checkpoints, removed at the end, and for demo.json and demo.html",
    )
    options = parser.parse_args()
    tencache = tencache_executable()
    options.work.mkdir(parents=True, exist_ok=True)
    stats_path = options.work / "demo.json"
    with tempfile.TemporaryDirectory(prefix="demo-", dir=options.work) as folder:
        folders = [Path(folder) / name for name in ("peak", "stock", "tencache")]
        for path in folders:
            path.mkdir()
        peak = measure_peak(folders[0], options)
        stock_s = run(
            "2 of 3: stock PyTorch",
            train_command(folders[1], options.steps, options),
            stock_environment(),
        )
        prefix = [tencache, "run", "--device-memory", str(int(options.share * peak))]
        prefix += ["--stats", str(stats_path), "--"]
        title = f"3 of 3: tencache with {100 * options.share:.0f}% of that memory"
        other_s = run(title, prefix + train_command(folders[2], options.steps, options))
        console.rule("Result")
        stock, other = (json.loads((path / "report.json").read_text()) for path in folders[1:])
        stats = json.loads(stats_path.read_text())
        bits = compare(folders[1], folders[2], stock, other)
        hashes = differing_hashes(stock, other)
    seconds = {
        "training": (stock["train_runtime_s"], other["train_runtime_s"]),
        "whole process": (stock_s, other_s),
    }
    print_losses(stock, other)
    print_summary(stock["device"], bits, hashes, stats, peak, seconds)
    print_memory(stats)
    is_kept = verdict(bits, hashes, stats)
    console.print(f"A page about the run: {write_report(tencache, options.work)}", soft_wrap=True)
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
