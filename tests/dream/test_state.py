import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.domain import Domain, call_text, parse
from rlready.dream.state import StateRules, facts_of
from rlready.dream.staterules.arithmetic import FORMS, evaluate, learn_sum
from rlready.dream.staterules.documents import learn_form, learn_reader, merge_patch
from rlready.dream.staterules.reads import Pair, find_keeps, find_reads, find_writers, leaves, verb
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive
from tests.dream.logs_of_tools import TAU, Shop, airline, episode, play


def learn(episodes: list[LoggedEpisode]) -> StateRules:
    return StateRules.learn(episodes, Domain.learn(episodes))


def proof(rules: StateRules) -> dict[tuple[str, str, str], dict]:
    return {(e["rule"], e["kind"], e["by"]): e for e in rules.describe()}


@pytest.fixture(scope="module")
def shop() -> StateRules:
    return learn(play(120))


class Dream:
    """An episode that only the state answers, beside the real one."""

    def __init__(self, rules: StateRules, world: str) -> None:
        self.rules, self.real, self.state = rules, Shop(world), rules.start()

    def ask(self, name: str, arguments: dict) -> tuple[Reply | None, str]:
        """The state's answer and the real one, which is then observed."""
        (action,) = parse(call_text(name, arguments))
        said = self.rules.reply(Moment("t", "", 0, state=self.state), action)
        real = self.real.call(name, arguments)
        self.state = self.rules.observe(self.state, action, Reply(real, real.startswith("Error")))
        return said, real


# ---------------------------------------------------------------------- the shop


def test_reads_and_writers_are_told_apart_without_names():
    renamed = [
        LoggedEpisode(
            e.task_id,
            e.instruction,
            [
                a.replace("get_order", "op7").replace("set_status", "op8").replace("void_order", "op9")
                for a in e.actions
            ],
            e.replies,
            True,
            True,
            errors=e.errors,
        )
        for e in play(120)
    ]
    rules = learn(renamed)
    assert {"op7", "list_orders", "think", "calculate"} <= rules.reads
    assert not {"op8", "op9"} & rules.reads


def test_rules_of_the_shop(shop):
    assert shop.reads == {"get_order", "list_orders", "calculate", "think", "say"}
    assert set(shop.readers) == {"get_order"} and shop.readers["get_order"].field == "order_id"
    assert shop.views == {"get_order": "get_order", "set_status": "get_order"}
    fails = {"fly": ("Error: tool fly does not exist", True)}
    assert shop.constants == {"think": ("", False), "say": ("", False), **fails}
    assert "void_order" not in shop.constants  # always "done", but of orders that exist
    assert ("void_order", "get_order", "apart") in shop.keeps
    assert ("void_order", "get_order", "same") not in shop.keeps
    seen = proof(shop)
    for rule in (("arithmetic", "calculate", ""), ("entity", "get_order", "set_status"), ("repeat", "list_orders", "")):
        assert seen[rule]["used"] and seen[rule]["accuracy"] == 1.0 and seen[rule]["recordings"] >= 10
    assert not seen[("shared", "list_orders", "")]["used"]  # every task has another world
    assert list(shop.shared.values()) == [("Error: order #none not found", True)]


def test_a_document_is_read_again_and_after_it_was_written(shop):
    dream = Dream(shop, "0/3")
    first, second, third = sorted(dream.real.orders)
    assert dream.ask("get_order", {"order_id": first})[0] is None
    said, real = dream.ask("get_order", {"order_id": first})
    assert said == Reply(real, origin="state", confidence=said.confidence, note="entity") and said.confidence >= 0.95
    dream.ask("set_status", {"order_id": first, "status": "gone"})
    said, real = dream.ask("get_order", {"order_id": first})
    assert said is not None and said.text == real and '"gone"' in real and '"note": null' in real
    dream.ask("get_order", {"order_id": second})
    said, real = dream.ask("void_order", {"order_id": second})
    assert said is not None and (said.text, said.note) == (real, "effect") == ("done", "effect")
    said, real = dream.ask("get_order", {"order_id": second})  # nobody was shown the document that was changed
    assert said is not None and said.text == real and '"items": []' in real
    said, real = dream.ask("get_order", {"order_id": first})
    assert said is not None and said.text == real
    assert dream.ask("get_order", {"order_id": third})[0] is None


def test_refusals_and_repeats_stand_until_something_is_written(shop):
    dream = Dream(shop, "0/4")
    first = sorted(dream.real.orders)[0]
    dream.ask("get_order", {"order_id": "#nix"})
    said, real = dream.ask("get_order", {"order_id": "#nix"})
    assert said is not None and (said.text, said.failed, said.note) == (real, True, "refusal")
    dream.ask("list_orders", {})
    said, real = dream.ask("list_orders", {})
    assert said is not None and (said.text, said.note) == (real, "repeat")
    dream.ask("void_order", {"order_id": first})
    said, real = dream.ask("get_order", {"order_id": "#nix"})  # what voids orders makes none
    assert said is not None and (said.text, said.note) == (real, "unknown")


def test_held_worlds_are_never_answered_wrong(shop):
    domain = Domain.learn(play(120))
    right = asked = 0
    for e in play(60, seed=9):
        state = shop.start()
        for t, (text, reply) in enumerate(zip(e.actions, e.replies, strict=True)):
            (action,) = domain.parse(text)
            said = shop.reply(Moment(e.task_id, "", 0, state=state), action)
            asked += 1
            if said is not None:
                assert (said.text, said.failed) == (reply, t in e.errors), text
                right += 1
            state = shop.observe(state, action, Reply(reply, t in e.errors))
    assert right > 0.5 * asked


def test_a_rule_that_the_log_contradicts_is_rejected():
    """In a quarter of the runs the second look at an order shows something else."""
    broken = []
    for i, e in enumerate(play(120)):
        seen: set[str] = set()
        replies = []
        for text, reply in zip(e.actions, e.replies, strict=True):
            replies.append(reply.replace("open", f"moved {len(seen)}") if i % 4 == 0 and text in seen else reply)
            seen.add(text)
        broken.append(LoggedEpisode(e.task_id, "", e.actions, replies, True, True, errors=e.errors))
    rules = learn(broken)
    assert ("entity", "get_order", "get_order") not in rules.allowed
    assert "get_order" not in rules.reads or not proof(rules)[("entity", "get_order", "get_order")]["used"]


def test_few_recordings_prove_nothing():
    rules = learn(play(2))
    assert not rules.allowed and not rules.constants and not rules.sums and not rules.shared
    assert rules.reply(Moment("t", "", 0), parse(call_text("calculate", {"expression": "1 + 1"}))[0]) is None


def test_what_was_put_in_on_purpose_or_checked_is_not_remembered(shop):
    (action,) = parse(call_text("list_orders", {}))
    for origin in ("perturbed", "check"):
        assert shop.observe({}, action, Reply("[]", origin=origin)) == {}
    assert shop.observe({}, Action("x", "list_orders", None, "bad"), Reply("[]")) == {}


def test_the_state_is_replaced_and_patches_say_how(shop):
    (action,) = parse(call_text("get_order", {"order_id": "#1"}))
    state = shop.start()
    text = json.dumps({"order_id": "#1", "status": "open", "total": 2.5, "items": [], "note": None})
    patch = shop.patch(state, action, Reply(text))
    assert patch == {"entities": {"get_order": {"#1": [json.loads(text), "get_order"]}}}
    after = shop.observe(state, action, Reply(text))
    assert state == {} and after == merge_patch({}, json.loads(json.dumps(patch)))
    (write,) = parse(call_text("void_order", {"order_id": "#1"}))
    voided = [{**json.loads(text), "items": []}, "void_order"]
    assert shop.observe(after, write, Reply("done"))["entities"] == {"get_order": {"#1": voided}}
    gone = shop.observe(after, write, Reply("hardly"))  # not what the tool says when it voids an order
    assert gone["entities"] == {"get_order": {}} and gone["written"] == {"void_order": ["#1"]}
    assert after["entities"]["get_order"]["#1"]


def test_facts_are_the_reads_before_the_first_write(shop):
    id = call_text("get_order", {"order_id": "#1"})
    steps = [(call_text("think", {"thought": "x"}), ""), (id, "A"), (id, "B")]
    steps += [(call_text("set_status", {"order_id": "#2", "status": "x"}), "Error: no")]
    steps += [(call_text("list_orders", {}), "[]"), (call_text("void_order", {"order_id": "#1"}), "done"), (id, "C")]
    facts = facts_of(episode("t", steps, errors=(3,)), shop)
    assert [(a.tool, r.text) for a, r in facts] == [("think", ""), ("get_order", "A"), ("list_orders", "[]")]


def test_json_round_trip_and_determinism(shop):
    assert StateRules.from_json(json.loads(json.dumps(shop.to_json()))) == shop
    assert learn(play(120)).to_json() == shop.to_json()
    everything = replace(shop, allowed=None)
    assert StateRules.from_json(json.loads(json.dumps(everything.to_json()))) == everything


def test_what_several_tasks_look_up_alike_is_shared():
    episodes = [
        episode(
            f"t{i}",
            [
                (call_text("get_rate", {"day": f"d{(i + j) % 7}"}), f"{(i + j) % 7 * 3} %" + " of all" * (j == 9))
                for j in range(3)
            ]
            + [(call_text("set_rate", {"day": f"d{i % 7}", "to": str(i)}), "ok"), ("Bye", "")],
        )
        for i in range(40)
    ]
    rules = learn(episodes)
    (known,) = parse(call_text("get_rate", {"day": "d2"}))
    assert rules.reply(Moment("new", "", 0), known).text == "6 %"
    (write,) = parse(call_text("set_rate", {"day": "d2", "to": "1"}))
    changed = rules.observe({}, write, Reply("ok"))
    assert rules.reply(Moment("new", "", 0, state=changed), known) is None


def test_text_commands_have_kinds_of_their_own():
    episodes = []
    for i in range(60):
        at, steps = derive("room", i) % 50, []
        for t in range(10):
            if derive("go", i, t) % 3:
                steps.append(("look", f"You are in room {at}."))
            else:
                at = derive("to", i, t) % 50
                steps.append((["go north", "go south"][t % 2], "You go."))
        episodes.append(episode(f"t{i}", steps))
    rules = learn(episodes)
    assert rules.plain and rules.reads == {"look"} and not rules.constants  # nobody tried to go to nowhere
    look, go = Action("look"), Action("go north")
    state = rules.observe({}, look, Reply("You are in room 3."))
    assert rules.reply(Moment("t", "", 0, state=state), look).text == "You are in room 3."
    state = rules.observe(state, go, Reply("You go."))
    assert rules.reply(Moment("t", "", 0, state=state), look) is None


# ---------------------------------------------------------------------- reads


def test_blame_falls_on_what_explains_the_differences():
    def pair(reader: str, between: str, agree: bool, n: int) -> Pair:
        return Pair(reader, frozenset(between.split()), frozenset(), agree, n)

    pairs = [pair("r", "w", False, n) for n in range(6)]
    pairs += [pair("r", "w x", False, n) for n in range(4)] + [pair("r", "x", True, n) for n in range(5)]
    pairs += [pair("clock", "", False, n) for n in range(4)] + [pair("q", "r", True, n) for n in range(2)]
    kinds = ["r", "w", "x", "clock", "q", "get_q", "send_q"]
    writers = find_writers(pairs, kinds)
    assert writers == {"w", "clock", "send_q"}
    reads, support = find_reads(pairs, kinds, writers)
    assert reads == {"r", "x", "get_q"}  # q: two recordings are too few; get_q: by its name alone
    assert (support["x"].agree, support["x"].recordings) == (5, 5)
    keeps = find_keeps(pairs, reads)
    assert (keeps["w", "r", "apart"].agree, keeps["w", "r", "apart"].pairs) == (0, 10)


def test_a_tool_that_reads_by_its_name_is_blamed_last():
    """Between a look and either writer somebody always looked an item up; the item explains more than each writer."""
    pairs = [Pair("r", frozenset({"get_item", w}), frozenset(), False, n) for n in range(4) for w in ("wa", "wb")]
    assert find_writers(pairs, ["r", "get_item", "wa", "wb"]) == {"wa", "wb"}
    alone = [*pairs, *(Pair("r", frozenset({"get_item"}), frozenset(), False, n) for n in range(3))]
    assert find_writers(alone, ["r", "get_item", "wa", "wb"]) == {"get_item", "wa", "wb"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("get_order", "read"),
        ("orderUpdate", "write"),
        ("listOrders", "read"),
        ("frobnicate", ""),
        ("order_get", "write"),
    ],
)
def test_verbs(name, says):
    assert verb(name) == says


def test_leaves():
    assert leaves({"a": ["x1", {"b": 12, "c": True}], "d": None, "e": "x1", "f": "y"}) == ("x1", "12")
    assert leaves({}) == () and leaves(None) == ()


# ---------------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None, "e": 4}}, {"a": 1, "b": {"d": 3, "e": 4}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({"a": 1}, {"z": None}, {"a": 1}),
        ([1], {"a": 1}, {"a": 1}),
        ({"a": 1}, [2], [2]),
        ({"a": 1}, None, None),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
    ],
)
def test_merge_patches(target, patch, result):
    before = json.dumps(target)
    assert merge_patch(target, patch) == result
    assert json.dumps(target) == before


@pytest.mark.parametrize(
    "write",
    [json.dumps, lambda d: json.dumps(d, separators=(",", ":"), ensure_ascii=False), lambda d: json.dumps(d, indent=2)],
)
def test_documents_are_written_as_the_tool_writes_them(write):
    docs = [{"id": f"é{i}", "b": [1.0, None], "a": {"x": "ü"}} for i in range(5)]
    reader = learn_reader([({"key": d["id"]}, write(d)) for d in docs])
    assert reader is not None and (reader.argument, reader.field) == ("key", "id")
    assert reader.like({"id": 1, "a": 2, "b": 3}) and not reader.like({"id": 1, "a": 2, "c": 3, "d": 4})


def test_what_is_no_reader():
    docs = [{"id": f"a{i}", "x": 1} for i in range(5)]
    assert learn_reader([({"key": f"b{i}"}, json.dumps(d)) for i, d in enumerate(docs)]) is None
    assert learn_reader([({"key": d["id"], "how": "full"}, json.dumps(d)) for d in docs]) is None
    assert learn_reader([({"key": "a1"}, json.dumps(docs[1]))] * 9) is None
    assert learn_form(["not json"]) is None and learn_form(['{"a":  1}']) is None


# ---------------------------------------------------------------------- arithmetic

SUM = st.recursive(
    st.integers(0, 999).map(str) | st.floats(0.01, 99).map(lambda v: f"{v:.2f}"),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=6,
)


@given(SUM)
@settings(max_examples=200, deadline=None)
def test_expressions_have_the_value_that_python_gives_them(text):
    try:
        value = eval(text)
    except ZeroDivisionError:
        assert evaluate(text) is None
        return
    assert evaluate(text) == (value if abs(value) <= 1e15 else evaluate(text))


@given(st.text("0123456789.+-*/%() eEabc_[]'\n\x00", max_size=60))
@settings(max_examples=500, deadline=None)
def test_no_text_breaks_the_evaluator(text):
    value = evaluate(text)
    assert value is None or (isinstance(value, (int, float)) and math.isfinite(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "__import__('os')",
        "1/0",
        "9**9**9",
        "2**1000",
        "1e308*10",
        "1 if 1 else 2",
        "[1]",
        "1,2",
        "(-8)**0.5",
        "1" * 500,
        "(" * 300 + "1" + ")" * 300,
        "+".join(["1"] * 150),
        "True + 1",
        "1j",
    ],
)
def test_what_has_no_value(text):
    assert evaluate(text) is None


@pytest.mark.parametrize(
    "form", ["float, 2 decimals at most", "2 decimals", "whole, else float", "thousands, 2 decimals"]
)
def test_sums_are_written_as_the_tool_writes_them(form):
    values = [("1 + 1", 2), ("10 / 3", 10 / 3), ("1999 * 2", 3998), ("7.5 * 3", 22.5), ("-3 - 1", -4), ("1/8", 0.125)]
    calls = [({"e": text}, f"Result: {FORMS[form](value)}.") for text, value in values]
    found = learn_sum(calls)
    assert found is not None and (found.before, found.after) == ("Result: ", ".")
    assert [found.reply(a) for a, _ in calls] == [text for _, text in calls]
    assert found.reply({"e": "100 / 7"}) == f"Result: {FORMS[form](100 / 7)}."
    assert found.reply({"e": "so what"}) is None and found.reply({}) is None


def test_two_numbers_and_forms_that_cannot_be_told_apart():
    found = learn_sum([({"a": i, "b": i + 2}, str(i * (i + 2))) for i in range(9)])
    assert found is not None and found.operation == "*"
    assert found.reply({"a": 6, "b": 7}) == "42" and found.reply({"a": True, "b": 7}) is None
    assert found.reply({"a": 0.5, "b": 0.25}) is None  # only whole numbers were seen: how others are written is open
    assert learn_sum([({"e": f"{i} + 1"}, "who knows") for i in range(9)]) is None


# ---------------------------------------------------------------------- the real log


@pytest.mark.skipif(not TAU.exists(), reason="the airline log is not here")
def test_the_airline_log():
    """Measured: sums 65 of 65, think 47 of 47, looked up in other tasks 46 of 46, refusals 13 of 13, repeats 4 of 4."""
    episodes, _ = airline()
    rules = learn(episodes)
    assert rules.reads == {
        "calculate",
        "get_reservation_details",
        "get_user_details",
        "list_all_airports",
        "say",
        "search_direct_flight",
        "search_onestop_flight",
        "think",
    }
    seen = proof(rules)
    for key, least in {
        ("arithmetic", "calculate", ""): 65,
        ("constant", "think", ""): 47,
        ("shared", "*", ""): 46,
        ("refusal", "*", ""): 13,
        ("repeat", "*", ""): 4,
        ("persist", "get_reservation_details", "update_reservation_flights"): 9,
    }.items():
        assert seen[key]["used"] and seen[key]["accuracy"] == 1.0 and seen[key]["support"] >= least, key
    assert not seen[("shared", "say", "")]["used"]  # a customer's words are no fact


@pytest.mark.skipif(not TAU.exists(), reason="the airline log is not here")
def test_held_tasks_of_the_airline_log():
    """Measured over six splits of the tasks, three quarters known: 290 of 852 held calls answered, none wrongly."""
    episodes, _ = airline()
    calls = answered = 0
    for seed in range(6):
        known = [e for e in episodes if derive(seed, e.task_id) % 4]
        rules = learn(known)
        for e in episodes:
            if derive(seed, e.task_id) % 4:
                continue
            state = rules.start()
            for t, (text, reply) in enumerate(zip(e.actions, e.replies, strict=True)):
                (action,) = parse(text)
                said = rules.reply(Moment(e.task_id, "", 0, state=state), action)
                calls += bool(action.tool)
                if said is not None:
                    assert said.text == reply, (text, said.note)
                    answered += 1
                state = rules.observe(state, action, Reply(reply, t in e.errors))
    assert answered >= 0.3 * calls
