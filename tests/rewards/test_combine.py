"""Rewards put together: sums, products, gates and caps, and what is kept of the parts."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready import Score, Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.scoring import as_scorer


def judge(fn: Any) -> Score:
    task = Task.of("?")
    return asyncio.run(as_scorer(fn)(task, Trajectory(task, [Turn([1], [2], text="x")])))


def gives(value: float, verdict: Verdict = Verdict.RIGHT, note: str = "") -> Any:
    return lambda task, trajectory: Score(value, verdict, {}, note)


parts = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=4)


@given(parts, st.none() | st.floats(-1, 1), st.booleans())
def test_sums(given_parts: list[tuple[float, float]], cap: float | None, gate: bool) -> None:
    names = [f"p{i}" for i in range(len(given_parts))]
    reward = rewards.compose(
        {
            n: (w, gives(v, Verdict.RIGHT if v > 0 else Verdict.WRONG))
            for n, (w, v) in zip(names, given_parts, strict=True)
        },
        cap=cap,
        gates=["p0"] if gate else [],
        caps={"p0": 0.5},
    )
    score = judge(reward)
    wanted = sum(min(w * v, 0.5) if n == "p0" else w * v for n, (w, v) in zip(names, given_parts, strict=True))
    if gate and given_parts[0][1] <= 0:
        wanted = min(wanted, 0.0)
        assert score.verdict is Verdict.WRONG
    wanted = wanted if cap is None else min(wanted, cap)
    assert score.value == pytest.approx(wanted)
    assert score.parts == {n: v for n, (_, v) in zip(names, given_parts, strict=True)}  # unweighted, uncapped


@pytest.mark.parametrize(
    ("values", "caps", "cap", "wanted"),
    [
        ([0.5, 0.5], {}, None, 0.25),
        ([1.0, 0.0], {}, None, 0.0),
        ([-1.0, -1.0], {}, None, 0.0),  # two faults are no merit
        ([-1.0, 2.0], {}, None, 0.0),
        ([3.0, 0.5], {"p0": 1.0}, None, 0.5),
        ([3.0, 0.5], {}, 1.0, 1.0),
        ([0.5], {}, None, 0.5),
    ],
)
def test_products(values: list[float], caps: dict[str, float], cap: float | None, wanted: float) -> None:
    named = {f"p{i}": gives(v) for i, v in enumerate(values)}
    score = judge(rewards.compose({**named, "seen": (0, gives(7.0))}, how="product", caps=caps, cap=cap))
    assert score.value == pytest.approx(wanted)
    assert score.parts == {**{f"p{i}": v for i, v in enumerate(values)}, "seen": 7.0}


def test_a_part_that_does_not_apply_is_no_factor() -> None:
    absent = {"a": gives(0.5), "b": lambda task, trajectory: None}
    assert judge(rewards.compose(absent, how="product")).value == 0.5
    assert judge(rewards.compose({"a": (0, gives(1.0))}, how="product")).value == 0.0  # nothing is paid for


def test_reasons_are_kept_and_a_failed_part_fails_the_whole() -> None:
    kept = judge(rewards.compose({"a": gives(1, note="the same"), "b": gives(1), "c": gives(0, note="too long")}))
    assert kept.note == "a: the same; c: too long"
    for how in ("sum", "product"):
        broken = rewards.compose({"a": gives(1), "b": lambda task, trajectory: Score.failed("broke")}, how=how)
        assert judge(broken).verdict is Verdict.GRADER_FAILED and math.isnan(judge(broken).value)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"how": "max"}, "how"),
        ({"cap": math.nan}, "the whole"),
        ({"cap": "1"}, "the whole"),
        ({"caps": {"a": math.inf}}, '"a"'),
        ({"caps": {"z": 1}}, "z"),
        ({"how": "product"}, "must be 1 or 0"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        rewards.compose({"a": (0.5, gives(1)), "b": gives(1)}, **settings)


def test_order_of_parts_changes_nothing() -> None:
    values = {"a": gives(0.3), "b": gives(0.7, Verdict.WRONG), "c": gives(0.9)}
    for order in itertools.permutations(values):
        named = {name: values[name] for name in order}
        score = judge(rewards.compose(named, how="product", verdict="b"))
        assert score.value == pytest.approx(0.3 * 0.7 * 0.9) and score.verdict is Verdict.WRONG
