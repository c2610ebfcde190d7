# SPDX-License-Identifier: Apache-2.0
"""Programs of many kinds x budgets x chaos: the same bits as stock PyTorch, within the budget.

Each program runs at 75, 50 and 25% of its own peak, plainly and with chaos at probability 1 (every
extent that is not pinned is evicted at the end of every op). Losses, parameters, optimizer state
and generated tokens must equal stock's, and extents must really have left. No access may have gone
unannounced, since none of these programs reads or writes tensors behind the dispatcher's back (they
copy their results out with an op).

The tests marked `repeated` are those that show least: chaos at a higher budget, where whatever can
leave leaves after each op, too; plain runs at 75%, beside those at 50 and 25%; and two stock runs:
if their bits differed, the comparisons would fail, too.

The tests that are not marked `slow` are one run of each program in chaos at the lowest budget,
where everything leaves and comes back most often, and three plain ones. What the others add (which
tensors leave, when and how many at a time) is decided below the C ABI, which knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from differential import (
    BOUNDLESS,
    Harness,
    assert_budget_kept,
    assert_same_bits,
    budget_variables,
    program_names,
    switch,
)

CHAOS_SEED = 20261121
SHARES = (75, 50, 25)
# These run as `python program.py` instead of in a forked child: processes with and without workers,
# threads or transformers, so that nothing depends on how the others are started.
FRESH = ("cnn_resnet", "trainer_workers", "threads")

# Programs with accesses that no op announces, with the reason and the counts allowed.
UNANNOUNCED: dict[str, tuple[str, int, int]] = {}
# More variables for a program. Nobody announces ops of other threads that are under way when the
# hooks arm, so the program `threads` arms them before it starts threads.
VARIABLES: dict[str, dict[str, str]] = {"threads": {"TENCACHE_ARM_AT": "0.001"}}


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = Harness(tmp_path_factory.mktemp("differential"))
    yield harness
    harness.close()


def group(program: str) -> pytest.MarkDecorator:
    """Keeps each program's tests in one process of several, which remembers its stock run."""
    return pytest.mark.xdist_group(program)


def programs() -> list[object]:
    return [pytest.param(program, marks=group(program)) for program in program_names()]


def cases() -> list[object]:
    found = []
    for program in program_names():
        for share in SHARES:
            for chaos in (False, True):
                is_short = share == min(SHARES) if chaos else share == 50 and program in FRESH
                marks = [group(program)]
                if not is_short:
                    marks.append(pytest.mark.slow)
                is_repeated = share != min(SHARES) if chaos else share == max(SHARES)
                if is_repeated:
                    marks.append(pytest.mark.repeated)
                name = f"{program}-{share}%-{'chaos' if chaos else 'plain'}"
                found.append(pytest.param(program, share, chaos, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("program", "share", "chaos"), cases())
def test_same_bits(harness: Harness, program: str, share: int, chaos: bool) -> None:
    stock = harness.stock(program)
    budget_bytes = harness.peak_bytes(program) * share // 100
    seed = CHAOS_SEED if chaos else None
    fresh = program in FRESH and share == 50 and not chaos
    variables = budget_variables(budget_bytes, seed) | VARIABLES.get(program, {})
    outcome = harness.run(program, variables, fresh)
    stats = outcome.stats
    assert stats is not None
    assert_same_bits(stock, outcome)
    assert_budget_kept(stats)
    assert stats["bytes"]["evicted"] > 0, f"nothing was evicted\n{stats}\n{outcome.output}"
    assert stats["fetches"]["late"] + stats["fetches"]["early"] > 0, stats
    if chaos:
        assert stats["chaos_evictions"] > 0, stats
    _, reads_max, writes_max = UNANNOUNCED.get(program, ("", 0, 0))
    assert stats["unannounced"]["reads"] <= reads_max, stats
    assert stats["unannounced"]["writes"] <= writes_max, stats


@pytest.mark.slow
@pytest.mark.parametrize("program", programs())
def test_what_fits_moves_nothing(harness: Harness, program: str) -> None:
    outcome = harness.run(program, {"TENCACHE_DEVICE_MEMORY": BOUNDLESS, **switch()})
    assert_same_bits(harness.stock(program), outcome)
    assert outcome.stats is not None
    assert outcome.stats["bytes"]["evicted"] == 0, outcome.stats
    assert outcome.stats["armed"] is False, outcome.stats


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.parametrize("program", programs())
def test_stock_is_deterministic(harness: Harness, program: str) -> None:
    """Two stock runs agree (of FRESH, one in a fresh process): the comparisons above need that."""
    first, second = harness.stock(program), harness.run(program, {}, fresh=program in FRESH)
    assert_same_bits(first, second)
