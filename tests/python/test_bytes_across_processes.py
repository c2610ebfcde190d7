# SPDX-License-Identifier: Apache-2.0
"""The right bytes in every process: forks, shared memory, queues, DataLoader workers, ranks.

A forked child maps the tensors that were cold at the fork and has its own copy of the resident
ones. Later writes of parent and child stay their own, and slots that the child maps are not reused
while it lives. Ranks of a distributed training and compiled kernels are compared with stock.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from differential import PROGRAMS, TIMEOUT_S, environment_for

Run = Callable[..., Any]
CHAOS_SEED = "7"
# OpenMP's threads do not survive a fork, with or without tencache, so children compute with one
# thread, as DataLoader workers do.
ONE_THREAD = "torch.set_num_threads(1)"


# ---- fork ---------------------------------------------------------------------------------------


def test_forked_child_and_parent_see_their_own_bytes(run_cold: Run) -> None:
    run_cold(
        ONE_THREAD,
        """
        from cold import _library
        cold, cold_truth = make(1)
        warm, warm_truth = make(2)
        view = cold.numpy()
        chill(cold, warm)
        warm.add_(0)
        assert is_cold(cold) and not is_cold(warm)
        go, done = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert not tencache.is_enabled()
                os.read(go[0], 1)  # the parent has now changed and evicted both
                assert view.tobytes() == cold_truth.tobytes()
                assert same(cold, cold_truth) and same(warm, warm_truth)
                view[:2000] = cold_truth[:2000] = -1
                warm.mul_(3)
                assert same(cold, cold_truth) and same(warm, warm_truth * np.float32(3))
                fresh = cold * 2 + warm
                assert same(fresh, cold_truth * 2 + warm_truth * np.float32(3))
                os.write(done[1], b"x")
                os.read(go[0], 1)
                assert same(cold, cold_truth)
                status = 0
            finally:
                os._exit(status)
        cold.add_(1)
        warm.add_(1)
        cold_truth += 1
        warm_truth += 1
        chill(cold, warm)
        os.write(go[1], b"x")
        os.read(done[0], 1)
        assert same(cold, cold_truth) and same(warm, warm_truth)
        cold.mul_(2)
        cold_truth *= 2
        chill(cold, warm)
        os.write(go[1], b"x")
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert same(cold, cold_truth) and same(warm, warm_truth)
        """,
    )


def test_slots_that_forks_froze_are_reused_when_the_children_are_gone(run_cold: Run) -> None:
    run_cold(
        ONE_THREAD,
        """
        tensors = [make(seed) for seed in range(4)]
        bytes_all = sum(truth.nbytes for _, truth in tensors)

        def churn():
            for tensor, truth in tensors:
                tensor.add_(1)
                truth += 1
            chill(*(tensor for tensor, _ in tensors))

        churn()
        for _ in range(25):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(same(*pair) for pair in tensors) else 1)
            churn()  # the child may still map the old slots
            assert os.waitpid(child, 0)[1] == 0
        assert all(same(*pair) for pair in tensors)
        peak = tencache.stats()["peak"]["disk"]
        assert peak < 4 * bytes_all, f"{peak} bytes of disk for {bytes_all} bytes of tensors"
        """,
    )


def test_forks_while_another_thread_migrates(run_cold: Run) -> None:
    run_cold(
        ONE_THREAD,
        """
        import threading
        from cold import _library
        pairs = [make(seed, 50_000) for seed in range(12)]
        busy = [make(100 + seed, 50_000) for seed in range(12)]
        stop = threading.Event()

        def migrate():
            while not stop.is_set():
                for tensor, _ in busy:
                    tensor.neg_().neg_()
                _library.tencache_evict_all()

        thread = threading.Thread(target=migrate)
        thread.start()
        try:
            for round_number in range(12):
                for tensor, truth in pairs[:4]:
                    tensor.add_(1)
                    truth += 1
                child = os.fork()
                if child == 0:
                    os._exit(0 if all(same(*pair) for pair in pairs) else 1)
                assert os.waitpid(child, 0)[1] == 0, round_number
        finally:
            stop.set()
            thread.join()
        assert all(same(*pair) for pair in pairs + busy)
        """,
    )


def test_only_the_parent_writes_stats_and_summary(run_cold: Run, tmp_path: Path) -> None:
    done = run_cold(
        ONE_THREAD,
        """
        tensor, truth = make(3)
        chill(tensor)
        child = os.fork()
        if child == 0:
            assert same(tensor, truth)
            sys.exit(0)  # through the interpreter's exit, unlike multiprocessing
        assert os.waitpid(child, 0)[1] == 0
        assert not os.path.exists("run.json")
        chill(tensor)
        """,
        TENCACHE_STATS=str(tmp_path / "run.json"),
        TENCACHE_QUIET="0",
    )
    assert done.stderr.count("device peak") == 1, done.stderr
    assert json.loads((tmp_path / "run.json").read_text())["forks"] >= 1


# ---- Shared memory, queues, DataLoader ----------------------------------------------------------


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_shared_memory_and_queues(run_cold: Run, strategy: str) -> None:
    run_cold(
        ONE_THREAD,
        f"""
        import torch.multiprocessing as mp
        mp.set_sharing_strategy("{strategy}")
        """,
        """
        def work(tasks, answers, shared):
            tensor = tasks.get()
            shared[:10] = 5
            answers.put(tensor * 2)
            tasks.get()  # stays until the parent has the answer

        if __name__ == "__main__":
            tensor, truth = make(4)
            other, other_truth = make(5)
            chill(tensor, other)
            with counted(reads=0, writes=0):
                other.share_memory_()
            assert other.is_shared() and same(other, other_truth)
            context = mp.get_context("fork")
            tasks, answers = context.Queue(), context.Queue()
            worker = context.Process(target=work, args=(tasks, answers, other))
            worker.start()
            chill(tensor)
            tasks.put(tensor)
            answer = answers.get(timeout=60)
            assert same(answer, truth * 2) and same(tensor, truth)
            other_truth[:10] = 5
            assert same(other, other_truth)
            tasks.put(None)
            worker.join(60)
            assert worker.exitcode == 0
        """,
    )


def test_data_loader_workers_read_cold_tensors(run_cold: Run) -> None:
    run_cold(
        """
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __init__(self, rows):
                self.rows = rows
            def __len__(self):
                return len(self.rows)
            def __getitem__(self, index):
                return self.rows[index], self.rows[index].sum()

        if __name__ == "__main__":
            tensor, truth = make(6, 64 * 4096)
            rows = tensor.view(64, 4096)

            def epoch(loader):
                return [part for batch in loader for part in batch]

            expected = epoch(DataLoader(Rows(torch.from_numpy(truth).view(64, 4096)), batch_size=8))
            kinds = [
                dict(num_workers=0),
                dict(num_workers=2),
                dict(num_workers=2, persistent_workers=True, prefetch_factor=4),
                dict(num_workers=1, multiprocessing_context="spawn"),
            ]
            for kind in kinds:
                loader = DataLoader(Rows(rows), batch_size=8, **kind)
                for _ in range(2 if kind.get("persistent_workers") else 1):
                    chill(tensor)
                    found = epoch(loader)
                    assert len(found) == len(expected), kind
                    for mine, stock in zip(found, expected):
                        assert mine.numpy().tobytes() == stock.numpy().tobytes(), kind
                del loader
            # The tensor went into shared memory to reach the spawned worker.
            assert tensor.is_shared() and same(tensor, truth)
        """
    )


# ---- Ranks --------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(
    program: str, folder: Path, variables: Mapping[str, str]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Runs both ranks; returns their results and, under tencache, their stats."""
    folder.mkdir()
    port = str(free_port())
    ranks = []
    for rank in range(2):
        environment = environment_for(variables)
        environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = python_path()
        if variables:
            environment["TENCACHE_STATS"] = str(folder / "stats.json")
        command = [sys.executable, str(PROGRAMS / "special" / f"{program}.py")]
        with (folder / f"log{rank}").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    [*command, str(folder / f"results{rank}.json")],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        statuses = [rank.wait(TIMEOUT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    logs = "".join((folder / f"log{rank}").read_text() for rank in range(2))
    assert statuses == [0, 0], f"{statuses}\n{logs}"
    results = [json.loads((folder / f"results{rank}.json").read_text()) for rank in range(2)]
    if not variables:
        return results, []
    return results, [
        json.loads((folder / f"stats.rank{rank}.json").read_text()) for rank in range(2)
    ]


def python_path() -> str:
    return os.pathsep.join(p for p in (str(PROGRAMS), os.environ.get("PYTHONPATH")) if p)


def tight(budget: str, chaos: bool) -> dict[str, str]:
    variables = {
        "TENCACHE": "1",
        "TENCACHE_DEVICE_MEMORY": budget,
        "TENCACHE_EXTENT_MIN": "16KiB",
    }
    return {**variables, "TENCACHE_CHAOS": CHAOS_SEED} if chaos else variables


# This test compares whole programs. test_shim_collectives.py compares the collectives themselves,
# on every version of torch.
@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp", "fsdp2"])
def test_two_ranks_over_gloo(tmp_path: Path, program: str) -> None:
    stock, _ = run_ranks(program, tmp_path / "stock", {})
    for chaos in (False, True):
        name = "chaos" if chaos else "plain"
        results, stats = run_ranks(program, tmp_path / name, tight("5MiB", chaos))
        assert results == stock, name
        for rank in stats:
            assert rank["bytes"]["evicted"] > 0 and rank["bytes"]["fetched"] > 0, (name, rank)
            assert rank["unannounced"] == {"reads": 0, "writes": 0}, (name, rank)
            assert rank["peak"]["device"] <= rank["budget"]["device"] or (
                rank["over_budget"]["events"] > 0
            ), (name, rank)


# ---- Inductor and activation checkpointing ------------------------------------------------------


def run_compiled(folder: Path, name: str, variables: Mapping[str, str]) -> tuple[Any, Any]:
    """Runs the compiled program; all runs share a cache, so that only the first compiles."""
    results, stats = folder / f"{name}.json", folder / f"{name}.stats.json"
    environment = environment_for(variables)
    environment["PYTHONPATH"] = python_path()
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    if variables:
        environment["TENCACHE_STATS"] = str(stats)
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "special" / "compiled.py"), str(results)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(results.read_text()), json.loads(stats.read_text()) if variables else None


@pytest.mark.slow
def test_compiled_kernels(tmp_path: Path) -> None:
    stock, _ = run_compiled(tmp_path, "stock", {})
    for chaos in (False, True):
        name = "chaos" if chaos else "plain"
        results, stats = run_compiled(tmp_path, name, tight("3MiB", chaos))
        assert results == stock, name
        assert stats["bytes"]["evicted"] > 0, (name, stats)
        assert stats["unannounced"]["writes"] == 0, (name, stats)
        # torch prints example tensors while it compiles; a plain budget leaves them resident.
        assert chaos or stats["unannounced"]["reads"] == 0, (name, stats)


def test_recomputed_segments_with_everything_evicted_in_between(run_cold: Run) -> None:
    run_cold(
        """
        from cold import _library
        from torch.utils.checkpoint import checkpoint

        def gradients(evict):
            torch.manual_seed(9)
            segments = [torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Dropout(0.2))
                        for _ in range(3)]
            x = torch.randn(256, 300, requires_grad=True)
            y = x
            for index, segment in enumerate(segments):
                y = checkpoint(segment, y, use_reentrant=index == 1)
                if evict:
                    assert _library.tencache_evict_all() > 0
            if evict:
                y.register_hook(lambda gradient: _library.tencache_evict_all() and None)
                assert is_cold(segments[0][0].weight) and is_cold(x)
            y.square().sum().backward()
            leaves = [x] + [p for segment in segments for p in segment.parameters()]
            return [leaf.grad.clone().numpy().tobytes() for leaf in leaves]

        assert gradients(evict=False) == gradients(evict=True)
        """
    )
