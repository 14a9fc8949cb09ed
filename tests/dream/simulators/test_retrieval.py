"""Retrieval answers from the nearest recordings, with the present call's values, and never from excluded ones."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlready.dream.base import Action, Learns, Moment, Reply, Simulator
from rlready.dream.domain import Domain, ToolSpec, call_text
from rlready.dream.library import Library, read_action
from rlready.dream.simulators.baselines import NearestTransition, NoChange
from rlready.dream.simulators.retrieval import Retrieval
from rlready.dream.simulators.substitute import exchanges, identifiers, is_id, substitute
from rlready.dream.simulators.words import PART, PartEncoder, f1, words
from rlready.experience.episode import LoggedEpisode
from rlready.experience.retrieve import HashedEncoder
from rlready.types import FloatArray
from tests.dream.simulators.shop import DOMAIN, Reads, episodes, order, stock


def shop(*more: LoggedEpisode, runs: int = 6) -> Library:
    return Library([*episodes(runs), *more], DOMAIN, Reads())  # type: ignore[arg-type]


def act(text: str) -> Action:
    return read_action(text, DOMAIN)


def call(tool: str, **arguments: object) -> Action:
    return Action(call_text(tool, arguments), tool, arguments)


def reply(sim: Simulator, moment: Moment, action: Action) -> Reply:
    return asyncio.run(sim.reply(moment, action))


def judge(sim: Simulator, moment: Moment) -> float:
    return asyncio.run(sim.judge(moment))


# ---------------------------------------------------------------------- substitution


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        ("order W12 was sent", {"W12": "W77"}, "order W77 was sent"),
        ("W123 and xW12 stay, W12. goes", {"W12": "W77"}, "W123 and xW12 stay, W77. goes"),
        ("12 of 12.5 on 2024-12-12", {"12": "9"}, "9 of 12.5 on 2024-12-12"),
        ("swap abc and def", {"abc": "def", "def": "abc"}, "swap def and abc"),
        ("New York, York", {"York": "Leeds", "New York": "Paris"}, "Paris, Leeds"),
        ('{"id": "W12", "n": 1}', {"W12": "W77"}, '{"id": "W77", "n": 1}'),
        ('{"id": 7}', {"7": "12"}, '{"id": 12}'),
        ('{"id": 7}', {"7": "x y"}, '{"id": 7}'),  # would be JSON no more
        ('{"name": "abc"}', {"abc": 'say "hi"'}, '{"name": "say \\"hi\\""}'),
        ('{"W12": {"total": 3}}', {"W12": "W77"}, '{"W77": {"total": 3}}'),
        ("nothing", {}, "nothing"),
    ],
)
def test_substitution(text: str, pairs: dict[str, str], expected: str) -> None:
    assert substitute(text, pairs) == expected


def test_which_values_are_exchanged() -> None:
    old = call("get", order_id="W1", n=1, ok=True, deep={"items": ["abc", "same"]}, kind="ab")
    new = call("get", order_id="W2", n=2, ok=False, deep={"items": ["xyz", "same"]}, kind="cd")
    # "ab" is short and no identifier, 1 neither; truth values never
    assert exchanges(old, new) == {"W1": "W2", "abc": "xyz"}
    assert exchanges(call("t", a="same", b="same"), call("t", a="one", b="two")) == {}  # nobody knows which
    assert exchanges(call("t", a="gone"), call("t", b="new")) == {}
    past = ((call("get", user_id="mia", flight_number="HAT1"), Reply("")), (call("get", user_id="sam"), Reply("")))
    now = ((call("get", user_id="eve", flight_number="HAT2"), Reply("")),)
    assert identifiers(past, now) == {"sam": "eve"}
    assert is_id(["orderId"]) and is_id(["user_id"]) and is_id(["id"]) and is_id(["ids", "0"])
    assert not is_id(["paid"]) and not is_id(["guid_of_x"]) and not is_id([])


def test_the_reply_of_another_call_gets_this_calls_values() -> None:
    domain = Domain(tools={"get_order": ToolSpec("get_order", {})})
    recorded = LoggedEpisode(
        "t", "where is my order", (call_text("get_order", {"order_id": "W12"}),),
        (json.dumps({"id": "W12", "state": "sent", "was": "XW12"}),), True, True,
    )  # fmt: skip
    sim = Retrieval(Library([recorded], domain, Reads()))  # type: ignore[arg-type]
    said = reply(sim, Moment("u", "where is it", 1), call("get_order", order_id="W77"))
    assert json.loads(said.text) == {"id": "W77", "state": "sent", "was": "XW12"}
    assert said.origin == "nearest" and said.note and 0 < said.confidence <= 1 and said.done


# ---------------------------------------------------------------------- retrieval


def test_it_meets_both_protocols() -> None:
    sim = Retrieval(shop())
    as_simulator: Simulator = sim
    assert as_simulator.name == "retrieval" and isinstance(sim, Learns)


def test_same_moment_same_reply_a_thousand_times_in_any_order_and_process() -> None:
    lib = shop()
    moments = [(lib.episodes[id], lib.steps(id)) for id in list(lib)[:5]]
    cases = [
        (Moment(e.task_id, e.instruction, 7, steps[:t]), action)
        for e, steps in moments
        for t, (action, _) in enumerate(steps)
    ]
    sims = [Retrieval(lib), Retrieval(Library(list(reversed(episodes(6))), DOMAIN, Reads()))]  # type: ignore[arg-type]

    async def play() -> set[str]:
        seen = set()
        for i in range(1000 // len(cases) + 1):
            replies = [await sims[i % 2].reply(m, a) for m, a in cases]
            verdicts = [await sims[i % 2].judge(m) for m, _ in cases]
            seen.add(repr((replies, verdicts)))
        return seen

    seen = asyncio.run(play())
    assert len(seen) == 1
    code = (
        "import asyncio, hashlib\nfrom tests.dream.simulators.test_retrieval import fingerprint\n"
        "print(asyncio.run(fingerprint()))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert there.stdout.strip() == asyncio.run(fingerprint())


async def fingerprint() -> str:
    lib = shop()
    sim, out = Retrieval(lib), []
    for id in list(lib)[:8]:
        e, steps = lib.episodes[id], lib.steps(id)
        for t, (action, _) in enumerate(steps):
            m = Moment(e.task_id, e.instruction, 7, steps[:t])
            out.append((await sim.reply(m, action), await sim.judge(m)))
    return repr(out)


def test_its_own_task_is_left_out_when_asked() -> None:
    secret = LoggedEpisode("secret", "order 1 apples", (stock("pears"),), ("41 pears left",), True, True)
    lib = shop(secret)
    moment = Moment("secret", "order 1 apples", 1)
    assert reply(Retrieval(lib), moment, act(stock("pears"))).text == "41 pears left"
    for sim in (Retrieval(lib, exclude_own=True), NearestTransition(lib, exclude_own=True)):
        assert "41" not in reply(sim, moment, act(stock("pears"))).text
        assert "41" in reply(sim, replace(moment, task_id="another"), act(stock("pears"))).text


def test_only_the_same_kind_of_action_answers() -> None:
    lib = shop()
    for action in (act(stock("apples")), act(order("apples", 1)), act("done")):
        for found in Retrieval(lib).nearest(Moment("x", "order 1 apples", 1), action):
            assert found.action.kind == action.kind
    nothing = reply(Retrieval(lib), Moment("x", "order 1 apples", 1), call("unheard_of", a="b"))
    assert (nothing.text, nothing.confidence) == ("", 0.0)
    assert reply(Retrieval(Library([], DOMAIN, Reads())), Moment("x", "y", 1), act("done")).confidence == 0.0  # type: ignore[arg-type]


def test_failed_and_done_come_from_the_recording() -> None:
    lib = shop(runs=20)
    moment = Moment("x", "order 1 books", 1)
    assert reply(Retrieval(lib), moment, act(order("books", 4))).failed
    assert not reply(Retrieval(lib), moment, act(order("books", 1))).failed
    assert reply(Retrieval(lib), moment, act("done")).done
    assert not reply(Retrieval(lib), moment, act(stock("books"))).done


def test_confidence_falls_with_disagreement_and_distance() -> None:
    def told(*replies: str) -> float:
        given = [
            LoggedEpisode(f"t{i}", "look", (stock("apples"),), (text,), True, True) for i, text in enumerate(replies)
        ]
        sim = Retrieval(Library(given, DOMAIN, Reads()))  # type: ignore[arg-type]
        return reply(sim, Moment("x", "look", 1), act(stock("apples"))).confidence

    assert told("3 left", "3 left", "3 left") == pytest.approx(1.0, abs=0.01)
    assert told("3 left", "7 gone", "3 left") < 0.9
    lib = shop()
    near = reply(Retrieval(lib), Moment("x", "order 1 apples", 1), act(stock("apples")))
    far = reply(Retrieval(lib), Moment("x", "quite something else", 1), act(stock("melons")))
    assert far.confidence < near.confidence


def test_the_anchor_answers_where_it_is_as_near() -> None:
    given = [
        LoggedEpisode(f"t{i}", "look", ("hello", stock("apples")), ("hi", f"{i} left"), True, True, seed=i)
        for i in range(5)
    ]
    lib = Library(given, DOMAIN, Reads())  # type: ignore[arg-type]
    for id in lib:
        e = lib.episodes[id]
        said = reply(Retrieval(lib), Moment("x", "look", 1, lib.steps(id)[:1], anchor=id), act(stock("apples")))
        assert said.text == e.replies[1]


def test_the_judge_looks_at_what_was_asked_and_changed_not_at_who_looked() -> None:
    lib = shop(runs=40)
    sim = Retrieval(lib)
    ask = "order 2 apples"

    def after(*actions: str) -> float:
        past = tuple((act(a), Reply("done", failed='apples", "n": 9' in a)) for a in actions)
        return judge(sim, Moment("x", ask, 1, past))

    right = after(order("apples", 2), "done")
    assert right > 0.8
    assert after(stock("apples"), order("apples", 2), stock("books"), "done") == pytest.approx(right, abs=0.1)
    assert after(order("apples", 9), order("apples", 2), "done") == right  # what failed changed nothing
    for wrong in ((order("apples", 1),), ()):  # recorded so, and judged wrong
        assert after(*wrong, "done") < 0.2
    assert after(order("books", 2), "done") < 0.5  # never recorded
    assert judge(sim, Moment("x", "zzz qqq", 1)) < 0.5
    empty = Retrieval(Library([], DOMAIN, Reads()))  # type: ignore[arg-type]
    assert judge(empty, Moment("x", ask, 1)) == 0.5


def test_it_learns_by_taking_a_grown_library() -> None:
    lib = shop()
    sim = Retrieval(lib)
    new = LoggedEpisode("n", "find pears", (stock("pears"),), ("41 pears left",), True, True)
    asyncio.run(sim.learn(shop(new), ["x"], seed=0))
    assert reply(sim, Moment("x", "find pears", 1), act(stock("pears"))).text == "41 pears left"
    other = Retrieval(lib)
    other.load_state_dict(sim.state_dict(), shop(new))
    assert reply(other, Moment("x", "find pears", 1), act(stock("pears"))).text == "41 pears left"


def test_another_encoder_can_be_plugged_in() -> None:
    class Length:
        dim = 2

        def encode(self, texts: Sequence[str]) -> FloatArray:
            return np.array([[1.0, len(t)] for t in texts], dtype=np.float32)

    sim = Retrieval(shop(), encoder=Length())
    assert reply(sim, Moment("x", "order 1 apples", 1), act(stock("apples"))).text.endswith("left")
    with pytest.raises(ValueError, match="k >= 1"):
        Retrieval(shop(), k=0)


# ---------------------------------------------------------------------- words


def test_parts_are_weighed() -> None:
    coder = PartEncoder((2.0, 1.0), HashedEncoder(256))
    a, b, c = coder.encode([f"x y{PART}u v", f"x y{PART}p q", f"m n{PART}u v"])
    cos = lambda v, w: float(v @ w / np.sqrt((v @ v) * (w @ w)))  # noqa: E731
    assert cos(a, b) == pytest.approx(0.8, abs=0.01)  # (4 * 1 + 1 * 0) / 5
    assert cos(a, c) == pytest.approx(0.2, abs=0.01)
    assert np.array_equal(a, np.rint(a))
    with pytest.raises(ValueError, match="2 parts"):
        coder.encode(["one"])


def test_words_and_f1() -> None:
    assert words('{"date": "2024-05-20", "a@b.com": 12.50}') == ["date", "2024-05-20", "a@b.com", "12.50"]
    assert f1("a b", "a b") == f1("", "") == 1.0 and f1("a", "b") == f1("", "a") == 0.0
    assert f1("a a b", "a c") == pytest.approx(2 / 5)


# ---------------------------------------------------------------------- baselines


def test_nearest_transition_answers_word_for_word() -> None:
    lib = shop()
    sim = NearestTransition(lib)
    said = reply(sim, Moment("x", "order 1 apples", 1), act(stock("melons")))
    assert said.text in {r.text for id in lib for _, r in lib.steps(id)} and "melons" not in said.text
    for id in lib:
        e, steps = lib.episodes[id], lib.steps(id)
        assert judge(sim, Moment(e.task_id, e.instruction, 1, steps)) == float(e.success)
    empty = NearestTransition(Library([], DOMAIN, Reads()))  # type: ignore[arg-type]
    assert reply(empty, Moment("x", "y", 1), act("done")).confidence == 0.0
    assert judge(empty, Moment("x", "y", 1)) == 0.5


def test_no_change_repeats_the_last_reply() -> None:
    lib = shop()
    sim = NoChange(lib)
    past = ((act(stock("apples")), Reply("3 apples left")),)
    assert reply(sim, Moment("x", "y", 1), act("done")).text == ""
    assert reply(sim, Moment("x", "y", 1, past), act("done")).text == "3 apples left"
    assert judge(sim, Moment("x", "y", 1, past)) == lib.base_rate == np.mean([e.success for e in lib.episodes.values()])
