# SPDX-License-Identifier: Apache-2.0
"""Runs programs in forked children of a process that has already imported what they need.

Importing torch takes two seconds, transformers eight more; most programs here take one. The server
is told which of IMPORTS it is to do. It only imports: it makes no tensor, runs no op and starts no
thread pool, and tencache is not enabled in it. Each child sets its variables and calls the entry
points of torch.backends, which `import torch` calls last. From there on it is what `python
program.py` would be.

Protocol: each line on stdin is a JSON object, a Job of preforked.py. The answer on stdout is the
child's exit status: negative if a signal killed it, "timeout" if we killed it for its time, after
the stacks of its threads went into its errors. If `profile` is a file name, the program's peak goes
into that file, as torch's memory profiler, or on a GPU torch's allocator, reports it. The end of
stdin ends the server. One program runs at a time.

The server's first line is "ready". If a library that it imported has started a thread, which forked
children would lack, the line is "once": then the server itself becomes the first program that it is
given, and its exit status is that program's.
"""

import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import sys
import time

DUMP_S = 1.0  # time to write the stacks before the child is killed


def import_torch():
    """Imports what short programs import."""
    import numpy  # noqa: F401
    import torch  # noqa: F401


def import_programs():
    """Imports what the programs import, and what torch and transformers would import lazily."""
    import torch
    import torch._dynamo
    import torch.optim.swa_utils
    import torch.testing  # noqa: F401
    from transformers import (  # noqa: F401
        GPT2LMHeadModel,
        LlamaForCausalLM,
        MixtralForCausalLM,
        T5ForConditionalGeneration,
        Trainer,
        TrainingArguments,
    )


IMPORTS = {"torch": import_torch, "programs": import_programs}


def open_streams(job):
    """Gives the child its own standard streams."""
    log = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    errors = log
    if job["errors"] is not None:
        errors = os.open(job["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, opened in enumerate((null, log, errors)):
        os.dup2(opened, descriptor)
    for opened in {null, log, errors}:
        os.close(opened)
    faulthandler.register(signal.SIGUSR1, file=2)


def become(job):
    """Turns this forked child into the program; returns when the program has ended."""
    open_streams(job)
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    sys.argv = [job["program"], *job["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    folders = job["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:1] = [os.path.dirname(job["program"]), *filter(None, folders)]

    import torch

    torch._import_device_backends()
    if job["profile"] is None:
        runpy.run_path(job["program"], run_name="__main__")
        return
    if os.environ.get("PROGRAM_DEVICE", "cpu") == "cpu":
        with torch.autograd.profiler.profile(profile_memory=True) as profiler:
            runpy.run_path(job["program"], run_name="__main__")
        peak_bytes = peak_of_tensors(profiler)
    else:
        runpy.run_path(job["program"], run_name="__main__")
        peak_bytes = torch.cuda.max_memory_allocated()
    with open(job["profile"], "w") as file:
        file.write(str(peak_bytes))


def peak_of_tensors(profiler):
    """The highest sum of the tensors' bytes, from the reports of torch's own allocator."""
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    held_bytes = peak_bytes = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held_bytes += event.nbytes()
        peak_bytes = max(peak_bytes, held_bytes)
    return peak_bytes


def status_of(child, timeout_s):
    """Waits for the child's end; kills it if it takes too long."""
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    in_time = poll.poll(timeout_s * 1000)
    if not in_time:
        os.kill(child, signal.SIGUSR1)
        time.sleep(DUMP_S)
        os.kill(child, signal.SIGKILL)
    os.close(descriptor)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if in_time else "timeout"


def main():
    if any(name.startswith("TENCACHE") for name in os.environ):
        raise SystemExit("the server must not have tencache enabled: unset the TENCACHE variables")
    IMPORTS[sys.argv[1]]()
    if len(os.listdir("/proc/self/task")) != 1:
        print("once", flush=True)
        become(json.loads(sys.stdin.readline()))
        return
    # Without this call, a child that ends would look at all that was imported, and so copy it.
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            become(job)
            return
        print(status_of(child, job["timeout_s"]), flush=True)


if __name__ == "__main__":
    main()
