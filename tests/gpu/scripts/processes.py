# SPDX-License-Identifier: Apache-2.0
"""A program on a GPU that forks and spawns.

A forked child has the parent's host memory and is refused the GPU, as without tencache; a spawned
one trains on the GPU with a runtime of its own. The parent trains on afterwards.
"""

import multiprocessing
import os
import sys

import torch
from exact import LEAST_OF_SQUARE, Results, sha256, wide
from torch import nn


class Training:
    def __init__(self, seed):
        torch.manual_seed(seed)
        width = wide(256, emulated=LEAST_OF_SQUARE)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.data = torch.randn(8, width)

    def steps(self, count):
        for _ in range(count):
            self.model(self.data).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return [sha256(parameter) for parameter in self.model.parameters()]


def spawned(queue):
    queue.put(Training(2).steps(4))
    tencache = sys.modules.get("tencache")
    if tencache is not None and tencache.is_enabled():
        assert tencache.stats()["bytes"]["evicted"] > 0, tencache.stats()


def forked(on_host):
    """The child's exit status: 0 if all is as it should be."""
    try:
        torch.ones(4, device="cuda")
    except RuntimeError as error:
        sums = [float(tensor.sum()) for tensor in on_host]
        wanted = [tensor.numel() for tensor in on_host]
        return 0 if "forked" in str(error) and sums == wanted else 1
    return 2


def main():
    results = Results()
    # The second is in pinned memory, as the writer of a checkpoint gets it.
    on_host = [
        torch.ones(1 << 20, device="cpu"),
        torch.ones(1 << 20, device="cuda").to("cpu", non_blocking=True),
    ]
    torch.cuda.synchronize()
    training = Training(1)
    results.values["before"] = training.steps(2)
    child = os.fork()
    if child == 0:
        os._exit(forked(on_host))
    results.scalar("forked", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert results.values["forked"] == [(0.0).hex()], "the forked child saw something else"
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=spawned, args=(queue,))
    process.start()
    results.values["spawned"] = queue.get()
    process.join()
    assert process.exitcode == 0
    results.values["after"] = training.steps(2)
    results.write()


if __name__ == "__main__":
    main()
