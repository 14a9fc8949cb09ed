"""Quality of dreamt episodes: contradictions, inventions and the pair test, by hand; errors and the bound."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.library import Library
from rlready.dream.measure import documents
from rlready.dream.measure.errors import model_errors, one_step_errors
from rlready.dream.measure.open_loop import open_loop
from rlready.dream.measure.quality import Ground, Quality, contradictions, facts_in, inventions, length_ratio, quality
from rlready.dream.measure.real_or_dream import real_or_dream
from rlready.experience.episode import LoggedEpisode
from rlready.seeds import derive
from tests.dream.measure.desk import DOMAIN, LIST, READS, RULES, Scripted, cancel, doc, episode, get

DETAILS = '<tool_call>{"name": "get_order", "arguments": {"full": true, "order_id": "W1"}}</tool_call>'


def count(*steps: tuple[str, str], **more: Any) -> Any:
    return contradictions([episode(*steps, ("Bye", ""), **more)], DOMAIN, READS)


def test_the_same_question_must_get_the_same_answer() -> None:
    found = count((get("W1"), doc()), (LIST, '["W1"]'), (get("W1"), doc(price=11)))
    assert (found.repeated, found.answers, found.fields, found.per_episode) == (1, 1, 0, 1)
    assert "task t1, step 3" in found.example
    assert count((get("W1"), doc()), (get("W1"), doc())).per_episode == 0
    laid_out = json.dumps(json.loads(doc()), indent=2)
    assert count((get("W1"), doc()), (get("W1"), laid_out)).answers == 0


def test_a_write_between_may_change_anything_a_refused_one_nothing() -> None:
    cancelled = doc(status="cancelled")
    assert count((get("W1"), doc()), (cancel("W1"), cancelled), (get("W1"), cancelled)).per_episode == 0
    refused = '{"error": "no"}'
    found = count((get("W1"), doc()), (cancel("W1"), refused), (get("W1"), cancelled), errors=(1,))
    assert (found.repeated, found.answers) == (1, 1)


def test_fields_of_an_entity_that_change_by_themselves() -> None:
    found = count((get("W1"), doc()), (DETAILS, doc(price=11, status="sent", more=1)))
    assert (found.answers, found.fields, found.per_episode) == (0, 2, 2)
    assert "price of W1 is 10, then 11" in found.example
    assert count((get("W1"), doc()), (get("W2"), doc("W2", price=11))).fields == 0


def test_facts_are_what_could_be_looked_up() -> None:
    assert facts_in("On 2024-05-15 at 10:30 HAT123 costs $1,234.50, mail mia_li@x.org (gold_member) 7!") == {
        "2024-05-15",
        "10:30",
        "hat123",
        "234.50",
        "mia_li@x.org",
        "gold_member",
    }


def test_inventions_by_hand() -> None:
    library = Library(
        [episode((get("W1"), doc(price=10)), (get("W2"), doc("W2", price=77)), ("Bye", ""))], DOMAIN, RULES
    )
    dreamt = episode(
        (get("W1"), doc(price=77)),  # recorded for this kind of action
        (cancel("W1"), doc(status="cancelled", price=10)),  # recorded of this entity
        (cancel("W1"), '{"error": "W1 was closed as case 9041"}'),  # stands nowhere
        (get("W1"), doc(price=9041)),  # was said before
        ("Bye", ""),
    )
    found = inventions([dreamt], DOMAIN, Ground(library))
    assert (found.replies, found.facts, found.invented) == (4, 8, 1)
    assert found.share == pytest.approx(1 / 8) and found.replies_share == pytest.approx(1 / 4)
    assert "9041" in found.example and "step 3" in found.example


def dreams(n: int, reply: str, *, salt: int = 0) -> list[LoggedEpisode]:
    """Looks at n orders; {j} in the reply is a number from 0 to 9 that is drawn anew for each."""
    return [
        episode((get(f"W{i}"), reply.format(j=derive(salt, i) % 10)), ("Bye", ""), task_id=f"t{i}") for i in range(n)
    ]


def test_the_pair_test_tells_a_tic_and_cannot_tell_what_is_drawn_alike() -> None:
    recorded = dreams(100, '{{"status": "open", "price": {j}}}')
    tic = real_or_dream(dreams(100, '{{"status": "open", "price": {j}, "as": "requested"}}'), recorded, DOMAIN)
    assert tic.auc > 0.95 and tic.told and any("requested" in t for t in tic.tells)
    alike = real_or_dream(dreams(100, '{{"status": "open", "price": {j}}}', salt=1), recorded, DOMAIN)
    assert abs(alike.auc - 0.5) < 0.15 and not alike.told
    same = real_or_dream(recorded, recorded, DOMAIN)
    assert same.auc == pytest.approx(0.5) and same.pairs > 0


def test_the_mix_of_actions_tells_nothing() -> None:
    cancels = [episode((cancel("W1"), "gone"), ("Bye", ""), task_id=f"t{i}") for i in range(20)]
    looks = [episode((get("W1"), "open"), ("Bye", ""), task_id=f"t{i}") for i in range(20)]
    found = real_or_dream(cancels, looks, DOMAIN)
    assert found.pairs == 0 and found.auc != found.auc and not found.told


def test_quality_holds_dreams_beside_recordings() -> None:
    recorded = dreams(10, '{{"status": "open", "price": {j}}}')
    dreamt = dreams(10, '{{"status": "open"}}')
    found = quality(dreamt, recorded, Library(recorded, DOMAIN, RULES), DOMAIN, READS)
    assert found.length_ratio == pytest.approx(18 / 30) == length_ratio(dreamt, recorded, DOMAIN)
    assert found.recorded_inventions.invented == 0 and found.contradictions.per_episode == 0
    again = Quality.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again.to_json() == found.to_json()


# ---------------------------------------------------------------------- documents


def test_fields_by_number_of_changes_by_hand() -> None:
    get1 = Action(get("W1"), "get_order", {"order_id": "W1"})
    past = [(get1, Reply(doc()))]
    score = documents.score_fields(past, get1, doc(status="sent"), doc(status="sent", price=12))
    assert score == documents.FieldScore("2", 3, 2, 2, 1)
    invented = documents.score_fields(past, get1, doc(extra=1), doc())
    assert invented == documents.FieldScore("0", 4, 3, 0, 0)
    assert documents.score_fields(past, get1, "no document", doc(status="sent")) == documents.FieldScore(
        "1", 3, 0, 1, 0
    )
    dropped = documents.score_fields([(get1, Reply(doc(note="x")))], get1, doc(), doc())
    assert dropped == documents.FieldScore("1", 3, 3, 1, 1)  # a field that went is a change, and was said
    assert documents.score_fields(past, get1, "x", "plain words") is None


LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
JSON = st.recursive(LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3))


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4), st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_equal_documents_have_all_fields_right_and_changes_are_symmetric(a: dict[str, Any], b: dict[str, Any]) -> None:
    action = Action("x")
    text = json.dumps(a)
    score = documents.score_fields((), action, json.dumps(a, indent=1), text)
    assert score is not None and score.right == score.fields and documents.same(text, json.dumps(a, indent=2))
    left, right = documents.leaves(a), documents.leaves(b)
    assert documents.changed(left, right) == documents.changed(right, left)
    assert documents.changed(left, left) == set()


# ---------------------------------------------------------------------- errors


def test_one_step_errors_and_bound_by_hand() -> None:
    logs = [
        episode((get("W1"), doc()), (cancel("W1"), doc(status="cancelled")), ("Bye", "")),
        episode((get("W2"), doc("W2")), (LIST, '["W2"]'), ("Bye", ""), task_id="t2", success=False),
    ]

    def reply(moment: Moment, action: Action) -> str:
        return doc("W1") if action.text == get("W1") else "?"

    loop = asyncio.run(open_loop(logs, DOMAIN, RULES, (), Scripted(reply, lambda m: 0.75)))
    found = one_step_errors(loop, gamma=0.5)
    assert (found.reward_mean, found.reward_max) == (0.5, 0.75)  # |.75 - 1| and |.75 - 0|
    assert (found.reply_mean, found.reply_max) == (0.75, 1.0) and found.verdicts == 2
    assert found.error() == pytest.approx(0.5 / 0.5 + 0.5 * 0.75 / 0.25)


def test_errors_against_known_dynamics_leave_open_what_is_open() -> None:
    log = [episode((get("W1"), doc()), ("Bye", ""))]

    def coin(moment: Moment, action: Action) -> str:
        return doc() if moment.world % 2 else doc(status="sent")

    simulator = Scripted(coin)
    loop = asyncio.run(open_loop(log, DOMAIN, RULES, (), simulator, judge=False))
    dynamics = {doc(): 0.5, doc(status="sent"): 0.5}
    found = asyncio.run(model_errors(log, DOMAIN, RULES, (), simulator, loop, lambda e, t: dynamics, samples=400))
    assert found.reply_max < 0.1
    wrong = asyncio.run(model_errors(log, DOMAIN, RULES, (), Scripted(lambda m, a: doc()), loop, lambda e, t: dynamics))
    assert wrong.reply_mean == pytest.approx(0.5)
