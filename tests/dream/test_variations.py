"""Varied tasks: one recorded value for another, no repeats, and a resumed generator goes on as if never stopped."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dream.taskgen import GENERATED
from rlready.dream.variations import Variations
from tests.dream.gyms import CLOSE, gym_of, played, replies
from tests.dream.measure.desk import get

GYM = gym_of()
SEEDS = GYM.tasks("train").tasks


def ask(made: Variations, n: int, seeds=SEEDS) -> list[str]:
    return [t.data["instruction"] for t in asyncio.run(made.propose(seeds, n))]


def test_the_slots_are_the_arguments_that_stand_in_instructions():
    assert Variations(GYM).values == {"order_id": tuple(sorted(f"W{i}" for i in range(12)))}
    assert Variations(gym_of(runs=[])).values == {}


def test_one_value_is_replaced_by_another_recorded_one():
    runs = [replace(e, instruction=f"Cancel W{i % 3} for {n}.") for n in ("ann", "bob") for i, e in enumerate(BASE)]
    made = Variations(gym_of(runs=runs))
    seed = GYM.task("s", "Cancel W1 and W1, not W11 or xW1, for ann.")
    (text,) = ask(made, 1, [seed])
    other = text.removeprefix("Cancel ").split(" ")[0]
    assert other in {"W0", "W2"}  # whole words only, all of them
    assert text == f"Cancel {other} and {other}, not W11 or xW1, for ann."


BASE = [e for e in GYM.library.episodes.values() if e.task_id in ("t0", "t1", "t2")]


def test_nothing_known_or_made_before_is_made_again():
    made = Variations(GYM)
    assert ask(made, 200) == []  # every order of the log has its task already
    assert made.metrics() == {
        "taskgen/proposed": 200, "taskgen/unvaried": 0, "taskgen/repeated": 200, "taskgen/accepted": 0
    }  # fmt: skip
    new = GYM.task("new", "Please look at W3 today.")
    texts = ask(made, 100, [new])
    assert sorted(texts) == sorted(f"Please look at W{i} today." for i in range(12) if i != 3)
    assert ask(made, 5, [GYM.task("none", "Nothing to vary.")]) == []
    assert made.counts["unvaried"] == 5
    assert ask(made, 5, []) == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 6), st.integers(0, 99))
def test_a_resumed_generator_goes_on_as_if_never_stopped(asks, stop, seed):
    seeds = [GYM.task(f"s{i}", f"Task {i}: see to W{i} and W{i + 1}.") for i in range(3)]
    whole = Variations(GYM, seed=seed)
    all_ = [ask(whole, n, seeds) for n in asks]
    assert len({t for ts in all_ for t in ts}) == sum(map(len, all_))
    first = Variations(GYM, seed=seed)
    heard = [ask(first, n, seeds) for n in asks[:stop]]
    second = Variations(GYM, seed=seed)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    heard += [ask(second, n, seeds) for n in asks[stop:]]
    assert heard == all_ and second.state_dict() == whole.state_dict()


def test_a_made_task_says_where_it_is_from_and_can_be_played():
    made = Variations(GYM, seed=1)
    (task,) = asyncio.run(made.propose([GYM.task("new", "Please look at W3 today.")], 1))
    assert task.meta[GENERATED] == "new" and task.id.startswith("generated-") and task.data["task_id"] == task.id
    again = asyncio.run(Variations(GYM, seed=1).propose([GYM.task("new", "Please look at W3 today.")], 1))
    assert again[0].id == task.id
    (child,) = asyncio.run(made.propose([task], 1)) or [task]
    assert child.meta[GENERATED] == "new"  # of its first ancestor
    assert replies(played(GYM, [get("W3"), CLOSE], task=task.id))[0]


def test_other_seeds_vary_otherwise():
    seeds = [GYM.task("new", "Please look at W3 today.")]
    assert len({tuple(ask(Variations(GYM, seed=s), 4, seeds)) for s in range(8)}) > 4
