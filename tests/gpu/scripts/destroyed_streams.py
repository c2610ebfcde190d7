# SPDX-License-Identifier: Apache-2.0
"""Streams that the program makes by itself, uses through torch.cuda.ExternalStream, and destroys.

Libraries do so. Tensors that were used and allocated on such a stream live longer than it, and a
later stream may have its handle. Only tensors that were recorded for it are freed before its end:
when they are freed, PyTorch's own allocator, too, uses the stream.
"""

import contextlib
import ctypes
import random

import torch
from exact import Results

COUNT = 1 << 19  # floats per tensor: 2 MiB
TENSORS, ROUNDS = 20, 96
NON_BLOCKING = 1

driver = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, f"CUDA error {result}"


@contextlib.contextmanager
def passing_stream():
    handle = ctypes.c_void_p()
    check(driver.cuStreamCreateWithPriority(ctypes.byref(handle), NON_BLOCKING, 0))
    stream = torch.cuda.ExternalStream(handle.value)
    before = torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield stream
    before.wait_stream(stream)
    check(driver.cuStreamDestroy_v2(handle))


class Mixer:
    def __init__(self):
        self.choice = random.Random(1)
        generator = torch.Generator("cpu").manual_seed(1)
        drawn = torch.rand(TENSORS, COUNT, device="cpu", generator=generator)
        self.tensors = [row.to("cuda") for row in drawn]
        self.small = torch.zeros(1024, device="cuda")
        self.kinds = (self.in_place, self.anew, self.small_too, self.recorded)

    def round(self):
        for _ in range(self.choice.randrange(3)):  # on the current stream
            self.in_place(*self.choice.sample(range(TENSORS), 2))
        with passing_stream() as stream:
            for _ in range(self.choice.randrange(1, 4)):
                target, source = self.choice.sample(range(TENSORS), 2)
                self.choice.choice(self.kinds)(target, source, stream)

    def in_place(self, target, source, _stream=None):
        self.tensors[target].mul_(0.5).add_(self.tensors[source], alpha=0.25)

    def anew(self, target, source, _stream):
        self.tensors[target] = self.tensors[target] * 0.5 - self.tensors[source].clamp(0, 0.5)

    def small_too(self, target, source, _stream):
        part = self.tensors[source][: self.small.numel()] * 0.5
        self.small = part + self.tensors[target][: part.numel()]

    def recorded(self, target, source, stream):
        outer = torch.cuda.default_stream()
        outer.wait_stream(stream)
        with torch.cuda.stream(outer):
            between = self.tensors[source] * 0.75
        stream.wait_stream(outer)
        self.tensors[target].add_(between)
        between.record_stream(stream)


def main():
    torch.set_default_device(None)
    results = Results()
    mixer = Mixer()
    for _ in range(ROUNDS):
        mixer.round()
    torch.cuda.synchronize()
    for index, tensor in enumerate(mixer.tensors):
        results.tensor(str(index), tensor)
    results.tensor("small", mixer.small)
    results.write()


if __name__ == "__main__":
    main()
