"""What a log is said to hold and lack, against counts made by hand."""

from __future__ import annotations

import json

import pytest

from rlready.dream.domain import call_text
from rlready.dreaming.understand import Reading, Spread, Understanding
from rlready.experience.episode import LoggedEpisode
from rlready.experience.logs.report import LogReport
from rlready.experience.recording import Recording
from rlready.types import Message, ToolCall

LOOK = call_text("look", {"id": "a"})
SELL = call_text("sell", {"id": "a"})


def recording(**changes) -> Recording:
    messages = (
        Message.user("Sell a."),
        Message("assistant", "Let me look.", (ToolCall("look", '{"id": "a"}', "1"), ToolCall("look", "{", "2"))),
        Message("tool", "here", tool_call_id="1"),
        Message("assistant", "", (ToolCall("sell", '{"id": "a"}', "3"),)),
    )
    kw = {"id": "r", "task_id": "t", "messages": messages, "model": "m"}
    return Recording(**{**kw, **changes})


def episode(**changes) -> LoggedEpisode:
    kw = {
        "task_id": "t",
        "instruction": "Sell a.",
        "actions": (LOOK, SELL, "Sold."),
        "replies": ("here", "Error: no", ""),
        "success": True,
        "finished": True,
        "errors": (1,),
    }
    return LoggedEpisode(**{**kw, **changes})


def understood(*pairs: tuple[Recording, LoggedEpisode], random: tuple[str, ...] = (), **report) -> Understanding:
    reading = Reading(random=random)
    for rec, ep in pairs:
        reading.add(rec, ep)
    return reading.done(LogReport(**report))


def names(u: Understanding) -> set[str]:
    return {lack.name for lack in u.lacks}


def test_counts_are_those_of_the_log():
    u = understood(
        (recording(), episode()),
        (recording(), episode()),  # the same again
        (recording(model="n"), episode(replies=("gone", "Error: no", ""), success=False, source="noise")),
        random=("noise",),
    )
    assert (u.runs, u.duplicates, u.distinct, u.tasks, u.steps) == (3, 1, 2, 1, 9)
    assert (u.judged, u.successes, u.errors, u.finished) == (3, 2, 3, 3)
    assert u.success_rate == pytest.approx(2 / 3) and u.failed_share == pytest.approx(1 / 3)
    assert {k.name: (k.count, k.errors, k.runs) for k in u.kinds} == {
        "look": (3, 0, 3),
        "sell": (3, 3, 3),
        "say": (3, 0, 3),
    }
    assert (u.random, dict(u.sources), dict(u.models)) == (1, {"agent": 2, "noise": 1}, {"m": 2, "n": 1})
    assert (u.parallel, u.thoughts, u.unanswered, u.malformed) == (3, 3, 6, 3)
    assert u.lengths == Spread(3, 3, 3, 3, 3, 3, 3.0)


def test_a_place_is_a_task_a_history_and_an_action():
    """The first call is met three times with two answers; what follows differs in history where the answer did."""
    u = understood(
        (recording(), episode()),
        (recording(), episode(success=False)),
        (recording(), episode(replies=("gone", "Error: no", ""))),
        (recording(), episode(task_id="other", replies=("elsewhere", "ok", ""))),
    )
    assert (u.calls.places, u.calls.differing) == (2, 1)  # look; sell after "here"
    assert (u.words.places, u.words.differing) == (1, 0)


def test_text_commands_are_told_apart_by_their_heads():
    u = understood(
        (recording(), episode(actions=("search[shoes]", "click[Buy]", "click[Back]"), errors=())),
    )
    assert {k.name: k.count for k in u.kinds} == {"search[": 1, "click[": 2}


def test_free_words_beside_tools_are_one_kind():
    u = understood((recording(), episode(actions=("go north", LOOK, "take lamp"), errors=())))
    assert {k.name: k.count for k in u.kinds} == {"say": 2, "look": 1}


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([episode(judged=False, success=False)], "rewards"),
        ([episode(judged=False), episode()], "some rewards"),
        ([episode(success=False)], "successes"),
        ([episode()], "failures"),
        ([episode()], "tasks"),
        ([episode(task_id="u"), episode()], "few tasks"),
        ([episode(errors=())], "errors"),
        ([episode()], "random play"),
        ([episode(finished=False)], "endings"),
        ([episode()], "results"),
        ([episode()], "schemas"),
        ([episode()], "times"),
        ([episode(), episode()], "variety"),
    ],
)
def test_each_lack_is_named_where_it_is_seen(pairs, named):
    assert named in names(understood(*((recording(), e) for e in pairs)))


def test_nothing_is_lamented_that_is_there():
    whole = recording(
        messages=(
            Message.user("Sell a."),
            Message("assistant", "", (ToolCall("look", '{"id": "a"}', "1"),)),
            Message("tool", "here", tool_call_id="1"),
            Message("assistant", "Sold."),
        ),
        tools=({"name": "look"}, {"function": {"name": "sell"}}),
        seconds={"1": 0.5},
        meta={"setup_seconds": 3},
    )
    pairs = [
        (whole, episode(task_id=f"t{i}", success=i % 2 == 0, source="random" if i < 3 else "agent")) for i in range(12)
    ]
    u = understood(*pairs)
    assert names(u) == set()
    assert (u.step_seconds.median, u.setup_seconds.median, u.tools, u.unused) == (0.5, 3, 2, ())


def test_contradictions_prompts_and_coverage():
    pairs = [
        (recording(tools=({"name": "fly"},)), episode(replies=(f"{i}", "x", ""), task_id=f"t{i % 12}"))
        for i in range(24)
    ]
    reading = Reading()
    for i, (rec, ep) in enumerate(pairs):
        reading.add(rec, ep, system="a" if i else "b")
    u = reading.done(LogReport())
    assert u.calls.places == 12 and u.calls.differing == 12
    assert {"contradictions", "one prompt", "coverage"} <= names(u)
    assert u.unused == ("fly",) and u.prompts == 2 and u.prompt_share == pytest.approx(23 / 24)


def test_dropped_and_unmatched_are_lamented():
    report = LogReport(unmatched=["x"])
    report.drop("runs.jsonl", 3, "no JSON")
    reading = Reading()
    reading.add(recording(), episode())
    assert {"readable records", "reward ids"} <= names(reading.done(report))


def test_understanding_comes_back_from_json():
    u = understood((recording(seconds={"1": 0.25}), episode()), (recording(), episode(success=False)))
    assert Understanding.from_json(json.loads(json.dumps(u.to_json()))) == u
    assert all(str(lack).endswith(".") for lack in u.lacks)


def test_a_spread_of_nothing_says_nothing():
    assert Spread.of([]) == Spread()
    assert Spread.of([1, 2, 3, 4, 5]) == Spread(5, 1, 2, 3, 4, 5, 3.0)
