"""The strict form round-trips, refuses what is not it, and the judge's view does not depend on who looked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.base import Reply
from rlready.dream.domain import Domain
from rlready.dream.format import Unparsable
from rlready.dream.library import read_action
from rlready.dream.simulators.layout import Layout, cut, world_and_deeds
from rlready.dream.simulators.window import fit_in, last_of, starts
from rlready.types import Message, Row
from tests.dream.simulators.shop import DOMAIN, order, stock

PLAIN, REWARDED = Layout(), Layout(step_rewards=True)
READS = frozenset({"stock"})
MARKS = (
    "<failed>",
    "<done>",
    "<nothing>",
    "<judge>",
    "<right>",
    "<reward ",
    "<reward 1.0>",
    "\\<done>",
    "\\\\<failed>",
)
TEXTS = st.lists(st.one_of(st.sampled_from((*MARKS, " ", "\n", "\\", "<", ">")), st.text(max_size=8)), max_size=8).map(
    "".join
)


def act(text: str):  # type: ignore[no-untyped-def]
    return read_action(text, DOMAIN)


@given(TEXTS, st.booleans(), st.booleans())
def test_replies_round_trip(text: str, failed: bool, done: bool) -> None:
    reply = Reply(text, failed, done)
    assert PLAIN.read(PLAIN.write(reply)) == reply


@given(TEXTS, st.booleans(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
def test_rewarded_replies_round_trip(text: str, failed: bool, done: bool, reward: float) -> None:
    reply = Reply(text, failed, done, reward)
    assert REWARDED.read(REWARDED.write(reply)) == reply


@given(TEXTS)
def test_whatever_can_be_read_is_written_the_same(text: str) -> None:
    try:
        reply = PLAIN.read(text)
    except Unparsable:
        return
    assert PLAIN.read(PLAIN.write(reply)) == reply


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("3 apples left", Reply("3 apples left")),
        ("<failed> Error: no", Reply("Error: no", failed=True)),
        ("bye <done>", Reply("bye", done=True)),
        ("<nothing>", Reply("")),
        ("<failed> <nothing> <done>", Reply("", failed=True, done=True)),
        ("say \\<done> twice", Reply("say <done> twice")),
    ],
)
def test_the_form_by_hand(text: str, reply: Reply) -> None:
    assert PLAIN.write(reply) == text and PLAIN.read(text) == reply


@pytest.mark.parametrize(
    "text",
    ["", "<done>", "<failed>", "a <done> b", "a <failed>", "<nothing> a", "a <nothing>", "a <reward 1.0>", "<right>"],
)
def test_what_is_not_the_form_is_refused(text: str) -> None:
    with pytest.raises(Unparsable):
        PLAIN.read(text)


@pytest.mark.parametrize(
    "text", ["a", "a <done>", "a <reward nan>", "a <reward x>", "a <done> <reward 1>", "<reward 1>"]
)
def test_rewards_must_be_there_and_finite(text: str) -> None:
    with pytest.raises(Unparsable):
        REWARDED.read(text)
    assert REWARDED.read("a <reward -0.5> <done>") == Reply("a", done=True, reward=-0.5)


def test_verdicts() -> None:
    assert PLAIN.read_verdict("<right>") is True and PLAIN.read_verdict("<wrong>") is False
    for text in ("right", "<right> ", ""):
        with pytest.raises(Unparsable):
            PLAIN.read_verdict(text)


def test_an_episode_as_messages_by_hand() -> None:
    look, buy = act(stock("apples")), act(order("apples", 1))
    past = ((look, Reply("3 left")), (buy, Reply("no", failed=True)))
    layout = Layout(system=False, demos=1, demo_chars=12)
    shown = {0: [("A", "b" * 20)], 1: [], 2: [("C", "d"), ("E", "f")]}
    assert layout.episode("buy apples", past, act("done"), demos=lambda i: shown[i]) == [
        Message.user(f"buy apples\n[like] A\nbbbbbb [...]\n[1] {look.text}"),
        Message("assistant", "3 left"),
        Message.user(f"[2] {buy.text}"),
        Message("assistant", "<failed> no"),
        Message.user("[like] C\nd\n[3] done"),
    ]
    assert [m.text for m in layout.episode("buy apples", past, act("done"), start=2)] == ["buy apples\n[3] done"]


def test_the_system_message_holds_rules_within_their_budget() -> None:
    layout = Layout.of(Domain(rules="r" * 50, step_rewards=True), rules_chars=20)
    (system,) = layout.head
    assert "r" * 14 + " [...]" in system.text and "r" * 15 not in system.text
    assert "<reward 0.5>" in system.text and "{reward}" not in system.text
    assert Layout.tiny(Domain(rules="x")).head == ()
    assert "<reward" not in Layout.of(Domain()).head[0].text
    assert Layout.from_json(layout.to_json()) == layout


def test_the_judge_sees_the_same_whether_one_looked_or_not() -> None:
    look, other, buy = act(stock("apples")), act(stock("books")), act(order("apples", 1))
    known = ((other, Reply("2 left")), (look, Reply("3 left")))
    blind = ((buy, Reply("ok")),)
    looked = ((look, Reply("3 left")), (buy, Reply("ok")))
    twice = ((look, Reply("3 left")), (other, Reply("2 left")), (look, Reply("3 left")), (buy, Reply("ok")))
    views = {repr(world_and_deeds(known, past, READS)) for past in (blind, looked, twice)}
    views.add(repr(world_and_deeds(tuple(reversed(known)), looked, READS)))
    assert len(views) == 1
    facts, deeds = world_and_deeds((), looked, READS)
    assert facts == looked[:1] and deeds == blind
    after = (*blind, (look, Reply("2 left")))
    assert world_and_deeds((), after, READS) == ((), after)  # a look at what was changed is no fact of the start


def test_the_judges_question_by_hand() -> None:
    look, buy, bad = act(stock("apples")), act(order("apples", 1)), act(order("apples", 9))
    messages = Layout(system=False).verdict(
        "buy one", ((look, Reply("3 left")),), ((bad, Reply("no", failed=True)), (buy, Reply("ok"))), reads=READS
    )
    assert [m.text for m in messages] == [
        f"buy one\n[world] {look.text}\n3 left\n[1] {bad.text}",
        "<failed> no",
        f"[2] {buy.text}",
        "ok",
        f"[task] buy one\n[changed] {buy.text}\n<judge>",
    ]
    assert [m.text for m in Layout(system=False).verdict("buy one", (), ())] == ["buy one\n[task] buy one\n<judge>"]


def test_long_replies_are_cut_as_history_only() -> None:
    layout, long = Layout(reply_chars=10), Reply("x" * 30)
    assert layout.shown(long) == "xxxx [...]" and layout.write(long) == "x" * 30
    assert cut("abc", 3) == "abc" and len(cut("x" * 99, 20)) == 20


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=40), st.integers(100, 300))
def test_windows_fit_move_seldom_and_are_a_function_of_the_past(steps: list[tuple[int, int]], room: int) -> None:
    head, most = 20, 30
    found = starts(head, steps, most, room)
    assert found == sorted(found) and all(s <= t for t, s in enumerate(found))
    for t, start in enumerate(found):
        used = head + sum(map(sum, steps[start:t])) + steps[t][0] + most
        assert used <= room or start == t
        assert starts(head, steps[: t + 1], most, room)[-1] == start
        if t and start != found[t - 1]:  # it moved since it had to
            assert head + sum(map(sum, steps[found[t - 1] : t])) + steps[t][0] + most > room


def test_what_is_too_long_is_cut() -> None:
    assert fit_in(list(range(10)), 10) == list(range(10))
    assert fit_in(list(range(100)), 8) == [0, 1, 94, 95, 96, 97, 98, 99]
    row = Row.from_segments([([1, 2, 3], 0.0), ([4, 5, 6], 1.0)])
    short = last_of(row, 3)
    assert short.tokens.tolist() == [4, 5, 6] and short.weights["nll"].tolist() == [0.0, 1.0, 1.0]
    assert last_of(row, 6) is row and replace(row).weights["nll"].tolist() == [0, 0, 0, 1, 1, 1]
