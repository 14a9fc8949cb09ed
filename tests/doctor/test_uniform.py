"""Algorithms that leave groups without spread out: rows of the others are found, and no fault that is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from rlready.algorithms import DAPO, Magistral
from rlready.doctor import audit
from rlready.doctor.audit import examine
from rlready.types import Group, Row
from tests.doctor.faults import healthy


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = healthy.few_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("algorithm", [Magistral(), DAPO()])
def test_rows_behind_a_uniform_group_are_those_of_their_own_trajectory(algorithm: DAPO | Magistral) -> None:
    found, evidence = examine(healthy.chat(algorithm=algorithm, groups=6, group_size=3))
    spread = "".join("+" if group.variance > 0 else "-" for group in evidence.groups)
    assert "-+" in spread  # a group is left out before one that is not
    assert not [f for f in found if f.level == "error"], str(found)
    assert evidence.rows
    for row in evidence.rows:
        turn = evidence.valid[row.trajectory].turns[0]
        assert row.tokens.tolist() == turn.prompt_ids + turn.completion_ids


def test_a_turn_that_is_lost_beside_them_is_still_found() -> None:
    class Losing(Magistral):
        def compile(self, groups: Sequence[Group]) -> list[Row]:
            return super().compile(groups)[:-1]

    found = audit(healthy.chat(algorithm=Losing(), groups=6, group_size=3))
    assert [f.check for f in found if f.level == "error"] == ["mask"]
