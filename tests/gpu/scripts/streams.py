# SPDX-License-Identifier: Apache-2.0
"""Four streams write the same tensors in turn, ordered only by events.

The streams write new values in place, through a new tensor while the old one is still read
(record_stream), from pinned memory, through DLPack, and by way of a MemPool. Then batches of pinned
memory from a loader with workers are copied on a stream of their own.
"""

import random

import torch
from exact import Results

COUNT = 1 << 19  # floats per tensor: 2 MiB
TENSORS, ROUNDS = 20, 160


class Mixer:
    def __init__(self):
        self.choice = random.Random(1)
        self.generator = torch.Generator("cpu").manual_seed(1)
        self.streams = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
        self.pool = torch.cuda.MemPool()
        self.tensors = [self.on_host().to("cuda") for _ in range(TENSORS)]
        self.used = [torch.cuda.current_stream().record_event() for _ in range(TENSORS)]
        self.kinds = (self.in_place, self.anew, self.pinned, self.through_dlpack, self.by_pool)

    def on_host(self, pin_memory=False):
        drawn = torch.empty(COUNT, device="cpu", pin_memory=pin_memory)
        return drawn.copy_(torch.rand(COUNT, device="cpu", generator=self.generator))

    def round(self):
        target, source = self.choice.randrange(TENSORS), self.choice.randrange(TENSORS)
        stream = self.choice.choice(self.streams)
        with torch.cuda.stream(stream):
            for index in (target, source):
                stream.wait_event(self.used[index])
                self.tensors[index].record_stream(stream)
            self.choice.choice(self.kinds)(target, source)
            self.tensors[target].record_stream(stream)
            self.used[target] = self.used[source] = stream.record_event()

    def in_place(self, target, source):
        self.tensors[target].mul_(0.5).add_(self.tensors[source], alpha=0.25)

    def anew(self, target, source):
        self.tensors[target] = self.tensors[target] * 0.5 - self.tensors[source].clamp(0, 0.5)

    def pinned(self, target, _source):
        self.tensors[target] = self.on_host(pin_memory=True).to("cuda", non_blocking=True)

    def through_dlpack(self, target, source):
        alias = torch.from_dlpack(self.tensors[target])
        assert alias.data_ptr() == self.tensors[target].data_ptr()
        alias.sub_(torch.from_dlpack(self.tensors[source]), alpha=0.125)

    def by_pool(self, target, source):
        with torch.cuda.use_mem_pool(self.pool):
            between = self.tensors[source] * 0.75
        self.tensors[target].copy_(between)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((1 << 17,), float(index), device="cpu")


def load(tensors, results):
    """Copies the next batch while the last one is added: a prefetcher as in many programs."""
    stream = torch.cuda.Stream()
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context="fork"
    )
    for batch in loader:
        with torch.cuda.stream(stream):
            rows = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        rows.record_stream(torch.cuda.current_stream())
        for tensor in tensors:
            tensor.add_(rows.flatten())
        results.scalar("rows", rows.sum())


def main():
    torch.set_default_device(None)
    results = Results()
    mixer = Mixer()
    for _ in range(ROUNDS):
        mixer.round()
    torch.cuda.synchronize()
    load(mixer.tensors, results)
    for index, tensor in enumerate(mixer.tensors):
        results.tensor(str(index), tensor)
    results.write()


if __name__ == "__main__":
    main()
