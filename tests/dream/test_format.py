"""The layout, token by token; reading back; what is trained and what is context."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dream.format import Answer, DreamFormat, Unparsable
from rlready.dream.memory import DreamMemory, Notes
from rlready.dream.samples import prompts_of, variation_pairs
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from tests.dream.dream_phone import ACTIONS, form, logged


def spelled(form: DreamFormat, row: Any) -> tuple[str, str]:
    """A row's words, and those of them that carry weight."""
    trained = [form.tokens[t] for t, w in zip(row.tokens, row.weights["nll"], strict=True) if w > 0]
    assert set(np.unique(row.weights["nll"])) <= {0.0, 1.0}
    return form.decode(row.tokens), " ".join(trained)


@pytest.fixture
def world() -> DreamFormat:
    return form()


DEMOS = [[("look", "air_on sim_out")], [("fix air", "ok"), ("fix sim", "ok")], [], [("done", "(right)")]]


def test_whole_layout(world: DreamFormat) -> None:
    (row,) = world.rows(*logged(), DEMOS)
    assert spelled(world, row) == (
        "<s> phone dead <card> air sim <go> "
        "look ( air_on sim_out ) air sim <so> air_on sim_out <go> "
        "fix air ( ok <or> fix sim ok ) sim <so> ok <go> "
        "fix sim ( ) <so> ok <go> "
        "done ( <right> ) <so> <right> <end>",
        "air sim <go> air sim <so> air_on sim_out <go> sim <so> ok <go> <so> ok <go> <so> <right> <end>",
    )


@pytest.mark.parametrize(
    ("switches", "text"),
    [
        ({"demos": 0}, "<s> phone dead <card> air sim <go> look ) air sim <so> air_on sim_out <go> fix air ) sim <so> ok <go> done ) sim <so> <wrong> <end>"),  # noqa: E501
        ({"trace": False, "demos": 0}, "<s> phone dead <card> air sim <go> look ) air_on sim_out <go> fix air ) ok <go> done ) <wrong> <end>"),  # noqa: E501
        ({"card": False, "demos": 0}, "<s> phone dead <card> look ) air sim <so> air_on sim_out <go> fix air ) sim <so> ok <go> done ) sim <so> <wrong> <end>"),  # noqa: E501
    ],
)  # fmt: skip
def test_ablations(switches: dict[str, Any], text: str) -> None:
    f = form(**switches)
    (row,) = f.rows(*logged(success=False), DEMOS)
    assert spelled(f, row)[0] == text


def test_limited_history_gives_a_row_per_step_each_trained_once() -> None:
    f = form(history=1, demos=0)
    rows = [spelled(f, r) for r in f.rows(*logged())]
    assert [r[0] for r in rows] == [
        "<s> phone dead <card> air sim <go> look ) air sim <so> air_on sim_out <go>",
        "<s> phone dead <card> air sim <go> look ) air sim <so> air_on sim_out <go> fix air ) sim <so> ok <go>",
        "<s> phone dead <card> air sim <go> fix air ) sim <so> ok <go> fix sim ) <so> ok <go>",
        "<s> phone dead <card> air sim <go> fix sim ) <so> ok <go> done ) <so> <right>",
    ]
    assert [r[1] for r in rows] == [
        "air sim <go> air sim <so> air_on sim_out <go>",
        "sim <so> ok <go>",
        "<so> ok <go>",
        "<so> <right>",
    ]


@pytest.mark.parametrize("history", [None, 0, 2])
def test_prompts_are_the_rows_cut_before_each_answer(history: int | None) -> None:
    """What the simulator is asked is what it was trained on, and with the whole history each prompt extends the last."""  # noqa: E501
    f = form(history=history)
    episode, notes = logged()
    rows = f.rows(episode, notes, DEMOS)
    prompts = prompts_of(f, episode, notes, DEMOS)
    answers = [f.answer(t.trace, t.reply, t.verdict) for _, _, t in f.steps(episode, notes)]
    for t, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        row = (rows[0] if history is None else rows[t]).tokens.tolist()
        assert row[: len(prompt) + len(answer)] == prompt + answer
        weights = (rows[0] if history is None else rows[t]).weights["nll"]
        assert weights[len(prompt) : len(prompt) + len(answer)].tolist() == [1.0] * len(answer)
    if history is None:
        for prompt, answer, after in zip(prompts, answers, prompts[1:], strict=False):
            assert after[: len(prompt) + len(answer)] == prompt + answer


answers = st.builds(
    Answer,
    st.lists(st.sampled_from(["air", "sim"]), unique=True).map(tuple),
    st.lists(st.sampled_from(["air_on", "ok", "sim_in"]), min_size=1, max_size=3).map(" ".join),
)


@given(answers, st.booleans())
def test_answers_read_back(answer: Answer, trace: bool) -> None:
    f = form(trace=trace)
    wanted = answer if trace else Answer((), answer.reply)
    assert f.parse_answer(f.answer(answer.trace, answer.reply), closing=False) == wanted
    for verdict in (True, False):
        closing = f.answer(answer.trace, "", verdict)
        assert f.parse_answer(closing, closing=True) == Answer(wanted.trace, "", verdict)


@given(st.lists(st.integers(0, 22), max_size=8), st.booleans())
@settings(max_examples=300)
def test_only_well_formed_answers_are_read(ids: list[int], closing: bool) -> None:
    """Whatever is accepted is exactly what would have been written."""
    f = form()
    ids = [i % len(f.tokens) for i in ids]
    try:
        answer = f.parse_answer(ids, closing=closing)
    except Unparsable:
        return
    assert f.answer(answer.trace, answer.reply, answer.verdict) == ids
    assert (answer.verdict is not None) == closing and bool(answer.reply) != closing


@pytest.mark.parametrize(
    ("said", "closing", "why"),
    [
        ("air <so> ok", False, "does not end"),
        ("ok <go>", False, "0 marks"),
        ("air <so> <so> ok <go>", False, "2 marks"),
        ("ok <so> ok <go>", False, "trace holds"),
        ("air <so> air <go>", False, "reply holds"),
        ("air <so> <go>", False, "nothing came back"),
        ("<so> ok <right>", False, "verdict came before"),
        ("<so> ok <right>", True, "verdict alone"),
        ("<so> <go>", True, "verdict alone"),
    ],
)
def test_what_cannot_be_read(world: DreamFormat, said: str, closing: bool, why: str) -> None:
    with pytest.raises(Unparsable, match=why):
        world.parse_answer([world.ids[w] for w in said.split()], closing=closing)


def test_cards_and_tasks(world: DreamFormat) -> None:
    def ids(text: str) -> list[int]:
        return [world.ids[w] for w in text.split()]

    assert world.parse_card(ids("air sim <go>")) == ("air", "sim")
    for bad in ("air air <go>", "air", "ok <go>", ""):
        with pytest.raises(Unparsable):
            world.parse_card(ids(bad))
    assert world.parse_task(ids("phone dead <card> sim <go>")) == ("phone dead", ("sim",))
    for bad in ("phone dead", "<card> sim <go>", "phone sim <card> sim <go>", "phone dead <card> sim"):
        with pytest.raises(Unparsable):
            world.parse_task(ids(bad))
    row = world.task_row(("phone dead", ("air",)), ("phone dead", ("air", "sim")))
    assert spelled(world, row) == (
        "<new> phone dead <card> air <go> phone dead <card> air sim <go>",
        "phone dead <card> air sim <go>",
    )
    assert world.vary("phone dead", ("air",)) == row.tokens.tolist()[:6]


def test_variation_pairs_add_exactly_one_problem() -> None:
    def one(task: str, instruction: str, *card: str) -> tuple[LoggedEpisode, Notes]:
        return LoggedEpisode(task, instruction, ("done",), ("",), False, True), Notes(card, ())

    logs = [
        one("a", "p", "x"),
        one("b", "p", "x", "y"),
        one("c", "q", "x", "y"),
        one("d", "p", "x", "y", "z"),
        one("e", "p"),
    ]
    pairs = variation_pairs([e for e, _ in logs], [n for _, n in logs])
    assert pairs == [(("p", ("x",)), ("p", ("x", "y"))), (("p", ("x", "y")), ("p", ("x", "y", "z")))]


def test_unknown_actions_are_left_out_and_bad_logs_named(world: DreamFormat) -> None:
    e = LoggedEpisode("k", "phone dead", ("look", "dance", "done"), ("air_on sim_out", "error", ""), False, True)
    notes = Notes(("air",), (("air",), ("air",), ("air",)))
    (row,) = world.rows(e, notes)
    assert (
        world.decode(row.tokens)
        == "<s> phone dead <card> air <go> look ( ) air <so> air_on sim_out <go> done ( ) air <so> <wrong> <end>"
    )
    cases: list[tuple[LoggedEpisode, Notes, str]] = [
        (LoggedEpisode("k", "phone dead", ("look",), ("",), False, False), notes, "reply to look is empty"),
        (LoggedEpisode("k", "phone dead", ("look",), ("what",), False, False), notes, "does not know the word 'what'"),
        (LoggedEpisode("k", "phone dead", ("look",), ("ok",), True, True), notes, "ends with 'look'"),
        (
            LoggedEpisode("k", "phone dead", ("look", "look"), ("ok", "ok"), False, False),
            Notes((), ((),)),
            "1 traces for 2",
        ),
    ]
    for episode, annotation, why in cases:
        with pytest.raises(UserError, match=why):
            world.rows(episode, annotation)
    with pytest.raises(UserError, match="belong to the dream's layout"):
        DreamFormat(("done",), "done", ("(",), (), ())
    with pytest.raises(UserError, match='Unknown closing action "dune"'):
        DreamFormat(("done",), "dune", (), (), ())


def test_open_ended_worlds_may_end_at_any_step() -> None:
    f = form(open_ended=True, demos=0)
    e = LoggedEpisode("k", "phone dead", ("fix air",), ("ok",), True, True)
    (row,) = f.rows(e, Notes(("air",), ((),)))
    assert f.decode(row.tokens) == "<s> phone dead <card> air <go> fix air ) <so> ok <right> <end>"
    assert f.parse_answer(f.answer((), "ok", True), closing=False) == Answer((), "ok", True)


def test_json_round_trip_and_build() -> None:
    f = form(history=3, card=False)
    assert DreamFormat.from_json(f.to_json()) == f
    built = DreamFormat.build(ACTIONS, "done", ["ok", "air_on sim_out"], *zip(logged(), strict=True), demos=1)
    assert built.words == ("air", "air_on", "dead", "done", "fix", "look", "ok", "phone", "sim", "sim_out")
    assert built.note_words == ("air", "sim") and built.demos == 1


def test_memory_never_shows_a_step_its_own_answer(world: DreamFormat) -> None:
    logs = [logged("k1", seed=1), logged("k1", seed=2), logged("k2", success=False)]
    episodes, notes = [e for e, _ in logs], [n for _, n in logs]
    strict = DreamMemory(world)
    strict.seed(episodes, notes)
    shown = strict.demos_for(episodes, notes)
    # "fix sim" was only ever done in task k1, so its steps are shown other actions' replies at best.
    assert all(action != "fix sim" for action, _ in shown[0][2])
    assert shown[0][0] == [("look", "air_on sim_out"), ("fix air", "ok")]
    assert shown[2][0][0] == ("look", "air_on sim_out")
    assert shown[0][3] == [("done", "(wrong)")]  # the other task's verdict; its own are out of sight
    loose = DreamMemory(world, exclude_task=False)
    loose.seed(episodes, notes)
    assert loose.demos_for(episodes, notes)[0][2][0] == ("fix sim", "ok")
    assert ("done", "(right)") in loose.demos_for(episodes, notes)[0][3]


def test_memory_changes_only_at_commit_and_evicts(world: DreamFormat) -> None:
    memory = DreamMemory(world, max_synthetic=2)
    memory.seed(*([x] for x in logged("k0")))
    for n in range(4):
        episode, notes = logged(f"d{n}", success=False)
        memory.stage(LoggedEpisode(**{**episode.to_json(), "source": "synthetic", "task_id": f"d{n}"}), notes)
        assert memory.demos("phone dead", ("sim",), [], "done", "other") == [("done", "(right)")]
    counts = memory.commit(version=5)
    assert counts["memory/staged"] == 4 and counts["memory/evicted"] == 2 and memory.version == 5
    assert memory.store.counts()["synthetic"]["episodes"] == 2
    assert memory.demos("phone dead", ("sim",), [], "done", "other") == [("done", "(wrong)"), ("done", "(right)")]
    off = DreamMemory(world, coevolve=False)
    off.stage(*logged())
    assert off.commit()["memory/staged"] == 0


def test_memory_resumes_to_the_same_answers(world: DreamFormat) -> None:
    """Dreams joined and evicted over several commits; a resumed memory answers every query alike."""

    def dreams(k: int) -> list[tuple[LoggedEpisode, Notes]]:
        pairs = [logged(f"d{(n * k) % 5}", success=(n + k) % 3 > 0, seed=n + 10 * k) for n in range(4)]
        return [(LoggedEpisode(**{**e.to_json(), "source": "synthetic"}), notes) for e, notes in pairs]

    def fresh() -> DreamMemory:
        memory = DreamMemory(world, max_synthetic=6, exclude_task=False)
        memory.seed(*([x] for x in logged("k0", success=False)))
        return memory

    whole = fresh()
    for k in range(4):
        for dream in dreams(k):
            whole.stage(*dream)
        whole.commit(version=k)
    resumed = fresh()
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.version == 3 and len(resumed.retriever) == len(whole.retriever)
    for memory in (whole, resumed):
        for dream in dreams(9):
            memory.stage(*dream)
        memory.commit(version=4)
    for now in ((), ("air",), ("sim",), ("air", "sim")):
        for action in ACTIONS:
            assert whole.demos("phone dead", now, [], action, "x") == resumed.demos("phone dead", now, [], action, "x")
    assert [e.id for e in whole.store] == [e.id for e in resumed.store]
