"""Trouble on purpose: each kind by hand; shared by a group, transient, off in evaluation, unknown to the state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream import perturb
from rlready.dream.base import Action, Reply
from rlready.dream.domain import call_text
from rlready.dream.perturb import ERROR, SLOW, Perturb, after, before
from rlready.errors import UserError
from tests.dream.gyms import CLOSE, fresh, gym_of, played, replies, transcript
from tests.dream.measure.desk import LIST, Scripted, cancel, doc, get

CALL = Action(call_text("find", {"q": "x"}), "find", {"q": "x"})
OTHER = Action(call_text("find", {"q": "y"}), "find", {"q": "y"})
WORDS = Action("hello")


def pages(size: int, n: int, kind: str = "page") -> list[str]:
    """What a call made n times in a row is shown of a list of seven."""
    p, shown, out = Perturb(kind, 1.0, size=size), [], []  # type: ignore[arg-type]
    for _ in range(n):
        reply = after([p], 1, shown, CALL, Reply(json.dumps(list("abcdefg"))))
        shown.append((CALL, reply))
        out.append(reply.text)
    return out


# ---------------------------------------------------------------------- each kind by hand


@pytest.mark.parametrize(("kind", "text"), [("error", ERROR), ("slow", SLOW)])
def test_an_error_is_transient(kind, text):
    trouble = [Perturb(kind, 1.0)]
    first = before(trouble, 1, [], CALL)
    assert first == Reply(text, failed=True, origin="perturbed", note=kind)
    assert before(trouble, 1, [(CALL, first)], CALL) is None  # made again it goes through
    assert before(trouble, 1, [(CALL, first), (OTHER, Reply("fine"))], CALL) is None
    assert before(trouble, 1, [(CALL, first)], OTHER) is not None  # another call has trouble of its own
    assert before(trouble, 1, [], WORDS) is None
    assert before([Perturb("page", 1.0), Perturb("partial", 1.0)], 1, [], CALL) is None


def test_two_kinds_never_hit_a_call_one_after_the_other():
    trouble = [Perturb("error", 1.0), Perturb("slow", 1.0)]
    first = before(trouble, 1, [], CALL)
    assert first is not None and first.note == "error"
    assert before(trouble, 1, [(CALL, first)], CALL) is None


def test_pages_cycle():
    said = [json.loads(t) for t in pages(3, 5)]
    assert [s["page"] for s in said] == [1, 2, 3, 1, 2] and {s["pages"] for s in said} == {3}
    assert [s["result"] for s in said[:3]] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert said[3] == said[0]


@given(st.integers(1, 6))
def test_pages_hold_all_and_nothing_twice(size):
    count = -(-7 // size)
    said = [json.loads(t) for t in pages(size, count)]
    assert [x for s in said for x in s["result"]] == list("abcdefg")


def test_another_call_between_starts_at_the_first_page():
    p = [Perturb("page", 1.0, size=3)]
    text = json.dumps(list("abcdefg"))
    one = after(p, 1, [], CALL, Reply(text))
    again = after(p, 1, [(CALL, one), (OTHER, Reply(""))], CALL, Reply(text))
    assert again == one


@pytest.mark.parametrize("text", ["[1, 2, 3]", '{"a": 1}', "plain", "[1, 2", "", "7", json.dumps(list("abcde"))])
def test_short_lists_and_other_texts_come_whole(text):
    assert after([Perturb("page", 1.0)], 1, [], CALL, Reply(text)) == Reply(text)


def test_a_partial_reply_says_so_and_comes_whole_again():
    first, second, third = pages(0, 3, "partial")
    said = json.loads(first)
    assert said["partial"] is True and said["of"] == 7 and len(said["result"]) == 3
    assert said["result"] == sorted(said["result"]) and set(said["result"]) < set("abcdefg")
    assert json.loads(second) == json.loads(third) == list("abcdefg")
    value = {"a": 1, "b": [2], "c": None, "d": 4}
    shown = after([Perturb("partial", 1.0, size=25)], 1, [], CALL, Reply(json.dumps(value)))
    part = json.loads(shown.text)["result"]
    assert len(part) == 1 and part.items() <= value.items() and shown.origin == "perturbed" and not shown.failed


@pytest.mark.parametrize("reply", [Reply("Error: no", failed=True), Reply("[1,2,3,4,5,6,7]", done=True)])
def test_errors_and_ends_are_left_alone(reply):
    assert after([Perturb("partial", 1.0), Perturb("page", 1.0, size=1)], 1, [], CALL, reply) == reply


def test_only_the_named_tools():
    p = Perturb.parse("error=1@find, fetch")
    assert p.tools == ("find", "fetch") and before([p], 1, [], CALL) is not None
    assert before([Perturb("error", 1.0, ("fetch",))], 1, [], CALL) is None


def test_rates_are_kept():
    hits = sum(before([Perturb("error", 0.3)], world, [], CALL) is not None for world in range(2000))
    assert abs(hits / 2000 - 0.3) < 0.031  # 3 standard errors
    cut = Reply(json.dumps([1, 2]))
    hits = sum(after([Perturb("partial", 0.3)], world, [], CALL, cut) != cut for world in range(2000))
    assert abs(hits / 2000 - 0.3) < 0.031
    assert before([Perturb("error", 0.0)], 1, [], CALL) is None


# ---------------------------------------------------------------------- in a gym


def test_a_group_shares_its_trouble_and_evaluation_has_none():
    gym = gym_of(perturb=[Perturb("error", 0.5), Perturb("partial", 0.5)])
    plain = gym_of()
    script = [get("W0"), get("W1"), get("W2"), LIST, cancel("W0"), CLOSE]
    seen = set()
    for seed in range(6):
        runs = {transcript(played(gym, script, seed=seed)) for _ in range(2)}
        assert len(runs) == 1
        seen |= runs
        assert transcript(played(gym, script, seed=seed, evaluation=True)) == transcript(
            played(plain, script, seed=seed)
        )
    assert len(seen) > 3


def test_what_was_done_before_does_not_move_the_first_hit():
    gym = gym_of(perturb=[Perturb("error", 0.5)])
    for seed in range(10):
        alone = replies(played(gym, [get("W0")], seed=seed))
        assert replies(played(gym, [get("W1"), LIST, get("W0")], seed=seed))[2:] == alone


def test_a_call_that_met_an_error_was_not_executed():
    seen = Scripted(lambda m, a: doc("W0", "cancelled"))
    gym = fresh(seen, perturb=[Perturb("error", 1.0, ("cancel_order",))])
    hit, done, _ = played(gym, [cancel("W0"), cancel("W0"), get("W0")])
    assert hit.info["failed"] and hit.observation.messages[-1].text == ERROR and hit.info["origin"] == "perturbed"
    assert not done.info["failed"] and done.observation.messages[-1].text == doc("W0", "cancelled")
    assert [a.text for _, a in seen.seen] == [cancel("W0"), get("W0")]
    assert [a.text for a, _ in seen.seen[1][0].past] == [cancel("W0")]  # once


def test_criteria_do_not_count_what_met_an_error():
    gym = gym_of(perturb=[Perturb("error", 1.0, ("cancel_order",))], reward_source="criteria")
    assert played(gym, [cancel("W0"), CLOSE])[-1].reward == 0
    assert played(gym, [cancel("W0"), cancel("W0"), CLOSE])[-1].reward == 1


def test_the_simulator_sees_the_truth():
    whole = json.dumps([f"W{i}" for i in range(9)])
    seen = Scripted(lambda m, a: whole if a.text == LIST else doc())
    gym = fresh(seen, perturb=[Perturb("page", 1.0, size=4)])
    said = replies(played(gym, [LIST, LIST, cancel("W0"), cancel("W1")]))
    assert json.loads(said[0])["page"] == 1 and json.loads(said[1])["page"] == 2
    last = seen.seen[-1][0]
    assert {r.text for a, r in last.past if a.text == LIST} == {whole}


def test_wrong_calls_get_their_own_error():
    gym = gym_of(perturb=[Perturb("error", 1.0)])
    (step,) = played(gym, ['<tool_call>{"name": "fly", "arguments": {}}</tool_call>'])
    assert "fly" in step.observation.messages[-1].text and step.info["origin"] == "check"
    assert played(gym, [CLOSE])[0].terminated  # words have no trouble


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "text", ["error", "error=", "error=x", "=0.1", "", "eror=0.1", "error=1.5", "error=-1", "error=nan"]
)
def test_mistakes_are_one_sentence(text):
    with pytest.raises(UserError) as told:
        Perturb.parse(text)
    assert str(told.value).count("\n") == 0 and any(k in str(told.value) for k in perturb.KINDS)


@given(st.sampled_from(perturb.KINDS), st.integers(0, 100), st.lists(st.sampled_from("abc"), unique=True))
def test_parse_reads_what_is_written(kind, percent, tools):
    p = Perturb(kind, percent / 100, tuple(tools))
    assert Perturb.parse(str(p)) == p
