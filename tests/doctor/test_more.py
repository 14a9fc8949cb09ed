"""Every check of the catalogue is reached by a planted fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rlready.doctor import CHECKS, audit
from tests.doctor.faults import healthy
from tests.doctor.faults.more import MORE
from tests.doctor.faults.registry import Fault
from tests.doctor.faults.world import all_faults


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = healthy.few_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("planted", MORE, ids=lambda f: f"{f.check}: {f.says}")
def test_it_is_named(planted: Fault) -> None:
    found = audit(planted.build())
    hits = [f for f in found if f.check == planted.check and f.level == planted.level]
    assert hits, f"{planted.check} was not found in\n{found}"
    assert hits[0].why and hits[0].mend


def test_every_check_is_tried() -> None:
    of_files = {"keys", "lengths"}  # test_files.py
    assert {f.check for f in [*MORE, *all_faults()]} | of_files == set(CHECKS)
