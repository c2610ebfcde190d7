# SPDX-License-Identifier: Apache-2.0
"""enable(), stats() and the entry point as programs use them, each in a process of its own."""

from __future__ import annotations

import json

import pytest

from tencache import _autoload

# 24 tensors of 4 MiB under a budget of 32 MiB: everything spills, every value is checked.
SPILL = """
    import torch
    x = [torch.full((1 << 20,), float(i)) for i in range(24)]
    for _ in range(2):
        for t in x: t.add_(1)
    for i, t in enumerate(x): assert bool((t == i + 2).all()), i
"""
ON = {"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "32MiB"}


# ---- enable ------------------------------------------------------------------------------------


def test_enable_spills_and_counts_in_schema_1(run_python):
    done = run_python(
        """
        import json, tencache
        assert not tencache.is_enabled()
        tencache.enable(device_memory="32MiB")
        assert tencache.is_enabled()
        """,
        SPILL,
        "print(json.dumps([tencache.stats(), tencache.options()]))",
    )
    stats, options = json.loads(done.stdout)
    assert stats["backend"] == "cpu"
    for name in ("budget", "peak"):
        assert set(stats[name]) >= {"device", "host", "disk"}
    assert set(stats["bytes"]) >= {
        "evicted",
        "fetched",
        "disk_written",
        "disk_read",
        "clean_dropped",
    }
    assert set(stats["fetches"]) >= {"early", "late", "wasted"}
    assert set(stats["unannounced"]) >= {"reads", "writes"}
    assert set(stats["over_budget"]) >= {"events", "peak_bytes"}
    assert set(stats["versions"]) >= {"tencache", "torch", "python"}
    assert stats["budget"]["device"] == 32 << 20
    assert 0 < stats["peak"]["device"] <= 32 << 20
    assert stats["bytes"]["evicted"] > 32 << 20
    assert stats["bytes"]["fetched"] > 0
    assert stats["bytes"]["disk_written"] > 0
    assert stats["extents"] >= 24
    assert stats["ops"] > 0
    assert stats["stall_s"] >= 0
    assert stats["wall_s"] > 0
    assert options["device_memory"] == "32MiB"
    assert options["strict"] == "off"


def test_start_first_spill_and_summary_are_told_on_stderr(run_python):
    done = run_python(SPILL, env=ON)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert all(line.startswith("tencache: ") for line in lines), done.stderr
    assert "32.0 MiB" in lines[0]
    assert "first spill" in lines[1]
    assert "device peak" in lines[2]
    assert "evicted" in lines[3]
    assert 4 <= len(lines) <= 7


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("asked", "told"),
    [("64MB", "61.0 MiB (64MB as asked)"), ("64MiB", "64.0 MiB (as asked)")],
)
def test_the_budget_is_told_in_the_units_of_the_user_too(run_python, asked, told):
    done = run_python("import torch", env={"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": asked})
    assert f"device budget {told}" in done.stderr


@pytest.mark.any_torch
def test_quiet_prints_neither_start_nor_summary(run_python):
    done = run_python(SPILL, env={**ON, "TENCACHE_QUIET": "1"})
    assert "device peak" not in done.stderr
    assert "budget" not in done.stderr


@pytest.mark.any_torch
def test_program_without_extents_ends_without_a_summary(run_python):
    done = run_python("import torch; torch.ones(3).add_(1)", env=ON)
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_live_and_cached_memory_are_told_apart(run_python):
    run_python(
        """
        import tencache, torch
        tencache.enable(device_memory="64MiB", quiet=True)
        MIB = 1 << 20
        kept = torch.empty(4 * MIB, dtype=torch.uint8)
        torch.empty(16 * MIB, dtype=torch.uint8)
        stats = tencache.stats()
        small = stats["now"]["live"] - 4 * MIB
        assert 0 <= small < MIB, stats
        assert stats["now"]["cached"] == 16 * MIB, stats
        assert 20 * MIB <= stats["peak"]["live"] <= stats["peak"]["device"], stats

        assert tencache.empty_cache() >= 16 * MIB
        assert tencache.stats()["now"]["cached"] == 0
        assert tencache.empty_cache() == 0

        tencache.reset_peak_stats()
        stats = tencache.stats()
        assert stats["peak"]["device"] == stats["now"]["device"] < 5 * MIB, stats
        assert stats["peak"]["live"] == stats["now"]["live"], stats
        """
    )


@pytest.mark.parametrize("call", ["empty_cache", "reset_peak_stats"])
def test_what_needs_tencache_says_so(run_python, call):
    run_python(
        f"""
        import tencache
        try:
            tencache.{call}()
        except tencache.TencacheError as error:
            assert "not enabled" in str(error) and "tencache.enable()" in str(error), error
        else:
            raise AssertionError("it did something")
        """
    )


def test_step_count_is_that_of_the_optimizer(run_python):
    done = run_python(
        """
        import tencache, torch
        tencache.enable(device_memory="64MiB", quiet=True, arm_at=0.01)
        model = torch.nn.Linear(1024, 1024)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            model(torch.ones(8, 1024)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(tencache.stats()["steps"])
        """
    )
    assert done.stdout.strip() == "5"


@pytest.mark.any_torch
def test_enable_twice_with_the_same_options_is_fine(run_python):
    run_python(
        """
        import tencache
        tencache.enable(device_memory="32MiB", stats="run.json", strict=False)
        tencache.enable(device_memory=32 << 20, stats="run.json")
        tencache.enable()
        """
    )


@pytest.mark.any_torch
def test_enable_twice_with_other_options_names_both_values(run_python):
    done = run_python(
        """
        import tencache
        tencache.enable(device_memory="32MiB")
        try:
            tencache.enable(device_memory="64MiB")
        except RuntimeError as error:
            print(error)
        assert tencache.is_enabled()
        assert tencache.options()["device_memory"] == "32MiB"
        assert tencache.stats()["budget"]["device"] == 32 << 20
        """
    )
    assert "device_memory" in done.stdout
    assert "32MiB" in done.stdout
    assert "64MiB" in done.stdout


@pytest.mark.any_torch
def test_bad_options_are_refused_and_nothing_is_lost(run_python):
    run_python(
        """
        import tencache
        for keywords, kind in [
            ({"device_mem": "2GiB"}, TypeError),
            ({"strict": 1}, TypeError),
            ({"device_memory": "2Gib0"}, tencache.OptionError),
            ({"device_memory": "64MiB", "arm_at": 7}, ValueError),
            ({"device_memory": "64MiB", "spill_dir": "/no/such/dir"}, RuntimeError),
            ({"device_memory": "64MiB", "stats": "/no/such/dir/run.json"}, ValueError),
        ]:
            try:
                tencache.enable(**keywords)
            except kind as error:
                value = next(reversed(keywords.values()))
                name = next(reversed(keywords))
                assert name in str(error) or str(value) in str(error), error
            else:
                raise AssertionError(keywords)
            assert not tencache.is_enabled()
        # Values of the refused calls are forgotten: the variable is in force again.
        tencache.enable()
        assert tencache.stats()["budget"]["device"] == 48 << 20
        """,
        env={"TENCACHE_DEVICE_MEMORY": "48MiB"},
    )


@pytest.mark.any_torch
def test_none_means_not_given(run_python):
    run_python(
        """
        import tencache
        tencache.enable(device_memory=None, spill_dir=None)
        assert tencache.options()["device_memory"] == "auto"
        assert tencache.stats()["budget"]["device"] > 0
        """
    )


@pytest.mark.any_torch
def test_stats_before_enable_say_what_to_do(run_python):
    run_python(
        """
        import tencache
        try:
            tencache.stats()
        except tencache.TencacheError as error:
            assert "tencache.enable()" in str(error)
        else:
            raise AssertionError
        """
    )


def test_tensors_that_exist_already_are_counted_in_one_warning(run_python):
    done = run_python(
        """
        import torch, tencache
        big = torch.zeros(2 << 20)
        views = [big[:10], big.view(2, -1)]
        parameter = torch.nn.Parameter(torch.zeros(1 << 20))
        small = torch.zeros(10)
        sparse = torch.eye(4).to_sparse()
        tencache.enable(device_memory="32MiB", quiet=True)
        big.add_(1)
        assert bool((big == 1).all())
        """,
        env={"PYTHONWARNINGS": "ignore"},  # It does not silence what decides over the budget.
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("tencache: warning: tencache was enabled after 2 tensors of 12.0 MiB")
    assert "before the model is built" in line


@pytest.mark.any_torch
def test_small_tensors_that_exist_already_need_no_warning(run_python):
    done = run_python(
        """
        import torch, tencache
        small = [torch.zeros(1000) for _ in range(100)]
        tencache.enable(device_memory="32MiB", quiet=True)
        """
    )
    assert done.stderr == ""


def test_other_torch_is_refused_with_both_versions_and_the_remedy(run_python):
    run_python(
        """
        import torch, tencache
        from tencache import _build_info
        minor = ".".join(torch.__version__.split(".")[:2])
        _build_info.TORCH_SHIMS = {"2.14" if minor == "2.13" else "2.13": "2.13.0+rocm"}
        try:
            tencache.enable()
        except tencache.TencacheError as error:
            text = str(error)
        for part in ("2.13.0+rocm", torch.__version__, "--no-build-isolation --force-reinstall"):
            assert part in text, text
        assert not tencache.is_enabled()
        """
    )


# ---- the entry point ---------------------------------------------------------------------------


def test_environment_enables_when_torch_is_imported(run_python):
    run_python(
        """
        import sys, torch
        assert not torch.cuda.is_initialized()
        assert "torch._inductor" not in sys.modules
        import tencache
        assert tencache.is_enabled()
        assert tencache.options()["device_memory"] == "32MiB"
        assert tencache.stats()["budget"]["device"] == 32 << 20
        """,
        env=ON,
    )


@pytest.mark.any_torch
@pytest.mark.parametrize("value", ["", "0", "off", "no"])
def test_torch_without_the_switch_loads_nothing_of_ours(run_python, value):
    done = run_python(
        """
        import sys, torch
        assert "tencache._runtime" not in sys.modules or not sys.modules["tencache"].is_enabled()
        assert not any("libtencache" in line for line in open("/proc/self/maps"))
        """,
        env={"TENCACHE": value, "TENCACHE_DEVICE_MEMORY": "nonsense"},
    )
    assert done.stderr == ""


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "2Gib0"}, '"2Gib0"'),
        ({"TENCACHE": "1", "TENCACHE_DEVICE_MEM": "2GiB"}, "TENCACHE_DEVICE_MEMORY"),
        ({"TENCACHE": "1", "TENCACHE_SPILL_DIR": "/no/such/dir"}, "/no/such/dir"),
        ({"TENCACHE": "2GiB"}, "TENCACHE_DEVICE_MEMORY=2GiB"),
    ],
)
def test_program_that_asked_for_it_does_not_run_without_it(run_python, env, part):
    done = run_python(
        """
        try:
            import torch
        except Exception:
            print("went on")
        print("ran")
        """,
        env=env,
        status=2,
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert part in lines[0]
    assert "Unset TENCACHE" in lines[1]


UNUSED = {"TENCACHE_DEVICE_MEMORY": "64MiB", "TENCACHE_STRICT": "0"}


@pytest.mark.any_torch
def test_variables_without_the_switch_are_told_at_the_end(run_python):
    done = run_python("import torch; print('ran')", env=UNUSED)
    assert done.stdout == "ran\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "tencache: warning: TENCACHE_DEVICE_MEMORY, TENCACHE_STRICT are set, and TENCACHE is not, "
        "so this program ran without tencache. Set TENCACHE=1"
    )


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("import torch", {**UNUSED, "TENCACHE": "0"}),
        ("import torch", {"TENCACHE_INTERNAL_X": "1"}),
        ("import tencache", UNUSED),
        ("import torch, tencache; tencache.enable(quiet=True)", UNUSED),
    ],
    ids=["switched-off", "internal", "no-torch", "enabled"],
)
def test_variables_that_are_used_or_meant_to_be_idle_are_not_told(run_python, code, env):
    assert run_python(code, env=env).stderr == ""


@pytest.mark.any_torch
def test_children_of_a_program_with_unused_variables_are_silent(run_python):
    done = run_python(
        """
        import multiprocessing, os, sys
        import torch

        def work():
            print("worked", flush=True)

        if __name__ == "__main__":
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            worker = multiprocessing.get_context("spawn").Process(target=work)
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        """,
        env=UNUSED,
    )
    assert done.stdout == "worked\n"
    assert done.stderr.count("\n") == 1, done.stderr


def test_other_torch_breaks_nobody_who_did_not_ask(run_python):
    code = """
        from tencache import _build_info
        _build_info.TORCH_SHIMS = {"2.1": "2.1.0+rocm"}
        import torch
        print(int(torch.ones(3).sum()))
    """
    assert run_python(code).stdout == "3\n"
    done = run_python(code, env={"TENCACHE": "1"}, status=2)
    assert "2.1.0+rocm" in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", True),
        ("python -u -X dev -W ignore -m accelerate.commands.launch train.py", True),
        ("python -mtorch.distributed.run --nproc-per-node 2 train.py", True),
        ("python -um torch.distributed.run --nproc-per-node 2 train.py", True),
        ("python -Im accelerate.commands.launch train.py", True),
        ("python -uWignore -EXdev -Bmtorch.distributed.run train.py", True),
        ("python -uX dev -m torch.distributed.run train.py", True),
        ("/venv/bin/python /venv/bin/torchrun train.py", True),
        ("python -u /venv/bin/accelerate launch train.py", True),
        ("python /v/torch/_inductor/compile_worker/__main__.py --kind=fork", True),
        ("python /v/torch/_inductor/__autotune_main__.py --parent=1 --read-fd=3", True),
        ("python -m train torchrun", False),
        ("python -mtrain -m torch.distributed.run", False),
        ("python -um", False),
        ("python -uc torchrun -m torch.distributed.run", False),
        ("python -W m torch.distributed.run", False),
        ("python -Wm train.py -m torch.distributed.run", False),
        ("python train.py torchrun", False),
        ("python -c torchrun", False),
        ("python", False),
    ],
)
def test_launchers_are_left_alone(command, expected):
    assert _autoload.is_launcher(command.split()) is expected


# ---- at exit -----------------------------------------------------------------------------------


@pytest.mark.any_torch
def test_stats_file_is_written_where_it_was_asked_for(run_python, tmp_path):
    run_python(
        "import os; os.mkdir('elsewhere')",
        SPILL,
        "os.chdir('elsewhere')",
        env={**ON, "TENCACHE_STATS": "run.json", "TENCACHE_TRACE": "run.trace"},
    )
    stats = json.loads((tmp_path / "run.json").read_text())
    assert stats["bytes"]["evicted"] > 0
    assert stats["versions"]["torch"]
    head = json.loads((tmp_path / "run.trace").read_text().splitlines()[0])
    assert head["format"] == "tencache-events"
    assert head["events"] > 0


@pytest.mark.any_torch
def test_each_rank_writes_its_own_file(run_python, tmp_path):
    env = {**ON, "TENCACHE_STATS": "run.json", "RANK": "1", "WORLD_SIZE": "2"}
    done = run_python(SPILL, env=env)
    lines = done.stderr.splitlines()
    assert len(lines) >= 3, "of the core and of Python"
    assert all(line.startswith("tencache: rank 1: ") for line in lines), done.stderr
    assert (tmp_path / "run.rank1.json").exists()
    assert not (tmp_path / "run.json").exists()


def test_core_knows_the_file_of_the_rank_that_it_records(run_python, tmp_path):
    done = run_python(
        """
        import tencache
        tencache.enable(record="step.jsonl")
        tencache.enable(record="step.jsonl")
        print(tencache.options()["record"])
        """,
        env={"TENCACHE_DEVICE_MEMORY": "1GiB", "RANK": "1", "WORLD_SIZE": "2"},
    )
    path = tmp_path / "step.rank1.jsonl"
    assert done.stdout == f"{path}\n"
    assert f"rank 1: error: {path} was not written" in done.stderr


def test_program_that_dies_of_an_exception_still_tells(run_python, tmp_path):
    done = run_python(
        SPILL,
        "raise ValueError('out of luck')",
        env={**ON, "TENCACHE_STATS": "run.json"},
        status=1,
    )
    assert "ValueError: out of luck" in done.stderr
    assert "device peak" in done.stderr
    assert (tmp_path / "run.json").exists()


def test_forked_child_reads_its_memory_and_stays_silent(run_python):
    done = run_python(
        # OpenMP's threads do not survive a fork, with or without tencache.
        "import torch; torch.set_num_threads(1)",
        SPILL,
        """
        import os, sys, tencache
        child = os.fork()
        if child == 0:
            right = all(bool((t == i + 2).all()) for i, t in enumerate(x))
            silent = not tencache.is_enabled()
            tencache.enable(device_memory="1GiB")
            sys.exit(0 if right and silent else 9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """,
        env=ON,
    )
    assert done.stderr.count("was called in a forked child") == 1
    assert done.stderr.count("device peak") == 1


def test_spawned_process_has_a_runtime_of_its_own(run_python):
    done = run_python(
        """
        import multiprocessing, torch, tencache

        def work():
            assert tencache.is_enabled()
            print(tencache.stats()["budget"]["device"])

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=work)
            process.start()
            process.join()
            assert process.exitcode == 0
        """,
        env=ON,
    )
    assert done.stdout.strip() == str(32 << 20)


def test_strict_raises_an_out_of_memory_error_at_the_budget(run_python):
    run_python(
        """
        import torch, tencache
        tencache.enable(device_memory="32MiB", strict=True)
        x = []
        try:
            for _ in range(24):
                x.append(torch.ones(1 << 20))
        except RuntimeError as error:
            assert len(error.args) == 1
            assert " out of memory." in str(error), error
            assert "32.0 MiB" in str(error), error
        else:
            raise AssertionError("it spilled")
        # The allocator still works.
        x.clear()
        assert float(torch.ones(1 << 20).sum()) == 1 << 20
        assert tencache.stats()["bytes"]["evicted"] == 0
        """
    )


@pytest.mark.any_torch
def test_stats_file_that_cannot_be_written_at_exit_does_not_change_the_status(run_python):
    done = run_python(
        """
        import os
        os.mkdir("gone")
        import torch, tencache
        tencache.enable(stats="gone/run.json")
        torch.ones(1 << 20)
        os.rmdir("gone")
        """
    )
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(errors) == 1
    assert "gone/run.json" in errors[0]
