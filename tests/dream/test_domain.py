import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dream.base import Action, Reply
from rlready.dream.domain import Domain, Ending, ToolSpec, call_text, head_of, parse
from rlready.dream.domain_learn import find_marks
from rlready.dream.library import Library
from rlready.dream.state import StateRules
from rlready.errors import UserError
from tests.dream.logs_of_tools import TAU, airline, episode, play

TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '"}}</tool_call>',
        "\\<think>",
        "\\",
        "\u2028",
        "</think>a<think>",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


# ---------------------------------------------------------------------- the parser


@given(TEXT.filter(bool), st.dictionaries(TEXT, JSON, max_size=4))
@settings(max_examples=200, deadline=None)
def test_a_call_is_read_back_as_it_was_meant(name, arguments):
    text = call_text(name, arguments)
    assert parse(text) == (Action(text, name, arguments),)
    assert parse(f"<think>first</think> I call it. {text} and {text}") == parse(text) * 2


@given(TEXT.filter(bool), st.dictionaries(TEXT, JSON, max_size=4), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_order_of_keys_does_not_matter(name, arguments, r):
    def shuffled(value):
        if isinstance(value, dict):
            keys = list(value)
            r.shuffle(keys)
            return {k: shuffled(value[k]) for k in keys}
        return [shuffled(v) for v in value] if isinstance(value, list) else value

    assert call_text(name, shuffled(arguments)) == call_text(name, arguments)


@given(st.lists(TEXT | st.just(' {"name": "a", "arguments": {}} ') | st.just("<tool_call>"), max_size=8).map("".join))
@settings(max_examples=200, deadline=None)
def test_parsing_what_was_parsed_changes_nothing(text):
    for action in parse(text):
        again = parse(action.text)
        if action.tool or action.problem:
            assert [(a.text, a.tool, a.arguments) for a in again] == [(action.text, action.tool, action.arguments)]
            assert bool(again[0].problem) == bool(action.problem)


def test_words_and_malformed_calls():
    assert parse("<think>no</think>  Hello.  ") == (Action("Hello."),)
    (bad,) = parse('Now <tool_call>{"name": "a", "arguments": "{x"}</tool_call> then')
    assert bad.text == '<tool_call>{"name": "a", "arguments": "{x"}</tool_call>'
    assert (bad.tool, bad.arguments) == ("a", None) and bad.problem
    (huge,) = parse('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>')
    assert huge.arguments is None and "number" in huge.problem
    first, second = parse("<tool_call>{bad</tool_call><tool_call>{also")
    assert first.text == "<tool_call>{bad</tool_call>" and second.text == "<tool_call>{also"
    assert first.problem and second.problem


def test_without_tools_the_whole_text_is_the_action():
    assert Domain().parse(" <tool_call>go north ") == (Action("<tool_call>go north"),)
    assert Domain().parse("<think>hm</think>\nlook") == (Action("look"),)


# ---------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def shop() -> Domain:
    return Domain.learn(play(60), rules="Be kind.")


def test_tools_are_learned_from_calls_that_did_not_fail(shop):
    assert set(shop.tools) == {"get_order", "set_status", "void_order", "list_orders", "calculate", "think"}
    assert shop.tools["get_order"].parameters == {
        "type": "object",
        "properties": {"order_id": {"type": "string"}},
        "required": ["order_id"],
    }
    assert shop.tools["list_orders"].parameters["required"] == []
    assert not shop.tools["get_order"].given and not shop.tools["get_order"].open


def test_ending_flags_and_cap(shop):
    assert shop.ending == Ending(words_close=True, cap=20)  # 13 actions, half as many again, rounded up
    assert not shop.says and shop.actions is None and not shop.step_rewards
    json_replies = sum(r[:1] in ("{", "[") for e in play(60) for r in e.replies)
    spoken = sum(bool(r) for e in play(60) for r in e.replies)
    assert shop.structured == pytest.approx(json_replies / spoken, abs=1e-6)


def test_errors_keep_their_wording(shop):
    form = shop.errors["unknown_tool"]
    assert (form.text, form.recorded) == ("Error: tool $tool does not exist", True)
    assert form.count == sum("fly" in a for e in play(60) for a in e.actions)
    assert not shop.errors["missing_argument"].recorded
    assert form.fill(tool="swim") == "Error: tool swim does not exist"


def test_required_optional_and_types():
    calls = [{"id": "a", "n": 1}, {"id": "b", "n": 2.5, "why": "x"}, {"id": "c", "n": 3, "why": None}] * 2
    domain = Domain.learn([episode(f"t{i}", [(call_text("f", a), "ok")]) for i, a in enumerate(calls)])
    schema = domain.tools["f"].parameters
    assert schema["required"] == ["id", "n"]
    assert schema["properties"]["n"] == {"type": "number"}
    assert schema["properties"]["why"] == {"type": ["null", "string"]}


@pytest.mark.parametrize(
    ("values", "enum"),
    [
        ([["a", "b"][i % 2] for i in range(40)], ["a", "b"]),
        ([["a", "b"][i % 2] for i in range(12)], None),  # too few tasks to tell
        ([["a", "b"][i % 2] for i in range(37)] + ["c"] * 3, None),  # new ones still turn up
        (["a"] * 40, None),  # one value is no list of values
        ([f"v{i % 9}" for i in range(200)], None),  # too many
        (["it is a long free text, said in every single run"] * 40, None),
    ],
)
def test_enums_only_where_values_are_few_and_no_new_ones_turn_up(values, enum):
    episodes = [episode(f"t{i}", [(call_text("f", {"x": v}), "ok")]) for i, v in enumerate(values)]
    assert Domain.learn(episodes).tools["f"].parameters["properties"]["x"].get("enum") == enum


def test_a_value_that_one_task_repeats_is_not_an_enum():
    values = ["a", "b", "c", "d"]
    episodes = [episode(f"t{i % 4}", [(call_text("f", {"x": values[i % 4]}), "ok")]) for i in range(400)]
    assert "enum" not in Domain.learn(episodes).tools["f"].parameters["properties"]["x"]


def test_an_error_about_something_else_does_not_condemn_an_argument():
    good = [episode(f"t{i}", [(call_text("buy", {"x": "ab"[i % 2] + "_class"}), "ok")]) for i in range(40)]
    poor = episode("p", [(call_text("buy", {"x": "gold_class"}), "Error: not enough money")], errors=(0,))
    assert Domain.learn([*good, poor]).tools["buy"].lenient == ("x",)
    wrong = episode("p", [(call_text("buy", {"x": "gold_class"}), "Error: no gold_class here")], errors=(0,))
    domain = Domain.learn([*good, wrong])
    assert domain.tools["buy"].lenient == ()
    assert domain.errors["inadmissible"].text == "Error: no $value here"


def test_given_schemas_stand_and_yield_only_to_calls_that_worked():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    tools = [{"type": "function", "function": {"name": "f", "description": "Adds.", "parameters": schema}}]
    strict = Domain.learn([episode("t", [(call_text("f", {"a": 1, "b": "x"}), "ok")])], tools=tools)
    assert strict.tools["f"] == ToolSpec("f", schema, "Adds.", given=True, calls=1)
    loose = Domain.learn([episode("t", [(call_text("f", {"a": "1", "c": 2, "b": "x"}), "ok")])], tools=tools)
    assert loose.tools["f"].lenient == ("a",) or loose.tools["f"].open
    with pytest.raises(UserError, match="Tool schema 0 has no"):
        Domain.learn(play(1), tools=[{"description": "x"}])
    with pytest.raises(UserError, match="no recording"):
        Domain.learn([])


def test_closing_tools_and_marks():
    talk = [
        episode(
            f"t{i}",
            [("Hello", f"I want {i}"), (call_text("get", {"i": i}), "{}"), (f"Here {i}", f"Thanks {i}! ##END##")],
        )
        for i in range(20)
    ]
    handed = [
        episode(f"h{i}", [("Hi", "help"), (call_text("hand_over", {"i": i}), "ok")], finished=i > 1) for i in range(5)
    ]
    domain = Domain.learn(talk + handed)
    assert domain.says and domain.ending.tools == ("hand_over",) and domain.ending.marks == ("! ##END##",)
    assert all(map(domain.finishes, talk + handed))
    call = parse(call_text("hand_over", {"i": 1}))[0]
    assert domain.closes(call, Reply("ok")) and not domain.closes(call, Reply("Error", failed=True))
    assert domain.closes(Action("words"), Reply("bye! ##END##")) and not domain.closes(Action("words"), Reply("go on"))


@pytest.mark.parametrize(
    ("lengths", "cap"),
    [
        ([6, 6, 6, -3, -6], 6),  # minus: came to its own end
        ([6, 6, -3, -4], 6),  # two cut runs are too few: half as many again as 4
        ([6, 6, -4, -5], 8),
        ([6, 6, 6, -7], 11),  # one run is longer
        ([6, 6, 6, 7], 11),  # nothing ends by itself: from the longest
        ([5, 5, 5], 5),
    ],
)
def test_the_cap_is_where_runs_were_cut(lengths, cap):
    runs = []
    for i, n in enumerate(lengths):
        steps = [(call_text("get", {"i": i, "t": t}), "{}") for t in range(abs(n))]
        if n < 0:
            steps[-1] = ("Done.", "")
        runs.append(episode(f"t{i}", steps, finished=n < 0))
    assert Domain.learn(runs).ending.cap == cap


def test_runs_that_a_closing_tool_ends_were_not_cut():
    runs = [
        episode(
            f"t{i}", [(call_text("get", {"i": i, "t": t}), "{}") for t in range(3)] + [(call_text("bye", {}), "ok")]
        )
        for i in range(8)
    ]
    runs = [replace(e, finished=i % 2 == 0) for i, e in enumerate(runs)]
    domain = Domain.learn(runs)
    assert domain.ending.tools == ("bye",) and domain.ending.cap == 6 and all(map(domain.finishes, runs))
    library = Library(runs, domain, StateRules())
    assert all([r.done for _, r in library.steps(id)] == [False, False, False, True] for id in library)
    cut = replace(runs[1], actions=runs[1].actions[:3], replies=runs[1].replies[:3])
    library = Library([cut], domain, StateRules())
    assert not any(r.done for id in library for _, r in library.steps(id))


def test_marks_need_support_and_stand_nowhere_else():
    last = [f"You have won after {i} steps." for i in range(8)] + [f"You have lost after {i} steps." for i in range(8)]
    assert find_marks(last, ["You see a door.", "You have a key."]) != ()
    assert all(any(m in text for m in find_marks(last, ["You see a door."])) for text in last)
    assert find_marks(last, last) == ()
    assert find_marks(last[:2], []) == ()
    assert find_marks(["red", "green", "blue", "white", "black"], []) == ()


def test_text_commands_that_are_few_are_known():
    r = random.Random(0)
    verbs = ["north", "south", "look", "take lamp"]
    episodes = []
    for i in range(60):
        steps = [(r.choice(verbs), f"You see {r.randrange(99)}.") for _ in range(9)]
        steps.append(("flyy", "Error: I don't know flyy."))
        steps.append((f"answer[{r.randrange(3)}]", ""))
        episodes.append(episode(f"t{i}", steps, errors=(9,)))
    domain = Domain.learn(episodes)
    assert domain.actions == ("answer[0]", "answer[1]", "answer[2]", "flyy", "look", "north", "south", "take lamp")
    assert domain.ending.heads == ("answer[",) and domain.says and not domain.tools
    assert domain.errors["inadmissible"].text == "Error: I don't know $value."
    free = [episode(f"t{i}", [(f"words {i}.{j}", "ok") for j in range(4)]) for i in range(30)]
    assert Domain.learn(free).actions is None


def test_head_of():
    assert head_of("click[Buy now]") == "click[" and head_of("look") == "look"
    assert head_of("x" * 70 + "[1]") == "x" * 70 + "[1]"


# ---------------------------------------------------------------------- the template


def test_prompt_and_answers(shop):
    system, user = shop.prompt("Find order 3.")
    assert (system.role, user.role, user.text) == ("system", "user", "Find order 3.")
    assert system.text.startswith("Be kind.\n\nYou can call tools.")
    shown = [json.loads(line) for line in system.text.splitlines() if line.startswith('{"name"')]
    assert [tool["name"] for tool in shown] == list(shop.tools)
    assert "When you are done, answer without a tool call" in system.text
    call = parse(call_text("get_order", {"order_id": "#1"}))[0]
    answer = shop.answer(call, Reply("{}"), 3, 1)
    assert (answer.role, answer.text, answer.tool_call_id) == ("tool", "{}", "call_3_1")
    assert shop.answer(Action("hi"), Reply("yes?"), 1).role == "user"
    assert [m.role for m in Domain().prompt("Go.")] == ["user"]


def test_the_template_is_that_of_the_tool_environment(shop):
    from rlready.envs.tools import ToolEnv
    from rlready.types import Message, Task

    def get_order(order_id: str) -> str:
        """Look an order up."""
        return order_id

    import asyncio

    env = ToolEnv([get_order])
    task = Task((Message("system", "Be kind."), Message.user("Go.")))
    real = asyncio.run(env.reset(task, 0)).messages
    spec = env._tools["get_order"].schema()
    dream = Domain("Be kind.", {"get_order": ToolSpec(**spec)}, says=False).prompt("Go.")
    assert dream == real


def test_fingerprint_and_json(shop):
    again = Domain.from_json(json.loads(json.dumps(shop.to_json())))
    assert again == shop and again.fingerprint == shop.fingerprint
    for other in (
        replace(shop, rules="Be brief."),
        replace(shop, says=True),
        replace(shop, tools={}),
        replace(shop, ending=replace(shop.ending, cap=3)),
        replace(shop, actions=("a",)),
    ):
        assert other.fingerprint != shop.fingerprint
    assert replace(shop, structured=0.1).fingerprint == shop.fingerprint


@pytest.mark.skipif(not TAU.exists(), reason="the airline log is not here")
def test_the_airline_log():
    episodes, rules = airline()
    domain = Domain.learn(episodes, rules=rules)
    assert len(domain.tools) == 14 and domain.says and domain.actions is None
    assert domain.ending == Ending(False, ("transfer_to_human_agents",), ("###STOP###",), (), 45)
    assert domain.tools["calculate"].calls == 65
    open_runs = [e for e in episodes if not domain.finishes(e)]
    assert len(open_runs) == 2 and sum(not e.finished for e in episodes) == 13  # 11 end with the closing tool
    assert domain.tools["update_reservation_flights"].parameters["required"] == [
        "cabin",
        "flights",
        "payment_id",
        "reservation_id",
    ]
    assert "enum" not in json.dumps(domain.to_json()["tools"])  # 20 tasks are too few to close a list
