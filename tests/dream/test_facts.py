"""What could have been looked up: reading calls whose argument stands in a text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.base import Action
from rlready.dream.domain import call_text
from rlready.dream.facts import Questions, shape

READS = {"get_order", "get_user", "list_all", "search"}


def call(tool: str, **arguments: object) -> Action:
    return Action(call_text(tool, arguments), tool, arguments)


LOGGED = [
    call("get_order", id="W12"),
    call("get_order", id="W34"),
    call("get_user", name="ann"),
    call("get_user", name="bob"),
    call("list_all"),
    call("search", a="x", b="y"),
    call("pay", id="W77"),
    Action("W99"),
    Action("broken", "get_order", None, "no JSON"),
]


@pytest.fixture
def questions() -> Questions:
    return Questions.learn(LOGGED, READS)


@pytest.mark.parametrize(
    ("word", "wanted"), [("ZFA04Y", "AAA00A"), ("order_12", "aaaaa_00"), ("#W5-é", "#A0-a"), ("", ""), ("٣", "0")]
)
def test_shapes(word, wanted):
    assert shape(word) == wanted


def test_only_reading_tools_with_at_most_one_argument(questions):
    assert questions.tools == {"get_order": ("id",), "get_user": ("name",), "list_all": ()}
    assert questions.known["get_order", "id"] == {"W12", "W34"}


def test_words_of_a_known_shape_are_asked_about(questions):
    def asked(text: str) -> list[str]:
        return [a.text for a in questions.about(text)]

    every = call("list_all").text
    assert asked("nothing here") == [every]
    assert asked('Cancel W56, (and "W12").') == [call("get_order", id=w).text for w in ("W12", "W56")] + [every]
    assert asked("W567 is longer, w56 is small") == [every]
    assert asked("ann and eve") == [call("get_user", name="ann").text, every]  # plain words have no shape of their own
    assert asked(json.dumps({"order": "W90", "by": "bob"})) == [
        call("get_order", id="W90").text, call("get_user", name="bob").text, every
    ]  # fmt: skip


def test_a_call_is_made_as_the_logs_make_it(questions):
    (found, _) = questions.about("W12")
    assert found == LOGGED[0]


def test_many_values_are_known_by_their_shape_alone():
    q = Questions.learn([call("get_order", id=f"W{i}") for i in range(1000)], READS)
    assert q.known["get_order", "id"] == frozenset() and q.shapes["get_order", "id"] == {"A0", "A00", "A000"}
    assert [a.arguments for a in q.about("W7 W7777")] == [{"id": "W7"}]


def test_other_than_text_arguments_are_not_asked_about():
    assert Questions.learn([call("get_order", id=12)], READS).about("12") == []
    mixed = Questions.learn([call("get_order", id="12", deep=True), call("get_order", id="7")], READS)
    assert mixed.tools == {"get_order": ("id",)}


@given(st.lists(st.sampled_from([*LOGGED, call("get_order", id="ü-1"), call("list_all", page="2")])), st.text())
def test_round_trip_and_a_fixed_order(steps, text):
    one, two = Questions.learn(steps, READS), Questions.learn(steps[::-1], READS)
    again = Questions.from_json(json.loads(json.dumps(one.to_json())))
    asked = one.about(text + " W12 ann ü-1")
    assert asked == two.about(text + " W12 ann ü-1") == again.about(text + " W12 ann ü-1")
    assert len({a.text for a in asked}) == len(asked)
