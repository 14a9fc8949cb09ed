"""Tool calls: what is the same call, what is malformed, what is abstention, and text that nobody meant as a call."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Score, Task, Trajectory, Turn, Verdict, jsontext, rewards
from rlready.errors import UserError
from rlready.jsontext import BadJsonError, read_json, same_value, why_not_json
from rlready.rewards import verify_calls
from rlready.rewards.kinds import KINDS
from rlready.schemas import longest_text, schema_problem, violation
from rlready.scoring import as_scorer
from rlready.toolcalls import parse_calls, render_call
from tests.rewards.public_cases import each_case

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


@each_case("tool_call")
def test_case(case: dict[str, Any]) -> None:
    graded = KINDS["tool_call"].grade(case)
    assert (graded.verdict is R) == case["correct"], (case["note"], graded.reason)


def judge(fn: Any, text: str, **data: Any) -> Score:
    task = Task.of("?", **data)
    return asyncio.run(as_scorer(fn)(task, Trajectory(task, [Turn([1], [2], text=text)])))


def call(name: str = "get_weather", **arguments: Any) -> str:
    return render_call(name, arguments)


def raw(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


OSLO = {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}
PING = {"name": "ping", "arguments": {}}


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        # the same call, and one that only looks like it
        (call(city="Oslo", days=3), OSLO, R),
        (call(days=3, city="Oslo"), OSLO, R),
        (call(days=3.0, city="Oslo"), OSLO, R),
        (call(days="3", city="Oslo"), OSLO, W),
        (call(days=3, city="oslo"), OSLO, W),
        (call(days=3, city="Oslo "), OSLO, W),
        (call(days=True, city="Oslo"), {"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}, W),
        (call(city="Oslo"), OSLO, W),
        (call(city="Oslo", days=3, unit="C"), OSLO, W),
        (call(city="Oslo", days=None), OSLO, W),
        (call(), PING, W),
        (call("ping"), PING, R),
        (call("ping", x=1), PING, W),
        (call("Ping"), PING, W),
        (call("get_weathers", city="Oslo", days=3), OSLO, W),
        (call(city=["Oslo"], days=3), OSLO, W),
        (call(a=[1, 2]), {"name": "get_weather", "arguments": {"a": [2, 1]}}, W),
        (call(a={"x": {"y": 1, "z": 2}}), {"name": "get_weather", "arguments": {"a": {"x": {"z": 2, "y": 1}}}}, R),
        # the text around it
        ("Let me look.\n" + call(city="Oslo", days=3) + "\nOne moment.", OSLO, R),
        ("<think>" + call("ping") + "</think>" + call(city="Oslo", days=3), OSLO, R),
        ("<think>" + call(city="Oslo", days=3) + "</think>It is warm.", OSLO, N),
        ("It is warm in Oslo.", OSLO, N),
        ("", OSLO, N),
        # arguments as a text of JSON
        (raw('{"name": "ping", "arguments": "{}"}'), PING, R),
        (raw('{"name": "ping", "arguments": "{\\"x\\": 1}"}'), PING, W),
        (raw('{"name": "ping", "arguments": ""}'), PING, W),
        (raw('{"name": "ping", "arguments": "{"}'), PING, W),
        (raw('{"name": "ping", "arguments": null}'), PING, W),
        (raw('{"name": "ping", "arguments": []}'), PING, W),
        (raw('{"name": "ping"}'), PING, W),
        # broken JSON is never read as an empty call, or as its sound part
        (raw('{"name": "ping", "arguments": {}'), PING, W),
        (raw('{"name": "ping", "arguments": {"x": 1, '), PING, W),
        ('<tool_call>{"name": "ping", "arguments": {}}', PING, W),
        ('<tool_call>{"name": "ping", "arguments": {}}</tool_cal', PING, W),
        (raw('{"name": "ping", "arguments": {}}{"name": "ping", "arguments": {}}'), PING, W),
        (raw('{"name": "ping", "arguments": {}}}'), PING, W),
        (raw("{'name': 'ping', 'arguments': {}}"), PING, W),
        (raw('{"name": "ping", "arguments": {},}'), PING, W),
        (raw('{"name": "ping", "arguments": {"x": NaN}}'), PING, W),
        (raw('{"name": "ping", "arguments": {"x": 1e999}}'), PING, W),
        (raw('{"name": "ping", "name": "ping", "arguments": {}}'), PING, W),
        (call("ping") + raw("{"), PING, W),
        ("</tool_call>", PING, W),
        # several calls
        (call("ping") + call(city="Oslo", days=3), [OSLO, PING], R),
        (call("ping"), [OSLO, PING], W),
        (call("ping") + call("ping"), PING, W),
        (call("ping") + call("ping"), [PING, PING], R),
        (call("ping") + call("ping") + call(city="Oslo", days=3), [PING, OSLO, OSLO], W),
        # where no call is wanted
        ("None of the tools can answer this.", None, R),
        ("None of the tools can answer this.", [], R),
        ("None of the tools can answer this.", "null", R),
        ("None of the tools can answer this.", "[]", R),
        ("", None, N),
        ("<think>no tool fits</think>", None, N),
        (call("ping"), None, W),
        (raw('{"name": "ping", "arg'), None, W),
        ("<tool_call>", None, W),
        ("I would call <tool_call> but", None, W),
        ("<function=ping>{}</function>", None, W),
        ('{"name": "ping", "arguments": {}}', None, W),
        ('I call {"name": "ping", "arguments": {"x": ', None, W),
        ("ping()", None, W),
        ("```python\nprint('no call')\n```", None, R),
        ("[ping(x=1), ping(x=2)]", None, W),
        ("f(x) = 2 is the function, and its name: unknown", None, R),
        # golds that are none
        (call("ping"), "", F),
        (call("ping"), "ping", F),
        (call("ping"), {"name": "ping"}, F),
        (call("ping"), {"name": "ping", "arguments": []}, F),
        (call("ping"), {"name": "ping", "arguments": {"x": float("nan")}}, F),
        (call("ping"), {"name": "ping", "arguments": {}, "optional": "x"}, F),
        (call("ping"), 7, F),
        ("", 7, F),
        # golds as other tools write them
        (call("ping"), {"type": "function", "function": {"name": "ping", "arguments": "{}"}}, R),
        (call("ping"), {"tool_calls": [{"id": "1", "function": {"name": "ping", "arguments": "{}"}}]}, R),
        (call("ping"), json.dumps([PING]), R),
    ],
)
def test_calls(text: str, gold: Any, verdict: Verdict) -> None:
    graded = verify_calls(text, gold)
    assert graded.verdict is verdict, graded.reason
    assert graded.reason and (graded.score == float(verdict is R) or verdict is F)


def test_order_is_free_unless_it_is_asked_for() -> None:
    text, gold = call("ping") + call(city="Oslo", days=3), [OSLO, PING]
    assert verify_calls(text, gold, any_order=False).verdict is W
    assert verify_calls(text, gold[::-1], any_order=False).verdict is R
    assert "order" in verify_calls(text, gold, any_order=False).reason


def test_shares_of_what_was_called() -> None:
    golds = [OSLO, PING]
    half = verify_calls(call("ping") + call("ping"), golds)
    assert half.parts == {"names": 0.5, "calls": 0.5}
    assert verify_calls(call(city="Rome", days=3) + call("ping"), golds).parts == {"names": 1.0, "calls": 0.5}
    assert "city" in verify_calls(call(city="Rome", days=3) + call("ping"), golds).reason


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"name": "ping", "arguments": {}}', R),
        ('```json\n{"name": "ping", "arguments": {}}\n```', R),
        ('[{"name": "ping", "arguments": {}}]', R),
        ('{"role": "assistant", "tool_calls": [{"function": {"name": "ping", "arguments": "{}"}}]}', R),
        ('{"name": "ping", "arguments": {"x": 1}}', W),
        ('{"name": "ping", "arguments": {}', W),
        ('{"name": "ping", "arguments": {}}{"name": "ping", "arguments": {}}', W),
        ('Sure: {"name": "ping", "arguments": {}}', W),
        ('{"name": "ping"}', N),
        ('{"name": "ping", "parameters": {}}', W),
        ('{"pong": 1}', N),
        ("[]", N),
    ],
)
def test_bare_json_where_either_form_is_read(text: str, verdict: Verdict) -> None:
    assert verify_calls(text, PING, form="either").verdict is verdict
    assert verify_calls(text, PING).verdict is (N if verdict is N else W)
    assert KINDS["tool_call"].grade({"prediction": text, "reference": json.dumps(PING)}).verdict is verdict


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1},
                "days": {"type": "integer", "default": 1},
                "unit": {"enum": ["C", "F"], "default": "C"},
                "note": {"type": "string"},
            },
            "required": ["city"],
        },
    },
}
TOOLS = [WEATHER, {"name": "ping"}]


@pytest.mark.parametrize(
    ("text", "arguments", "verdict"),
    [
        (call(city="Oslo"), {"city": "Oslo"}, R),
        (call(city="Oslo", days=1), {"city": "Oslo"}, R),  # its default, written out
        (call(city="Oslo"), {"city": "Oslo", "unit": "C"}, R),
        (call(city="Oslo", unit="C", days=1), {"city": "Oslo"}, R),
        (call(city="Oslo", days=2), {"city": "Oslo"}, W),
        (call(city="Oslo"), {"city": "Oslo", "unit": "F"}, W),
        (call(city="Oslo", note="x"), {"city": "Oslo"}, W),
        (call(city="Oslo", days="1"), {"city": "Oslo"}, W),
        (call(city="Oslo", unit="K"), {"city": "Oslo"}, W),
        (call(city="Oslo", country="Norway"), {"city": "Oslo"}, W),
        (call(days=1), {"city": "Oslo"}, W),
        (call("get_rain", city="Oslo"), {"city": "Oslo"}, W),
        (call("ping", x=1), {"city": "Oslo"}, W),
        (call(city="Oslo"), {"town": "Oslo"}, F),
        (call(city="Oslo"), {"city": "Oslo", "days": "2"}, F),
    ],
)
def test_schemas_and_defaults(text: str, arguments: dict[str, Any], verdict: Verdict) -> None:
    gold = {"name": "get_weather", "arguments": arguments}
    graded = verify_calls(text, gold, tools=TOOLS)
    assert graded.verdict is verdict, graded.reason
    record = {"prediction": text, "reference": json.dumps(gold), "tools": TOOLS}
    assert KINDS["tool_call"].grade(record).verdict is verdict


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ({"city": "Oslo"}, R),
        ({"city": "Oslo", "unit": "C"}, R),
        ({"city": "Oslo", "unit": "F"}, W),  # where it is written, it must be the gold's
        ({"city": "Oslo", "unit": "C", "note": "anything"}, R),  # optional, and the gold names no value
        ({"unit": "C"}, W),
    ],
)
def test_optional_arguments(arguments: dict[str, Any], verdict: Verdict) -> None:
    gold = {"name": "f", "arguments": {"city": "Oslo", "unit": "C"}, "optional": ["unit", "note"]}
    assert verify_calls(render_call("f", arguments), gold).verdict is verdict


def test_each_call_is_paired_with_one_gold() -> None:
    """A gold that takes several calls leaves the one to the gold that takes no other, whatever the order."""
    loose = {"name": "f", "arguments": {"x": 1, "y": 2}, "optional": ["y"]}
    strict = {"name": "f", "arguments": {"x": 1}}
    full, short = render_call("f", {"x": 1, "y": 2}), render_call("f", {"x": 1})
    for golds in ([loose, strict], [strict, loose]):
        for text in (full + short, short + full):
            assert verify_calls(text, golds).verdict is R
        assert verify_calls(full + full, golds).verdict is W
    chain = [{"name": "f", "arguments": {"x": 1, **{f"o{j}": 0 for j in range(i)}}, "optional": ["o0", "o1", "o2"]}
             for i in range(4)]  # fmt: skip
    texts = [render_call("f", {"x": 1, **{f"o{j}": 0 for j in range(i)}}) for i in (3, 3, 3, 3)]
    assert verify_calls("".join(texts), chain).verdict is R


@pytest.mark.parametrize(
    "tools",
    [
        "ping",
        {"name": "ping"},
        [{"parameters": {}}],
        [{"name": "f", "parameters": True}],
        [{"name": "f", "parameters": {"type": "struct"}}],
        [{"name": "f", "parameters": {"properties": {"x": {"pattern": "("}}}}],
        [{"name": "f", "parameters": {"properties": {"x": {"pattern": "^(a+)+$"}}}}],
        [{"name": "f", "parameters": {"properties": {"x": {"$ref": "#/nowhere"}}}}],
        [
            {
                "name": "f",
                "parameters": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}},
            }
        ],
        [{"name": "f", "parameters": {"properties": {"x": {"enum": "ab"}}}}],
        [{"name": "f", "parameters": {"anyOf": [{"$ref": "#"}]}}],
        [
            {
                "name": "f",
                "parameters": {
                    "$defs": {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)} | {"40": {}},
                    "$ref": "#/$defs/0",
                },
            }
        ],
        [{"name": "f", "parameters": {"properties": {"x": {"minLength": "2"}}}}],
    ],
)
def test_tools_that_cannot_be_used(tools: Any) -> None:
    gold = {"name": "f", "arguments": {"x": "aaaa"}}
    assert verify_calls(render_call("f", {"x": "aaaa"}), gold, tools=tools).verdict is F
    if not isinstance(tools, str):
        with pytest.raises(UserError, match="tool_call"):
            rewards.tool_call(tools=tools)


def test_as_a_reward() -> None:
    reward = rewards.tool_call(tools="tools")
    assert reward.columns == ("calls", "tools")  # type: ignore[attr-defined]
    gold = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    score = judge(reward, call(city="Oslo", days=1), calls=gold, tools=TOOLS)
    assert (score.value, score.verdict, score.parts) == (1.0, R, {"names": 1.0, "calls": 1.0})
    assert judge(reward, call(city="Oslo", days=2), calls=gold, tools=TOOLS).verdict is W
    assert judge(rewards.tool_call(), "No tool fits.", calls=None).verdict is R
    assert judge(rewards.tool_call(), "No tool fits.", other=1).verdict is F  # a column that is missing wants nothing
    with pytest.raises(UserError, match="form"):
        rewards.tool_call(form="tag")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="form"):
        verify_calls("", None, form="tag")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>', "not valid JSON"),
        ('<tool_call>{"name": "f"}</tool_call>', 'no "arguments"'),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "not a JSON object"),
        ('<tool_call>{"name": "f", "arguments": "x=1"}</tool_call>', "not a JSON object"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1, "x": 2}}</tool_call>', "stands twice"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is not JSON"),
        ('<tool_call>{"name": "f", "arguments": {"x": -1e999}}</tool_call>', "too large"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "too many digits"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 101 + "]" * 101 + "}}</tool_call>", "too deeply"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 99999 + "}}</tool_call>", "too deeply"),
        ('<tool_call>{"name": "f", "arguments": {}}', "not closed"),
        ("<tool_call>[1]</tool_call>", "not a JSON object"),
        ("<tool_call>", "not valid JSON"),
    ],
)
def test_malformed_calls_have_no_arguments(text: str, problem: str) -> None:
    (found,) = parse_calls(text)
    assert found.arguments is None and problem in found.problem


def test_calls_in_thoughts_do_not_count_and_tags_may_stand_in_strings() -> None:
    inside = render_call("f", {"x": "</tool_call> <tool_call>"})
    assert [c.arguments for c in parse_calls(f"<think>{render_call('g', {})}</think>{inside}")] == [
        {"x": "</tool_call> <tool_call>"}
    ]
    assert parse_calls(f"<think>{inside}") == []
    assert parse_calls(f"plan {inside}</think> done") == []


values = st.recursive(
    st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0, 2.0]), st.booleans(), st.none(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=6,
)
named = st.tuples(st.sampled_from(["f", "g"]), st.dictionaries(st.text(max_size=3), values, max_size=3))


@settings(max_examples=200, deadline=None)
@given(st.lists(named, min_size=1, max_size=4), st.randoms())
def test_calls_are_read_back_in_any_order(calls: list[tuple[str, dict[str, Any]]], rng: Any) -> None:
    if any("think>" in str(c) for c in calls):
        return
    text = "so ".join(render_call(name, arguments) for name, arguments in calls)
    assert [(c.name, c.arguments) for c in parse_calls(text)] == calls
    golds = [{"name": name, "arguments": arguments} for name, arguments in calls]
    assert verify_calls(text, golds, any_order=False).verdict is R
    rng.shuffle(golds)
    assert verify_calls(text, golds).verdict is R
    assert verify_calls(text, json.dumps(golds)).verdict is R
    assert verify_calls(text + text, golds).verdict is W
    assert verify_calls(text[:-1], golds).verdict is W
    altered = [*golds[1:], {"name": golds[0]["name"], "arguments": {**golds[0]["arguments"], "other": 1}}]
    assert verify_calls(text, altered).verdict is W


PIECES = [
    "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', '{"name":', '"arguments":', "{", "}", "[", "]",
    '"', "\\", "null", "1e999", "<think>", "</think>", "```json\n", "\n```", "f(", ")", "'", ",", " ", "\ud800", "\x00",
    '{"tool_calls": [', '{"function": {',
]  # fmt: skip
soup = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=25).map("".join)
schemas = st.recursive(
    st.sampled_from([True, {}, {"type": "string"}, {"type": ["integer", "x"]}, {"enum": [1, "a"]}, {"pattern": "a+b"},
                     {"pattern": "(a|b*)*"}, {"$ref": "#/properties/x"}, {"$ref": "#"}, {"minLength": None}, 7, None]),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("xy"), inner)}),
        st.fixed_dictionaries({"items": inner, "type": st.just("array")}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)}),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    soup, st.one_of(soup, values, st.just({"name": "f", "arguments": {}})), st.none() | st.lists(schemas, max_size=2)
)
def test_any_text_and_any_gold_are_graded(text: str, gold: Any, tools: Any) -> None:
    definitions = None if tools is None else [{"name": "f", "parameters": s} for s in tools]
    for form in ("tagged", "either"):
        graded = verify_calls(text, gold, tools=definitions, form=form)  # type: ignore[arg-type]
        assert graded.reason and (graded.verdict is F or graded.score == float(graded.verdict is R))
        if not text.strip():
            assert graded.verdict in (N, F)


@settings(max_examples=300, deadline=None)
@given(schemas, values)
def test_a_schema_that_has_no_problem_never_raises(schema: Any, value: Any) -> None:
    if schema_problem(schema) is None:
        found = violation(schema, value)
        assert found is None or found.kind


@pytest.mark.parametrize(
    ("pattern", "bounded"),
    [
        (r"^[A-Z]{3}$", True), (r"^\d{4}-\d\d-\d\d$", True), (r"^[A-Z]+-\d+$", True), (r"^(\+\d{1,3})?\d{10}$", True),
        (r"^(a+)+$", False), (r"^(a|aa)*$", False), (r"(x+x+)+y", False), (r"(a)\1", False), ("(", False),
        (r"((a*)b)*", False), (r"a*a*a*a*a*a*a*b", False), (7, False),
    ],
)  # fmt: skip
def test_patterns_are_matched_in_bounded_time_or_not_at_all(pattern: Any, bounded: bool) -> None:
    longest = longest_text(pattern)
    assert (longest is not None) == bounded
    if longest is not None:
        began = time.process_time()
        for sign in ("a", "1", "A", "-"):
            violation({"pattern": pattern}, sign * min(longest, 200_000))
        assert time.process_time() - began < 5
        assert violation({"pattern": pattern}, "a" * (longest + 1)) is not None


def test_a_long_pattern_is_refused_before_it_is_looked_through() -> None:
    began = time.process_time()
    assert longest_text(')"enum": [0<' * 16_666) is None  # found by the fuzzer: 18 seconds of open brackets
    assert time.process_time() - began < 1
    assert longest_text("a" * 1000) is not None and longest_text("a" * 1001) is None


def test_hostile_responses_end_soon() -> None:
    deep = '{"name": "f", "arguments": ' + '{"x": ' * 200_000
    flood = [
        "<tool_call>" * 150_000,
        "<tool_call>{" * 150_000 + "</tool_call>",
        raw("{") * 80_000,
        call("ping") * 20_000,
        raw(deep),
        deep,
        "[" * 1_900_000,
        "f(" * 900_000,
        "`" * 1_900_000,
        '"name" ' * 250_000,
        "<think>" * 250_000 + "x",
        "x" * 3_000_000,
    ]
    for text in flood:
        began = time.process_time()
        for gold in (PING, None):
            graded = verify_calls(text, gold, form="either")
            assert graded.verdict in (W, N) or (gold is None and "no call" in graded.reason)
        assert time.process_time() - began < 4, text[:40]


@pytest.mark.parametrize(
    "text", ["1e400", "[NaN]", "-Infinity", '{"a": 1, "a": 1}', "[1] [2]", "01", "", "nul", "[" * 101 + "]" * 101]
)
def test_what_strict_json_refuses(text: str) -> None:
    with pytest.raises(BadJsonError):
        read_json(text)


@settings(max_examples=200, deadline=None)
@given(values)
def test_strict_json_reads_what_is_written(value: Any) -> None:
    assert same_value(read_json(json.dumps(value)), value) and why_not_json(value) is None
    assert same_value(
        read_json("[" * 50 + json.dumps(value) + "]" * 50 + " \n"), read_json("[" * 50 + json.dumps(value) + "]" * 50)
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*'{}[],:"\\- \n\t19.e', "null", "tru", "NaN", '"a"', "\\u00e9", "x" * 7]), max_size=30)
)
def test_reading_by_windows_changes_nothing(pieces: list[str]) -> None:
    text = "".join(pieces)
    small = pytest.MonkeyPatch()
    results: list[tuple[Any, ...]] = []
    for width in (10**6, 17):
        small.setattr(jsontext, "_WINDOW", width)
        try:
            results.append(("value", repr(jsontext.read_json_at(text))))
        except BadJsonError as error:
            results.append(("error", str(error), error.at))
    small.undo()
    assert results[0] == results[1]
