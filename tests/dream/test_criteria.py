"""Pinned criteria: what recorded successes changed, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.base import Action, Reply
from rlready.dream.criteria import Criteria, changes

READS = frozenset({"look"})
OK, NO = Reply("ok"), Reply("Error: no", failed=True)


def call(tool: str, x: int = 0) -> Action:
    return Action(f"{tool}({x})", tool, {"x": x})


LOOK, PAY, SHIP, SAY = call("look"), call("pay"), call("ship"), Action("done")


def test_changes_by_hand():
    steps = [(LOOK, OK), (SHIP, OK), (PAY, NO), (PAY, OK), (SAY, Reply("")), (PAY, OK)]
    assert changes(steps, READS) == ("pay(0)", "pay(0)", "ship(0)")
    assert changes([], READS) == changes([(LOOK, OK), (PAY, NO), (SAY, OK)], READS) == ()


def test_any_recorded_success_is_right_and_its_order_is_free():
    known = Criteria.learn(
        [
            ("a", True, [(LOOK, OK), (PAY, OK), (SHIP, OK)]),
            ("a", True, [(SHIP, OK)]),
            ("a", False, [(PAY, OK)]),
            ("b", True, [(SAY, OK)]),
            ("c", False, [(PAY, OK)]),
        ],
        READS,
    )
    assert known.right == {"a": {("pay(0)", "ship(0)"), ("ship(0)",)}, "b": {()}}
    assert known.met("a", [(SHIP, OK), (PAY, OK)]) and known.met("a", [(SHIP, OK), (PAY, NO)])
    assert not known.met("a", [(PAY, OK)]) and not known.met("a", []) and not known.met("a", [(PAY, OK)] * 2)
    assert known.met("b", [(LOOK, OK), (SAY, OK)]) and not known.met("b", [(PAY, OK)])  # doing nothing is right
    assert [known.known(t) for t in "abc"] == [True, True, False]
    with pytest.raises(KeyError):
        known.met("c", [])


@pytest.mark.parametrize(("won", "lost", "right"), [(2, 1, True), (1, 1, False), (1, 2, False), (0, 1, False)])
def test_where_the_same_changes_won_and_lost_the_more_frequent_counts(won, lost, right):
    runs = [("a", True, [(PAY, OK)])] * won + [("a", False, [(PAY, OK)])] * lost
    assert Criteria.learn(runs, READS).known("a") is right


steps = st.lists(
    st.tuples(st.sampled_from([LOOK, PAY, SHIP, SAY, call("pay", 1)]), st.sampled_from([OK, NO])), max_size=6
)


@given(steps, st.randoms())
def test_order_looks_words_and_failures_do_not_matter(made, chance):
    known = Criteria.learn([("a", True, made)], READS)
    mixed = [*made, (LOOK, OK), (SAY, OK), (SHIP, NO)]
    chance.shuffle(mixed)
    assert known.met("a", mixed)
    assert not known.met("a", [*mixed, (call("pay", 2), OK)])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), steps), max_size=8))
def test_round_trip(runs):
    known = Criteria.learn(runs, READS)
    again = Criteria.from_json(json.loads(json.dumps(known.to_json())))
    assert (again.right, again.reads) == (known.right, known.reads)
    for task, success, made in runs:
        if known.known(task) and success and not any(t == task and not s for t, s, _ in runs):
            assert known.met(task, made)
