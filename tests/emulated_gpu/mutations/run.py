#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes one line of tencache at a time and checks whether a program notices it.

    tests/emulated_gpu/mutations/run.py [--only TEXT] [--out FILE]

Each mutation of catalogue.py is built into a copy of the installed package: one object is compiled
from a changed copy of its source, and its library linked with it (mutated_package.py). The working
tree stays as it is. Then the program that is to notice it runs on the emulated GPU. First the
programs run unchanged, and must pass. The table is printed, and written to FILE with a heading; the
exit status is 1 when a mutation goes unnoticed, or is noticed in another way than the catalogue
says, or a program fails without one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from catalogue import MUTATIONS, RUNS, Mutation
from mutated_package import MutatedPackage

from environment import MAIN, build_emulated_gpu, install_package
from process_group import run_group

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 300
HEADING = """# mutations

Would the emulated GPU notice a mistake in tencache? One line of tencache is changed at a time, and
a program runs that is to notice it; rows named "none" are those programs with tencache as it is,
which pass.

    tests/emulated_gpu/mutations/run.py --out benchmarks/results/mutations.md

- **{noticed} of {count} mutations are noticed**: by wrong bits, an illegal address on the device,
  a failed test of the program, or a call that names a destroyed stream.

Seconds are those of a machine with 2 cores that other programs used as well, compiling the changed
source included. They say nothing about a GPU.
"""
# Copies by a kernel are slower than those by engines on the usual link, and a new stream may have
# the handle of a destroyed one.
VARIABLES = {"EMULATED_GPU_KERNEL_BYTES_PER_S": "1GB", "EMULATED_GPU_REUSE_STREAMS": "1"}


@dataclass(frozen=True)
class Outcome:
    how: str  # "" if the program passed
    seconds: float
    output: str


def how_it_ended(status: int | None, output: str) -> str:
    if status == 0:
        return ""
    if status is None:
        return "hung"
    if "which was destroyed" in output:
        return "destroyed stream"
    if "ILLEGAL ADDRESS" in output or "illegal memory access" in output or status < 0:
        return "illegal address"
    for how in ("wrong bits", "failed test"):
        if f"{how}: " in output:
            return how
    return "failed otherwise"


def run_program(name: str, package: Path | None = None) -> Outcome:
    """Runs the program with the installed package, or with the one in that folder."""
    environment = {key: value for key, value in os.environ.items() if "TENCACHE" not in key}
    environment |= VARIABLES
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    run = RUNS[name]
    python = str(MAIN.python)
    tencache = [python, "-m", "tencache", "run", "--quiet", "--backend", "cuda"]
    tencache += ["--device-memory", run.device_memory, *run.options]
    program = [python, str(HERE / "programs.py"), name]
    command = [
        str(HERE.parent / "run"),
        "--gpus",
        str(run.gpus),
        "--link",
        run.link,
        "--",
        *tencache,
        "--",
        *program,
    ]
    begin = time.monotonic()
    ended = run_group(command, TIMEOUT_S, environment=environment)
    how = how_it_ended(ended.status, ended.output)
    return Outcome(how, time.monotonic() - begin, ended.output)


def examine(mutation: Mutation, folder: Path) -> Outcome:
    begin = time.monotonic()
    package = MutatedPackage(mutation, folder).make()
    outcome = run_program(mutation.noticed_by, package)
    return Outcome(outcome.how, time.monotonic() - begin, outcome.output)


def wanted_mutations(only: str) -> list[Mutation]:
    return [mutation for mutation in MUTATIONS if only in mutation.name]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="mutations with it in their name"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table to it")
    chosen = parser.parse_args(arguments)
    mutations = wanted_mutations(chosen.only)
    if not mutations:
        parser.error(f"no mutation has {chosen.only!r} in its name")
    install_package(MAIN)
    build_emulated_gpu(MAIN)
    rows = ["| mutation | source | program | noticed by | s |", "|---|---|---|---|--:|"]
    failed = []

    def note(
        name: str, source: str, program: str, outcome: Outcome, expected: tuple[str, ...]
    ) -> None:
        is_right = outcome.how in expected
        rows.append(
            f"| {name} | {source} | {program} | {outcome.how or '-'} | {outcome.seconds:.0f} |"
        )
        print(
            rows[-1] if is_right else f"{rows[-1]}  <- NOT AS EXPECTED\n{outcome.output}",
            flush=True,
        )
        if not is_right:
            failed.append(name)

    print(*rows, sep="\n", flush=True)
    for program in dict.fromkeys(mutation.noticed_by for mutation in mutations):
        note("none", "", f"`{program}`", run_program(program), ("",))
    for mutation in mutations:
        with tempfile.TemporaryDirectory(prefix="tencache-mutation-") as folder:
            outcome = examine(mutation, Path(folder))
        note(
            mutation.name, f"`{mutation.source}`", f"`{mutation.noticed_by}`", outcome, mutation.how
        )
    noticed = len(mutations) - len([name for name in failed if name != "none"])
    if chosen.out is not None:
        heading = HEADING.format(noticed=noticed, count=len(mutations))
        chosen.out.write_text("\n".join([heading, *rows]) + "\n")
    print(f"{noticed} of {len(mutations)} mutations noticed", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
