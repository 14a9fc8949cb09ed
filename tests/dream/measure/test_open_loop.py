"""Open loop: every figure by hand, teacher forcing, failures, and what a simulator is shown."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.format import Unparsable
from rlready.dream.measure.numbers import Probabilities, spearman
from rlready.dream.measure.open_loop import OpenLoop, compare, open_loop
from rlready.errors import EnvError
from tests.dream.measure.desk import DOMAIN, READS, RULES, Scripted, cancel, doc, episode, get

LOG = episode(
    (get("W1"), doc()), (cancel("W1"), doc(status="cancelled")), (get("W1"), doc(status="cancelled")), ("Bye", "")
)
REFUSED = episode(
    (get("W2"), doc("W2", "sent")),
    (cancel("W2"), '{"error": "it has been sent"}'),
    ("Sorry", ""),
    task_id="t2",
    success=False,
    errors=(1,),
)


def measure(simulator: Any, *episodes: Any, layers: Any = (), **options: Any) -> OpenLoop:
    return asyncio.run(open_loop(episodes or (LOG, REFUSED), DOMAIN, RULES, layers, simulator, **options))


def truth(moment: Moment, action: Action) -> str:
    """The recorded replies; it tells by the recorded history, so it fails where that is not shown."""
    order = str((action.arguments or {})["order_id"])
    if order == "W2":
        return doc("W2", "sent") if action.tool == "get_order" else '{"error": "it has been sent"}'
    cancelled = action.tool == "cancel_order" or any(a.tool == "cancel_order" for a, _ in moment.past)
    return doc(order, "cancelled" if cancelled else "open")


def test_a_perfect_simulator_is_perfect_in_every_figure() -> None:
    found = measure(Scripted(truth, lambda m: float(m.task_id == "t1")))
    assert (found.episodes, found.tasks, found.steps) == (2, 2, 5)
    assert (found.exact.macro, found.exact.micro, found.f1.macro, found.f1.micro) == (1, 1, 1, 1)
    assert {k: (v.steps, v.exact) for k, v in found.by_kind.items()} == {
        "get_order": (3, 1.0),
        "cancel_order": (2, 1.0),
    }
    assert {b: (f.replies, f.exact, f.fields) for b, f in found.fields.items()} == {
        "new": (3, 1.0, 1.0),  # two first looks, and an error that is about nothing
        "0": (1, 1.0, 1.0),
        "1": (1, 1.0, 1.0),
    }
    assert found.fields["1"].moved == 1 and math.isnan(found.fields["0"].moved)
    assert (found.errors.recorded, found.errors.precision, found.errors.recall) == (1, 1.0, 1.0)
    assert (found.done.recorded, found.done.said, found.done.accuracy) == (2, 2, 1.0)
    assert (found.verdict.n, found.verdict.accuracy, found.verdict.brier, found.verdict.auroc) == (2, 1.0, 0.0, 1.0)
    assert (found.unparsable, found.void, found.leaked, found.worst) == (0, 0, 0, ())
    assert found.length_ratio == 1 and found.origins == {"model": 1.0}


def test_no_change_by_hand() -> None:
    def last(moment: Moment, action: Action) -> Reply:
        return Reply(moment.past[-1][1].text if moment.past else "", origin="nearest", confidence=0.25)

    found = measure(Scripted(last))
    # Right is the second look at W1 alone: 1 of 3 looks, 0 of 2 cancellations.
    assert found.exact.micro == pytest.approx(1 / 5) and found.exact.macro == pytest.approx((1 / 3 + 0) / 2)
    # Cancelling W1 changed one field of three, which "no change" cannot know.
    assert found.fields["1"].fields == pytest.approx(2 / 3) and found.fields["1"].moved == 0
    # An error is never said: nothing to be precise about.
    assert found.errors.recall == 0 and math.isnan(found.errors.precision)
    assert (found.verdict.brier, found.verdict.auroc) == (0.25, 0.5)


def test_history_is_the_recorded_one_whatever_was_said_and_questions_about_the_world_are_asked_blank() -> None:
    simulator = Scripted(lambda m, a: "nonsense")
    measure(simulator, LOG)
    looks = [m for m, a in simulator.seen if a.tool == "get_order"]
    assert [len(m.past) for m in looks] == [0, 2]  # the second look comes after a write
    assert looks[1].past[1][1].text == doc(status="cancelled") and looks[1].state == {"steps": 2}
    assert len({m.world for m, _ in simulator.seen}) == 1 and simulator.released == [looks[0].world]
    twice = Scripted(lambda m, a: "nonsense")
    measure(twice, episode((get("W1"), doc()), (get("W9"), doc("W9")), ("Bye", "")))
    assert [m.past for m, _ in twice.seen] == [(), ()] and all(a.tool in READS for _, a in twice.seen)


def test_what_cannot_be_read_is_wrong_and_what_cannot_be_reached_is_left_out() -> None:
    def broken(moment: Moment, action: Action) -> str:
        if action.tool == "cancel_order" and moment.task_id == "t1":
            raise Unparsable("no tag")
        if moment.task_id == "t2":
            raise EnvError("endpoint is down")
        return truth(moment, action)

    def judge(moment: Moment) -> float:
        raise Unparsable("no number") if moment.task_id == "t1" else EnvError("down")

    found = measure(Scripted(broken, judge))
    assert (found.steps, found.void) == (3, 3)  # two replies and a verdict of t2
    assert found.unparsable == pytest.approx(1 / 3) and found.exact.micro == pytest.approx(2 / 3)
    assert found.exact.macro == pytest.approx(0.5)  # looks 1, cancellations 0
    assert (found.unjudgeable, found.verdict.n, found.verdict.brier) == (1, 1, 0.25)
    assert found.worst[0].said == "(could not be read)" and found.worst[0].place == "task t1, episode 1, step 2"


def test_code_comes_first_and_origins_are_counted() -> None:
    class Knows:
        def reply(self, moment: Moment, action: Action) -> Reply | None:
            return Reply(truth(moment, action), origin="state") if action.tool == "cancel_order" else None

    simulator = Scripted(lambda m, a: Reply("x", origin="recorded"))
    found = measure(simulator, layers=[Knows()])
    assert found.origins == {"recorded": 0.6, "state": 0.4} and found.leaked == 3
    assert found.exact.macro == 0.5 and all(a.tool == "get_order" for _, a in simulator.seen)
    alone = measure(Scripted(lambda m, a: "x"), layers=[Knows()], with_code=False)
    assert alone.exact.micro == 0 and not alone.with_code


def test_errors_said_by_their_text_count_and_step_rewards_are_compared() -> None:
    log = episode((get("W1"), doc()), (cancel("W1"), "Error: sent"), ("Bye", ""), errors=(1,), rewards=(0.5, -1.0, 1.0))
    found = measure(Scripted(lambda m, a: Reply("Error: gone", reward=0.5)), log)
    assert (found.errors.recorded, found.errors.said, found.errors.both) == (1, 2, 1)
    assert (found.errors.precision, found.errors.recall) == (0.5, 1.0)
    assert found.step_reward == 0.5


def test_the_worst_are_the_surest_mistakes_and_not_all_of_one_kind() -> None:
    logs = [
        episode(
            (get(f"W{i}"), doc(f"W{i}")), (cancel(f"W{i}"), doc(f"W{i}", "cancelled")), ("Bye", ""), task_id=f"t{i}"
        )
        for i in range(9)
    ]
    found = measure(Scripted(lambda m, a: Reply("?", confidence=int(m.task_id[1:]) / 10)), *logs, examples=6)
    kinds = ["get" if "get_order" in e.action else "cancel" for e in found.worst]
    assert kinds.count("get") == 2 and kinds.count("cancel") == 2
    assert [e.confidence for e in found.worst] == [0.8, 0.8, 0.7, 0.7]


def test_json_keeps_all_but_single_steps() -> None:
    found = measure(Scripted(truth))
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert "results" not in record and record["fields"]["0"]["moved"] is None
    again = OpenLoop.from_json(record)
    assert again.to_json() == found.to_json() and math.isnan(again.fields["0"].moved)
    assert len(found.results) == 5 and set(found.by_task()) == {"t1", "t2"}


def test_concurrency_is_bounded_and_progress_counts_to_the_end() -> None:
    class Slow(Scripted):
        now = most = 0

        async def reply(self, moment: Moment, action: Action) -> Reply:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return await super().reply(moment, action)

    slow, seen = Slow(truth), list[tuple[int, int]]()
    logs = [LOG] * 10
    measure(slow, *logs, at_once=4, on_progress=lambda d, n: seen.append((d, n)))
    assert slow.most == 4 and seen == [(i + 1, 40) for i in range(40)]


def test_compare_runs_every_backend_beside_the_baselines_on_the_same_steps() -> None:
    nearest, nothing = Scripted(lambda m, a: "x", name="nearest"), Scripted(lambda m, a: "", name="no_change")
    seen = list[tuple[int, int]]()
    rows = asyncio.run(
        compare(
            [LOG, REFUSED],
            DOMAIN,
            RULES,
            [],
            [Scripted(truth, name="good")],
            baselines=[nearest, nothing],
            on_progress=lambda d, n: seen.append((d, n)),
        )
    )
    assert [(r.name, r.with_code) for r in rows] == [
        ("good", True),
        ("good", False),
        ("nearest", False),
        ("no_change", False),
    ]
    assert [r.exact.micro for r in rows] == [1, 1, 0, 0] and len({r.steps for r in rows}) == 1
    assert seen[-1] == (28, 28) and seen == sorted(seen)


def test_probabilities_by_hand() -> None:
    found = Probabilities.of([0.95, 0.85, 0.15, 0.05], [True, False, False, True])
    # (.05^2 + .85^2 + .15^2 + .95^2) / 4
    assert found.brier == pytest.approx((0.0025 + 0.7225 + 0.0225 + 0.9025) / 4)
    assert found.ece == pytest.approx((0.05 + 0.85 + 0.15 + 0.95) / 4) and found.accuracy == 0.5
    assert found.auroc == 0.5  # pairs (true, false): .95 beats both, .05 neither
    assert [(b.low, b.n) for b in found.bins] == [(0.0, 1), (0.1, 1), (0.8, 1), (0.9, 1)]


def test_spearman_by_hand() -> None:
    assert spearman([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert math.isnan(spearman([1, 2], [1, 2])) and math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_coverage_keeps_the_surest_first() -> None:
    logs = [episode((get(f"W{i}"), doc(f"W{i}")), ("Bye", ""), task_id=f"t{i}") for i in range(1, 5)]

    def said(moment: Moment, action: Action) -> Reply:
        n = int(moment.task_id[1:])
        return Reply(doc(f"W{n}") if n > 2 else "?", confidence=n / 10)

    found = measure(Scripted(said), *logs)
    assert found.confidence.coverage[0] == (1.0, 0.5) and (0.5, 1.0) in found.confidence.coverage
    assert found.confidence.stated.auroc == 1 and found.confidence.stated.base == 0.5


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_order_of_cases_changes_no_figure(pairs: list[tuple[float, bool]]) -> None:
    def figures(cases: list[tuple[float, bool]]) -> list[float]:
        p = Probabilities.of([c for c, _ in cases], [y for _, y in cases])
        return [p.brier, p.ece, p.accuracy, *([] if math.isnan(p.auroc) else [p.auroc])]

    assert figures(pairs) == pytest.approx(figures(pairs[::-1]))
    assert Probabilities.of(*zip(*pairs, strict=True)).base == pytest.approx(sum(y for _, y in pairs) / len(pairs))
