"""A recording as actions and replies."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.domain import call_text, parse
from rlready.experience.logs import common_rules, episode_of, instruction, success_of, system_of
from rlready.experience.logs.episodes import is_error
from rlready.experience.recording import Recording
from rlready.types import Message, ToolCall

SYSTEM, ASK = Message("system", "Rules."), Message("user", "Do it.")


def call(name: str, arguments: str, ident: str) -> ToolCall:
    return ToolCall(name, arguments, ident)


def said(*calls: ToolCall, text: str = "") -> Message:
    return Message("assistant", text, calls)


def result(ident: str, text: str) -> Message:
    return Message("tool", text, (), ident)


def run(*messages: Message, **more: object) -> Recording:
    return Recording("r", "t", messages, **more)  # type: ignore[arg-type]


def test_actions_and_replies_by_hand() -> None:
    recording = run(
        SYSTEM,
        ASK,
        Message("user", "Now."),
        said(call("f", '{"b": {"d": 1, "c": 2}, "a": []}', "1"), call("g", "{}", "2"), text="I think."),
        result("2", "two"),
        result("1", "one"),
        said(text="What else?"),
        Message("user", "Nothing."),
        Message("user", "Bye."),
        reward=1.0,
    )
    episode, notes = episode_of(recording, rules="Rules.")
    assert episode.instruction == instruction(recording) == "Do it.\nNow."
    assert episode.actions == (
        '<tool_call>{"name": "f", "arguments": {"a": [], "b": {"c": 2, "d": 1}}}</tool_call>',
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        "What else?",
    )
    assert episode.replies == ("one", "two", "Nothing.\nBye.")
    assert (episode.success, episode.judged, episode.finished, episode.errors) == (True, True, True, ())
    assert notes == {"thoughts beside calls": 1, "calls made at once (read one after another)": 2}


def test_another_system_prompt_than_the_common_one_goes_before_the_instruction() -> None:
    usual, odd, none = run(SYSTEM, ASK, said(text="x")), run(Message("system", "Other."), ASK), run(ASK)
    rules = common_rules([usual, odd, usual, none])
    assert rules == system_of(usual) == "Rules."
    assert [episode_of(r, rules=rules)[0].instruction for r in (usual, odd, none)] == [
        "Do it.",
        "Other.\n\nDo it.",
        "Do it.",
    ]
    assert common_rules([]) == ""


@pytest.mark.parametrize("arguments", ['{"a": ', '{"a": 1, "a": 2}', "[1]", "Paris", '{"a": NaN}', '"x"'])
def test_malformed_arguments_stay_as_they_were_written(arguments: str) -> None:
    episode, notes = episode_of(run(ASK, said(call("f", arguments, "1")), result("1", "bad call")))
    assert notes["malformed calls"] == 1
    (action,) = parse(episode.actions[0])
    assert action.problem and action.text == episode.actions[0]
    inner = json.loads(episode.actions[0].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert inner == {"name": "f", "arguments": arguments} and episode.replies == ("bad call",)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["<think>", "</tool_call>", "</think>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_the_text_of_a_call_is_the_domains_and_its_parser_reads_it(name: str, arguments: dict[str, object]) -> None:
    episode, _ = episode_of(run(ASK, said(call(name, json.dumps(arguments), "1"))))
    assert episode.actions == (call_text(name, arguments),)
    (action,) = parse(episode.actions[0])
    assert (action.text, action.tool, action.arguments) == (episode.actions[0], name, arguments)


def test_errors() -> None:
    texts = [
        "Error: no",
        "error",
        '{"error": "x"}',
        '{"error": null, "a": 1}',
        "errand",
        "No error",
        '["error"]',
        "marked",
    ]
    messages = [m for i, t in enumerate(texts) for m in (said(call("f", "{}", str(i))), result(str(i), t))]
    episode, _ = episode_of(run(ASK, *messages, failed=frozenset({"7"})))
    assert episode.errors == (0, 1, 2, 7)
    assert not is_error('{"error"') and not is_error("")
    assert episode_of(run(ASK, said(text="x"), Message("user", "Error: no")))[0].errors == ()


def test_how_runs_end() -> None:
    spoke, called = (ASK, said(text="x")), (ASK, said(call("f", "{}", "1")))
    finished = [episode_of(run(*m))[0].finished for m in (spoke, (*spoke, ASK), called, (*called, result("1", "")))]
    assert finished == [True, True, False, False]
    assert not episode_of(run(*spoke, done=False))[0].finished and episode_of(run(*called, done=True))[0].finished


def test_success() -> None:
    recording = run(ASK, said(text="x"), reward=0.99)
    assert not episode_of(recording)[0].success and episode_of(recording, threshold=0.9)[0].success
    assert episode_of(replace(recording, meta={"success": True}))[0].success
    assert [success_of(r) for r in (None, 0.0, 0.5, 0.3 + 0.7, 1.0, 2.0)] == [False, False, False, True, True, True]
    episode = episode_of(replace(recording, reward=None))[0]
    assert not episode.judged and episode.reward is None


def test_rewards_of_messages_become_those_of_actions() -> None:
    two = said(call("f", "{}", "1"), call("g", "{}", "2"))
    assert episode_of(run(ASK, two, said(text="x"), rewards=(1.0, 0.5)))[0].rewards == (0.0, 1.0, 0.5)
    episode, notes = episode_of(run(ASK, two, rewards=(1.0, 0.5)))
    assert episode.rewards == () and notes.total() == 5


def test_nothing_said_is_lost() -> None:
    """Words of the user right behind a result, results of no call, a run without the agent."""
    messages = (ASK, said(call("f", "{}", "1")), result("1", "one"), Message("user", "And hurry."), said(text=" "))
    episode, notes = episode_of(run(*messages, result("9", "stray")))
    assert episode.replies == ("one\nAnd hurry.", "stray") and episode.actions[1] == ""
    assert (
        notes["words of the user right after a result (put behind it)"] == 1
        and notes["empty messages of the agent"] == 1
    )
    assert episode_of(run(SYSTEM, ASK))[0].actions == ()
