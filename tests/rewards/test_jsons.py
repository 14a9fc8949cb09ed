"""JSON in responses: where it stands, what is malformed, and what is compared."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready import Score, Task, Trajectory, Turn, Verdict, rewards
from rlready.errors import UserError
from rlready.jsontext import same_value
from rlready.rewards import verify_json
from rlready.rewards.jsons import find_json
from rlready.rewards.kinds import KINDS
from rlready.scoring import as_scorer
from tests.rewards.public_cases import each_case

R, W, N, F = Verdict.RIGHT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.GRADER_FAILED


@each_case("json_extract")
def test_case(case: dict[str, Any]) -> None:
    graded = KINDS["json_extract"].grade(case)
    assert (graded.verdict is R) == case["correct"], (case["note"], graded.reason)


SCORE = '{"score": 62}'


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        # where it stands
        (SCORE, R),
        (f"  {SCORE}\n", R),
        (f"The result is below.\n```json\n{SCORE}\n```\nTell me if more is needed.", R),
        (f"```\n{SCORE}\n```", R),
        (f"```JSON\n{SCORE}\n```", R),
        (f"~~~json\n{SCORE}\n~~~", R),
        (f"````json\n{SCORE}\n````", R),
        (f"  ```json\n  {SCORE}\n  ```", R),
        (f"```json\n{SCORE}", R),  # the fence is the stop sequence of many samplers
        (f"The result is {SCORE}.", R),
        (f"Result:{SCORE}", R),
        (f"**{SCORE}**", R),
        (f"`{SCORE}`", R),
        (f"I see [1] and [2-4]: {SCORE} [3]", R),
        (f"With \\frac{{1}}{{2}} and {{x}}: {SCORE}", R),
        (f"<think>maybe {{\"score\": 5}}</think>{SCORE}", R),
        (f"<think>{SCORE}</think>I cannot give a score.", N),
        (f"<think>{SCORE}", N),
        (f"```python\nx = {SCORE}\n```", N),  # a program is no answer
        ("```python\nx = {\"score\": 5}\n```\n" + SCORE, R),
        # no JSON
        ("", N),
        ("  \n", N),
        ("I cannot give a score.", N),
        ("The score is 62.", N),
        ("{x} and [y]", N),
        # several values: the last one counts
        (f'First {{"score": 5}}, then {SCORE}', R),
        (f'First {SCORE}, then {{"score": 5}}', W),
        (f'```json\n{{"score": 5}}\n```\nor\n```json\n{SCORE}\n```', R),
        (f'```json\n{SCORE}\n```\nor\n```json\n{{"score": 5}}\n```', W),
        (f'Draft {{"score": 5}}\n```json\n{SCORE}\n```', R),
        (f'{SCORE} is my answer, and {SCORE} it stays', R),
        # malformed is wrong, and its sound parts are not looked at
        ('{"score": 62', W),
        ('{"score": ', W),
        ('{"score', W),
        ('The result is {"score": 62', W),
        ('```json\n{"score": 62\n```', W),
        ('{"result": ' + SCORE, W),
        ('{"result": [' + SCORE + "]", W),
        ("{result: " + SCORE + "}", W),
        (SCORE + SCORE, W),
        (SCORE + '{"score": 5}', W),
        (f"x {SCORE}{SCORE} y", W),
        (f"{SCORE}\n{SCORE}", W),
        (f"```json\n{SCORE}\n{SCORE}\n```", W),
        (f"x {SCORE}}} y", W),
        (f"x {{{SCORE}}} y", W),
        (SCORE[:-1] + ",}", W),
        (SCORE[:-1] + ", // sure\n}", W),
        ('{/* sure */ "score": 62}', W),
        ("{'score': 62}", W),
        ("{score: 62}", W),
        ('{"score": NaN}', W),
        ('{"score": Infinity}', W),
        ('{"score": 62, "score": 62}', W),
        ('{"score": 1, "score": 62}', W),
        ('{"score": 062}', W),
        ('{"score": +62}', W),
        ('{"score": 62.}', W),
        ('{"score": "62}', W),
        ('{"sc\nore": 62}', W),
        (f"```json\nSure: {SCORE}\n```", W),
        ("```json\n```", W),
        (f"{SCORE} and then {{\"score\": 6", W),
        # what is compared
        ('{"score": 62.0}', R),
        ('{"score": 6.2e1}', R),
        ('{ "score" :62 }', R),
        ('{"\\u0073core": 62}', R),
        ('{"score": "62"}', W),
        ('{"score": 63}', W),
        ('{"score": [62]}', W),
        ('{"score": null}', W),
        ('{"Score": 62}', W),
        ('{"score": 62, "why": "so"}', W),
        ("{}", W),
        ("62", W),
        (f"[{SCORE}]", W),
        (f"The result is [{SCORE}].", W),
        (json.dumps(SCORE), W),
    ],
)  # fmt: skip
def test_an_object(text: str, verdict: Verdict) -> None:
    graded = verify_json(text, SCORE)
    assert graded.verdict is verdict, graded.reason
    assert graded.score == float(verdict is R) and graded.reason
    assert verify_json(text, {"score": 62}).verdict is verdict
    assert KINDS["json_extract"].grade({"prediction": text, "reference": SCORE}).verdict is verdict


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("[1, 2]", "[1, 2]", R),
        ("[2, 1]", "[1, 2]", W),
        ("The list: [1, 2].", "[1, 2]", R),
        ("The list: [1, 2", "[1, 2]", W),
        ("The list: [1, 2]]", "[1, 2]", W),
        ('I know {"a": 1} and [1, 2]', "[1, 2]", R),
        ('[1, 2] and {"a": 1}', "[1, 2]", R),
        ("[1, 2][1, 2]", "[1, 2]", W),
        ("[]", "[]", R),
        ("none", "[]", N),
        ("62", "62", R),
        ("It is 62.", "62", N),
        ("```json\n62\n```", "62", R),
        ("true", "true", R),
        ("1", "true", W),
        ("null", "null", R),
        ("null", None, R),
        ("", "null", N),
        ('"a"', '"a"', R),
        ("a", '"a"', N),
        ('{"a": {"c": 1, "b": [true, null]}}', {"a": {"b": [True, None], "c": 1}}, R),
        ('{"a": {"c": 1, "b": [1, null]}}', {"a": {"b": [True, None], "c": 1}}, W),
        (SCORE, "", F),
        (SCORE, "{", F),
        (SCORE, "score 62", F),
        (SCORE, {"score": float("inf")}, F),
        (SCORE, {1: 2}, F),
        (SCORE, {"a": {3}}, F),
        ("", "{", F),
    ],
)
def test_other_golds(text: str, gold: Any, verdict: Verdict) -> None:
    graded = verify_json(text, gold)
    assert graded.verdict is verdict, graded.reason


def test_reasons_name_the_place() -> None:
    gold = {"a": {"b": [1, {"c": 2}]}, "d": 1}
    assert "a.b[1].c" in verify_json('{"a": {"b": [1, {"c": 3}]}, "d": 1}', gold).reason
    graded = verify_json('{"a": {"b": [1, {"c": 2}]}}', gold)
    assert "'d' is missing" in graded.reason and graded.parts == {"fields": 0.5}
    assert "not wanted" in verify_json('{"a": {"b": [1, {"c": 2}]}, "d": 1, "e": 0}', gold).reason
    assert verify_json("[1, 3, 3]", "[1, 2, 3]").parts == {"fields": pytest.approx(2 / 3)}
    assert "cut off" in verify_json('{"a": [1, ', gold).reason
    assert "glued" in verify_json('x {"a": 1}{"a": 1}', gold).reason


SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 100}},
    "required": ["score"],
}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (SCORE, R), ('{"score": 7, "why": "so"}', R), ('{"score": "7"}', W), ('{"score": 101}', W),
        ('{"score": 6.5}', W),
        ('{"score": true}', W), ("{}", W), ("[1]", W), ("nothing", N), ("", N), ('{"score": 7', W),
    ],
)  # fmt: skip
def test_a_schema_alone(text: str, verdict: Verdict) -> None:
    graded = verify_json(text, schema=SCHEMA)
    assert graded.verdict is verdict, graded.reason
    assert KINDS["json_extract"].grade({"prediction": text, "schema": SCHEMA}).verdict is verdict


def test_schema_and_gold_and_what_cannot_be_graded() -> None:
    assert verify_json(SCORE, SCORE, schema=SCHEMA).verdict is R
    assert verify_json('{"score": 63}', SCORE, schema=SCHEMA).verdict is W
    assert verify_json(SCORE, '{"score": 900}', schema=SCHEMA).verdict is F
    assert verify_json(SCORE).verdict is F
    assert verify_json(SCORE, schema={"type": "thing"}).verdict is F
    assert verify_json(SCORE, schema=True).verdict is F  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a column"):
        rewards.json_value(None)
    with pytest.raises(UserError, match="thing"):
        rewards.json_value(schema={"type": "thing"})


def test_as_a_reward() -> None:
    def judge(fn: Any, text: str, **data: Any) -> Score:
        task = Task.of("?", **data)
        return asyncio.run(as_scorer(fn)(task, Trajectory(task, [Turn([1], [2], text=text)])))

    reward = rewards.json_value("gold")
    assert reward.columns == ("gold",)  # type: ignore[attr-defined]
    score = judge(reward, f"So: {SCORE}", gold=SCORE)
    assert (score.value, score.verdict, score.parts) == (1.0, R, {"fields": 1.0})
    assert judge(reward, SCORE, gold={"score": 62}).verdict is R
    assert judge(reward, "{}", gold={"score": 62}).verdict is W
    assert judge(reward, "null", other=1).verdict is F  # a column that is missing is no null
    assert judge(rewards.json_value(None, schema=SCHEMA), SCORE).verdict is R


values = st.recursive(
    st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
              st.none(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)  # fmt: skip
objects = st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=4)
prose = st.text("abc ,.:\n", max_size=12)


@settings(max_examples=200, deadline=None)
@given(objects, prose, prose, st.sampled_from([None, 2]), st.booleans(), st.booleans())
def test_what_is_written_is_found(value: Any, before: str, after: str, indent: Any, fenced: bool, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    if "think>" in text:
        return
    body = f"{before}\n```json\n{text}\n```\n{after}" if fenced else f"{before} {text} {after}"
    assert verify_json(body, text).verdict is R
    assert same_value(find_json(body, "object").value, value)
    assert verify_json(body, {**value, "another key": 1}).verdict is W
    cut = body[: body.rindex(text) + len(text) - 1]
    assert verify_json(cut, text).verdict is not R
    assert verify_json(f"{before} {text}{text}", text).verdict is W


PIECES = ['{"a": 1}', '{"a":', "{", "}", "[", "]", '"', "\\", "```json\n", "\n```\n", "```", "~~~\n", "'", ":", ",",
          "//", "/*", "NaN", "1e999", "null", " ", "\n", "<think>", "</think>", "{a:", "[1", "\ud800", "\x00", "9" * 30,
          ]  # fmt: skip
soup = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=30).map("".join)


@settings(max_examples=500, deadline=None)
@given(soup, st.one_of(soup, values))
def test_any_text_and_any_gold_are_graded(text: str, gold: Any) -> None:
    graded = verify_json(text, gold)
    assert graded.reason and (graded.verdict is F or graded.score == float(graded.verdict is R))
    assert verify_json(" ", gold).verdict in (N, F)
    for want in ("object", "list", "any"):
        found = find_json(text, want)  # type: ignore[arg-type]
        if found.found == "value" and want != "any" and isinstance(found.value, (dict, list)):
            json.dumps(found.value, allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 300_000, "[" * 1_900_000, "[1 " * 600_000, ("[" * 90 + "x") * 20_000, '{"a": 1}' * 200_000,
        '{"a": 1} ' * 200_000, '{"a": 1}, ' * 180_000, '{"a": [1, {"b": ' * 100_000, '{"' * 900_000, '{" ' * 600_000,
        "```\n" * 450_000, "```json\n{\n```\n" * 120_000, "{a:" * 600_000, "{'" * 900_000, "x {} " * 300_000,
        "[" + "9" * 1_900_000, '{"a": "' + "\\" * 1_900_000, " " * 1_999_000 + "{", "{" + " " * 1_999_000,
        "x" * 3_000_000,
        "{" * 1_900_000, "[{" * 900_000, ("{" + " " * 1000) * 1900,
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_hostile_responses_end_soon(text: str) -> None:
    began = time.process_time()
    assert verify_json(text, SCORE).verdict in (W, N)
    assert verify_json(text, "[1]").verdict in (W, N)
    assert time.process_time() - began < 6
