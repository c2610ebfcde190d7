# SPDX-License-Identifier: Apache-2.0
"""The programs that the benchmarks train: a GPT-2 of the transformers library and a small CNN.

A worker (support.run_worker) trains one of them. It answers with the time of each step, the
processor time of all its threads, the losses to the last bit, a digest of all parameters and
optimizer states, memory use, and tencache's counts from the end of the warm-up to the last step. A
job may name a `usage_file` of a memory cgroup, which is read before the model is built. It may also
give `arm_bytes`: after the measured steps that much is allocated for a moment, which arms tencache,
and as many steps follow. And it may give `pauses`, the `pid` of another process and a number of
`steps`: training goes in parts of that many steps, and beside half of the parts that process stands
still. The answer then also has the processor time that the process took in each part. The training
loop is plain PyTorch and does not know whether tencache is there.

Data are random but seeded, so two workers with the same job compute the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import support

if TYPE_CHECKING:
    import torch

_SEED = 20


@dataclass(frozen=True)
class GptShape:
    """A decoder of the GPT-2 architecture, and what it is trained on."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    lengths: tuple[int, ...] = ()  # of the batches, in turn; empty: always `sequence`
    kind: str = "gpt"


@dataclass(frozen=True)
class CnnShape:
    """A residual CNN with four stages that halve the picture and double the channels."""

    channels: int
    blocks: int
    pixels: int
    batch: int
    classes: int = 100
    kind: str = "cnn"


Shape = GptShape | CnnShape


def job(shape: Shape, *, warmup: int, steps: int, digest: bool = False) -> dict[str, Any]:
    """A worker's job. `digest` asks for the digest of the final state."""
    return {"shape": asdict(shape), "warmup": warmup, "steps": steps, "digest": digest}


def peak_job(shape: Shape) -> dict[str, Any]:
    """A job that asks only for the peak of live tensor bytes, `peak_bytes`."""
    return {"shape": asdict(shape), "profile_peak": True}


def describe(shape: Shape, parameter_count: int) -> str:
    if isinstance(shape, GptShape):
        return (
            f"GPT-2 of {parameter_count / 1e6:.0f} M parameters ({shape.layers} layers of "
            f"{shape.width}, vocabulary {shape.vocabulary}), batch {shape.batch} x {shape.sequence}"
        )
    return (
        f"residual CNN of {parameter_count / 1e6:.1f} M parameters, batch {shape.batch} of "
        f"3 x {shape.pixels} x {shape.pixels}"
    )


# ---- The programs ------------------------------------------------------------------------------


@dataclass
class Program:
    """A model, its optimizer, and the loss of the step of a given number."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]


def build(shape: Mapping[str, Any]) -> Program:
    import torch

    torch.manual_seed(_SEED)
    values = {name: value for name, value in shape.items() if name != "kind"}
    if shape["kind"] == "gpt":
        model, loss = _gpt(GptShape(**values))
    else:
        model, loss = _cnn(CnnShape(**values))
    model.train()
    return Program(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), loss)


def _gpt(shape: GptShape) -> tuple[torch.nn.Module, Callable[[int], torch.Tensor]]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=shape.layers,
        n_embd=shape.width,
        n_head=shape.heads,
        vocab_size=shape.vocabulary,
        n_positions=shape.sequence,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)

    def loss(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        length = shape.lengths[step % len(shape.lengths)] if shape.lengths else shape.sequence
        tokens = torch.randint(shape.vocabulary, (shape.batch, length), generator=generator)
        result: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return result

    return model, loss


def _cnn(shape: CnnShape) -> tuple[torch.nn.Module, Callable[[int], torch.Tensor]]:
    import torch
    from torch import nn

    def convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = convolution(channels, channels, 1)
            self.second = convolution(channels, channels, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = x + self.second(self.first(x))
            return result

    layers: list[nn.Module] = [convolution(3, shape.channels, 1)]
    channels = shape.channels
    for _stage in range(4):
        layers += [convolution(channels, channels * 2, 2)]
        channels *= 2
        layers += [Residual(channels) for _ in range(shape.blocks)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, shape.classes)]
    model = nn.Sequential(*layers)

    def loss(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        pictures = torch.randn(shape.batch, 3, shape.pixels, shape.pixels, generator=generator)
        labels = torch.randint(shape.classes, (shape.batch,), generator=generator)
        return nn.functional.cross_entropy(model(pictures), labels)

    return model, loss


# ---- The worker --------------------------------------------------------------------------------


def memory_bytes(field: str) -> int:
    """A field of this process' status, such as VmHWM (the most that was ever resident)."""
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert match is not None, field
    return int(match[1]) * support.KIB


def state_digest(program: Program) -> str:
    """A digest of every parameter, buffer and optimizer state, in order."""
    import torch

    digest = hashlib.sha256()
    tensors = [*program.model.parameters(), *program.model.buffers()]
    for state in program.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass
class StepTimes:
    """The steps from number `first` on: their losses and times."""

    first: int = 0
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    def train(self, program: Program, steps: int) -> None:
        for _ in range(steps):
            begin, processor_begin = time.perf_counter(), time.process_time()
            self.losses.append(_train_step(program, self.first + len(self.losses)))
            self.step_s.append(time.perf_counter() - begin)
            self.processor_s.append(time.process_time() - processor_begin)


def _train_step(program: Program, number: int) -> float:
    loss = program.loss(number)
    loss.backward()
    program.optimizer.step()
    program.optimizer.zero_grad()
    return loss.item()


def is_paused_in(part: int) -> bool:
    """With, without, without, with, and so on: what drifts meanwhile drifts for both."""
    return part % 4 in (1, 2)


def processor_s(pid: int) -> float:
    """User and system time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def train_beside(
    times: StepTimes, program: Program, steps: int, pauses: Mapping[str, int]
) -> list[float]:
    """Trains beside a process that pauses; returns its processor time by part."""
    pid = pauses["pid"]
    taken_s = []
    for part in range(steps // pauses["steps"]):
        os.kill(pid, signal.SIGSTOP if is_paused_in(part) else signal.SIGCONT)
        begin_s = processor_s(pid)
        times.train(program, pauses["steps"])
        taken_s.append(processor_s(pid) - begin_s)
    os.kill(pid, signal.SIGCONT)
    return taken_s


def counted(before: Any, after: Any) -> Any:
    """after - before for every number of two stats of the same form."""
    if isinstance(after, Mapping):
        before = before if isinstance(before, Mapping) else {}  # it was not there yet
        return {name: counted(before.get(name, 0), value) for name, value in after.items()}
    if isinstance(after, bool) or not isinstance(after, (int, float)):
        return after
    return after - before


def live_tensor_peak_bytes(shape: Mapping[str, Any], steps: int = 2) -> int:
    """The most bytes that tensors held at once, from torch's profiler.

    This is exact, whatever the allocator keeps or rounds.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        program = build(shape)
        for number in range(steps):
            _train_step(program, number)
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    live_bytes = peak_bytes = 0
    for _at_ns, change_bytes in sorted(changes, key=lambda change: change[0]):
        live_bytes += change_bytes
        peak_bytes = max(peak_bytes, live_bytes)
    return peak_bytes


def work(request: Mapping[str, Any]) -> None:
    if request.get("profile_peak"):
        support.answer({"peak_bytes": live_tensor_peak_bytes(request["shape"])})
    else:
        train(request)


def train(request: Mapping[str, Any]) -> None:
    import torch

    # Imports and the first use of a kernel take memory that is not the program's own, so they come
    # before the baseline.
    if request["shape"]["kind"] == "gpt":
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401
    torch.ones(256, 256).mm(torch.ones(256, 256))
    # If two threads are first to need a kernel at once, oneMKL 2024.2 may choose a less exact one
    # (pytorch issue 188792); a single element needs one thread.
    torch.tanh(torch.zeros(1))
    baseline_bytes = memory_bytes("VmRSS")
    usage_file = request.get("usage_file")
    baseline_usage_bytes = int(Path(usage_file).read_text()) if usage_file else None
    program = build(request["shape"])
    times = StepTimes()
    times.train(program, request["warmup"])
    stats_before = support.tencache_stats()
    taken_s = []
    if request.get("pauses"):
        taken_s = train_beside(times, program, request["steps"], request["pauses"])
    else:
        times.train(program, request["steps"])
    stats = support.tencache_stats()
    armed = StepTimes(first=len(times.losses))
    if request.get("arm_bytes"):
        torch.empty(request["arm_bytes"], dtype=torch.uint8)
        armed.train(program, request["warmup"] + request["steps"])
    support.answer(
        {
            "parameters": sum(parameter.numel() for parameter in program.model.parameters()),
            "step_s": times.step_s[request["warmup"] :],
            "step_processor_s": times.processor_s[request["warmup"] :],
            "beside_processor_s": taken_s,
            "warmup_s": times.step_s[: request["warmup"]],
            "armed_step_s": armed.step_s[request["warmup"] :],
            "armed_step_processor_s": armed.processor_s[request["warmup"] :],
            "armed_stats": support.tencache_stats() if armed.losses else None,
            "loss_bits": [struct.pack(">f", loss).hex() for loss in times.losses + armed.losses],
            "losses": times.losses + armed.losses,
            "baseline_bytes": baseline_bytes,
            "baseline_usage_bytes": baseline_usage_bytes,
            "peak_bytes": memory_bytes("VmHWM"),
            "stats": stats,
            "measured": None if stats is None else counted(stats_before, stats),
            "digest": state_digest(program) if request["digest"] else None,
        }
    )


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
