# SPDX-License-Identifier: Apache-2.0
"""The catalogue of mutations fits the sources.

Each mutation changes exactly one place, has a program that is to notice it, and a name of its own.
`make mutations` tests whether they are noticed.
"""

from __future__ import annotations

import pytest
from catalogue import MUTATIONS, RUNS, Mutation
from mutated_package import changed_text


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_one_place_of_its_source(mutation: Mutation) -> None:
    assert mutation.before != mutation.after
    assert changed_text(mutation).count(mutation.after) >= 1
    assert mutation.source.endswith(".cpp")
    assert mutation.noticed_by in RUNS


def test_names_differ() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
