"""The curve over recordings and the verdict: hand-derived numbers, and a sentence for each thing that is wanting."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from typing import Any

import pytest

from rlready.dream.base import Action, Moment
from rlready.dream.library import Library
from rlready.dream.measure.curve import Curve, Learned, coverage, last_doubling, learning_curve, sizes, some
from rlready.dream.measure.open_loop import OpenLoop, open_loop
from rlready.dream.measure.verdict import Economics, Supply, Verdict, decide, measure_seconds
from tests.dream.measure.desk import DOMAIN, LIST, RULES, Desk, Scripted, cancel, doc, episode, get, task

REFUSED = '{"error": "it has been sent"}'


def recorded(n: int) -> Any:
    return episode(
        (get(f"W{n}"), doc(f"W{n}")), (cancel(f"W{n}"), doc(f"W{n}", "cancelled")), ("Bye", ""), task_id=f"t{n}"
    )


def library(*episodes: Any) -> Library:
    return Library(episodes, DOMAIN, RULES)


def knows_as_many_orders_as_it_saw(part: Library) -> Learned:
    """Right about held-out order Wn where it has at least n recordings."""

    def reply(moment: Moment, action: Action) -> str:
        n = int(moment.task_id[1:])
        return doc(f"W{n}", "cancelled" if action.tool == "cancel_order" else "open") if len(part) >= n else "?"

    return Learned(RULES, (), Scripted(reply))


def test_sizes() -> None:
    assert sizes(100) == [0, 1, 4, 16, 50, 64, 100]
    assert sizes(0) == [0] and sizes(1) == [0, 1] and sizes(2) == [0, 1, 2]


def test_curve_by_hand() -> None:
    lib = library(*(recorded(100 + i) for i in range(20)))
    held = [recorded(n) for n in (1, 4, 10, 20)]
    seen = list[tuple[int, int]]()
    curve = asyncio.run(
        learning_curve(lib, held, DOMAIN, knows_as_many_orders_as_it_saw, on_progress=lambda d, n: seen.append((d, n)))
    )
    assert [(p.traces, p.orders) for p in curve.points] == [(0, 1), (1, 3), (4, 3), (10, 3), (16, 3), (20, 1)]
    assert [p.exact.micro for p in curve.points] == [0, 0.25, 0.5, 0.75, 0.75, 1]
    assert all(p.exact_spread == 0 for p in curve.points)
    # "?" shares no word with a document: a task gains 2 of its 2 steps, or nothing.
    # Three tasks gain 0, one gains 2 of F1 over 2 steps: g = 2/8; residuals -.5 thrice and 1.5.
    assert curve.gain == pytest.approx(0.25)
    assert curve.noise == pytest.approx(math.sqrt(4 / 3 * (3 * 0.25 + 2.25)) / 8)
    assert (curve.steps, curve.tasks) == (8, 4) and seen[-1] == (14, 14)
    assert curve.recorded == {"get_order": 20, "cancel_order": 20, "say": 20}
    again = Curve.from_json(json.loads(json.dumps(curve.to_json(), allow_nan=False)))
    assert again.to_json() == curve.to_json()


def test_orders_of_small_numbers_differ_and_their_spread_is_told() -> None:
    lib = library(*(recorded(i) for i in range(1, 13)))

    def knows_exactly(part: Library) -> Learned:
        seen = {e.task_id for e in part.episodes.values()}
        return Learned(RULES, (), Scripted(lambda m, a: doc() if "t2" in seen else "?"))

    held = [episode((get("W1"), doc()), ("Bye", ""), task_id="x")]
    curve = asyncio.run(learning_curve(lib, held, DOMAIN, knows_exactly, orders=8))
    half = next(p for p in curve.points if p.traces == 6)
    assert 0 < half.exact.micro < 1 and half.exact_spread > 0.3
    assert curve.points[-1].exact.micro == 1 and math.isnan(curve.noise)  # one task: no scatter to measure


def test_coverage_by_hand() -> None:
    lib = library(
        recorded(1),
        episode((cancel("W2"), REFUSED), ("Bye", ""), errors=(0,), task_id="t2"),
    )
    held = [
        episode((get("W1"), doc()), (LIST, '["W1"]'), (cancel("W9"), REFUSED), ("Hm", ""), errors=(2,), task_id="t9"),
        episode((get("W7"), "Error: the system is down"), ("Bye", ""), errors=(0,), task_id="t7"),
    ]
    kinds, actions, errors = coverage(lib, held, DOMAIN)
    assert kinds == pytest.approx(3 / 4)  # list_orders was never recorded
    assert actions == pytest.approx(2 / 6)  # get W1 and "Bye"
    assert errors == pytest.approx(1 / 2)


def test_some_takes_tasks_in_turn_and_whole_episodes() -> None:
    held = [
        episode((get("W1"), doc()), ("Bye", ""), task_id=t, seed=i) for i, t in enumerate(["a", "a", "a", "b", "c"])
    ]
    few = some(held, 6, seed=0)
    assert len(few) == 3 and {e.task_id for e in few} == {"a", "b", "c"}
    assert some(held, 10**6, seed=1) and len(some(held, 10**6, seed=1)) == 5


def test_last_doubling_averages_over_the_orders_of_half() -> None:
    held = [recorded(1), recorded(2)]

    def loop(right: set[str]) -> OpenLoop:
        def reply(m: Moment, a: Action) -> str:
            n = m.task_id[1:]
            known = doc(f"W{n}", "cancelled" if a.tool == "cancel_order" else "open")
            return known if m.task_id in right else "?"

        return asyncio.run(open_loop(held, DOMAIN, RULES, (), Scripted(reply)))

    gain, noise = last_doubling([loop({"t1"}), loop(set())], loop({"t1", "t2"}))
    # t1 gains 2 - mean(2, 0) = 1 over 2 steps, t2 gains 2: g = 3/4; residuals -.5 and .5.
    assert gain == pytest.approx(0.75) and noise == pytest.approx(math.sqrt(2 * 0.5) / 4)


# ---------------------------------------------------------------------- verdict


def loop_of(f1: float, *, base: float = 0.5, brier: float = 0.1) -> OpenLoop:
    held = [recorded(n) for n in range(1, 11)]
    found = asyncio.run(open_loop(held, DOMAIN, RULES, (), Scripted(lambda m, a: "?")))
    kinds = {k: dataclasses.replace(v, f1=f1) for k, v in found.by_kind.items()}
    said = dataclasses.replace(found.verdict, n=30, base=base, brier=brier)
    return dataclasses.replace(found, by_kind=kinds, f1=dataclasses.replace(found.f1, macro=f1), verdict=said)


SUPPLY = Supply(200, 50, 1.0, 0.5, 40, 0.0, {"get_order": 100, "cancel_order": 100}, 3.0)


def curve_of(gain: float, noise: float) -> Curve:
    return Curve((), 100, 10, gain, noise, {}, {})


def test_fit_to_train_in_where_nothing_is_wanting() -> None:
    verdict = decide(loop_of(0.9), SUPPLY, baselines=[loop_of(0.4)], curve=curve_of(0.05, 0.01))
    assert (verdict.word, verdict.needs, verdict.more_logs) == ("fit to train in", (), True)
    assert "Only a check in the real environment" in verdict.reasons[0]
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    ("change", "loop", "says"),
    [
        ({"tasks": 3}, {}, "more tasks: 3 are recorded"),
        ({"errors": 2}, {}, "failed actions: only 2 recorded replies are errors"),
        ({"failures": 0.0}, {}, "failed episodes: 0% of the judged ones"),
        ({"judged": 0.2}, {}, "rewards: 20% of the episodes have one"),
        ({"judged": math.nan}, {}, "rewards"),
        ({"recorded": {"get_order": 5, "cancel_order": 100}}, {}, "more recordings of get_order: 5, and it is 50%"),
        ({}, {"f1": 0.2}, "better replies to cancel_order: F1 0.20"),
        ({}, {"f1": 0.45}, "accuracy: F1 0.45"),
        ({}, {"brier": 0.26}, "a better judge: its Brier score 0.260 is no better than always saying 50%"),
        ({}, {"baseline": 0.89}, "a simulator that knows more than a baseline: F1 0.90 against 0.89"),
    ],
)
def test_what_is_wanting_is_named(change: dict[str, Any], loop: dict[str, Any], says: str) -> None:
    baseline = loop.pop("baseline", 0.1) if loop else 0.1
    found = loop_of(loop.get("f1", 0.9), brier=loop.get("brier", 0.1))
    verdict = decide(found, dataclasses.replace(SUPPLY, **change), baselines=[loop_of(baseline)])
    assert verdict.word == "needs more"
    assert any(says in need for need in verdict.needs), verdict.needs
    assert says in str(verdict)


def test_a_judge_and_rewards_are_not_wanted_where_a_verifier_judges() -> None:
    verdict = decide(loop_of(0.9, brier=0.3), dataclasses.replace(SUPPLY, judged=0.0), judge_matters=False)
    assert verdict.word == "fit to train in"


def test_more_logs_are_pointless_only_where_that_can_be_told() -> None:
    def more(gain: float, noise: float) -> tuple[bool | None, str]:
        verdict = decide(loop_of(0.9), SUPPLY, curve=curve_of(gain, noise))
        return verdict.more_logs, " ".join(verdict.reasons)

    assert more(0.004, 0.01)[0] is False and "logging more of the same is pointless" in more(0.004, 0.01)[1]
    assert more(0.04, 0.01)[0] is True and "more logs like these help" in more(0.04, 0.01)[1]
    assert more(0.04, 0.09)[0] is None and "too few held-out tasks" in more(0.04, 0.09)[1]
    assert more(math.nan, math.nan)[0] is None


def test_a_cheap_real_environment_means_do_not_dream() -> None:
    cheap = Economics(real_setup=0.1, real_step=0.01, dream_setup=0.0, dream_step=1.0, steps=10)
    assert (cheap.real, cheap.dream) == (pytest.approx(0.2), 10)
    verdict = decide(loop_of(0.9), SUPPLY, economics=cheap)
    assert (
        verdict.word == "do not dream" and "0.2 s in the real environment and 10 s in the dream" in verdict.reasons[0]
    )
    dear = dataclasses.replace(cheap, real_setup=300.0)
    assert decide(loop_of(0.9), SUPPLY, economics=dear).word == "fit to train in"
    many = dataclasses.replace(cheap, dream_at_once=64)  # 10 s shared by 64 episodes at once are less than 0.2 s
    assert decide(loop_of(0.9), SUPPLY, economics=many).word == "fit to train in"
    unknown = dataclasses.replace(cheap, real_setup=math.nan)
    verdict = decide(loop_of(0.9), SUPPLY, economics=unknown)
    assert verdict.word == "fit to train in" and "What a real episode costs is unknown" in " ".join(verdict.reasons)


def test_supply_and_seconds() -> None:
    logs = [
        recorded(1),
        episode((cancel("W2"), REFUSED), ("Bye", ""), errors=(0,), task_id="t2", success=False, source="random"),
        episode((get("W1"), doc()), ("Bye", ""), judged=False),
    ]
    supply = Supply.of(logs, DOMAIN)
    assert (supply.episodes, supply.tasks, supply.errors, supply.steps) == (3, 2, 1, pytest.approx(7 / 3))
    assert (supply.judged, supply.failures, supply.random) == (pytest.approx(2 / 3), 0.5, pytest.approx(1 / 3))
    assert supply.recorded == {"get_order": 2, "cancel_order": 2, "say": 3}

    class Slow(Desk):
        async def reset(self, *args: Any) -> Any:
            await asyncio.sleep(0.02)
            return await super().reset(*args)

    setup, step = asyncio.run(measure_seconds(Slow, [(task(1), [get("W1"), "Bye"])]))
    assert setup >= 0.02 > step >= 0
    assert all(math.isnan(v) for v in asyncio.run(measure_seconds(Slow, [])))
