"""The three cuts of the telecom tasks."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from rlready.errors import UserError
from rlready.worlds.tau2 import SPLITS, telecom
from rlready.worlds.tau2.simulator import official_splits
from rlready.worlds.tau2.splits import all_tasks, held_out_pairs, make_splits, pairs_of

PROGRAM = """
from rlready.seeds import derive
from rlready.worlds.tau2.splits import SPLITS, make_splits
print([derive(s, n, *(t.id for t in ts)) for s in SPLITS for n, ts in make_splits(s).items()])
"""


def fault_sets(tasks):
    return {(t.meta["ticket"], *t.meta["faults"]) for t in tasks}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_disjoint_by_task_and_by_fault_set(split, seed):
    parts = make_splits(split, seed)
    assert list(parts) == ["train", "dev", "test", *(["hard"] if split == "both" else [])]
    ids = [t.id for part in parts.values() for t in part]
    assert len(ids) == len(set(ids))
    sets = [fault_sets(part) for part in parts.values()]
    assert sum(map(len, sets)) == len(set().union(*sets))
    if split != "official":
        assert set(ids) == {t.id for t in all_tasks()}


def test_sizes():
    assert len(all_tasks()) == 2285 - 32
    parts = make_splits("faults")
    assert {n: len(p) for n, p in parts.items()} == {"train": 1571, "dev": 224, "test": 458}
    kinds = Counter(t.meta["ticket"].split()[0] for t in parts["test"])
    assert kinds["t_mms"] > kinds["t_data"] > kinds["t_service"] > 0


def test_both_asks_the_two_questions_at_once():
    tasks, parts = all_tasks(), make_splits("both")
    held = held_out_pairs(tasks, 0)["test"]
    assert {t.id for t in parts["hard"]} == {t.id for t in make_splits("pairs")["test"]}
    assert not any(pairs_of(t) & held for name in ("train", "dev", "test") for t in parts[name])


@pytest.mark.parametrize("seed", range(6))
def test_held_out_pairs_are_in_every_test_task_and_in_no_train_task(seed):
    tasks = all_tasks()
    held, parts = held_out_pairs(tasks, seed), make_splits("pairs", seed)
    assert held["test"] and held["dev"] and not held["test"] & held["dev"]
    train_pairs = set().union(*map(pairs_of, parts["train"]))
    assert not train_pairs & (held["test"] | held["dev"])
    assert all(pairs_of(t) & held["test"] for t in parts["test"])
    assert all(pairs_of(t) & held["dev"] and not pairs_of(t) & held["test"] for t in parts["dev"])
    assert 0.1 < len(parts["test"]) / len(tasks) <= 0.19 and 0.05 < len(parts["dev"]) / len(tasks) <= 0.09
    faults = set().union(*(t.meta["faults"] for t in tasks))
    assert set().union(*(t.meta["faults"] for t in parts["train"])) == faults
    for pair in held["test"]:  # each of its faults is still met in other company
        for fault in pair:
            assert any(fault in other for other in train_pairs)


def test_official_ids_are_the_benchmarks():
    parts, ids = make_splits("official"), official_splits()
    assert {t.id for t in parts["train"]} < ids["train"] and {t.id for t in parts["test"]} < ids["test"]
    assert [len(p) for p in parts.values()] == [66, 200, 28]
    assert not {t.id for t in parts["dev"]} & (ids["train"] | ids["test"])


def test_the_cut_depends_on_the_seed_alone():
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": str(n)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for n in (1, 2)
    ]
    assert runs[0] == runs[1] != ""
    one, two = make_splits("faults", 0)["test"], make_splits("faults", 1)["test"]
    shared = len({t.id for t in one} & {t.id for t in two})
    assert shared < 0.35 * len(one)


def test_unknown_split_offers_the_known_ones():
    with pytest.raises(UserError, match=r'"pair".*Did you mean pairs'):
        telecom("pair")
