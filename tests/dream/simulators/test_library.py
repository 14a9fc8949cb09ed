"""Recordings are read once, chosen by hash, and replayed only where they fit exactly."""

from __future__ import annotations

from dataclasses import replace

from rlready.dream.base import Moment
from rlready.dream.domain import call_text
from rlready.dream.library import Library, Recorded
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import episode_id
from tests.dream.simulators.shop import DOMAIN, Reads, episodes, order, stock

LOOK, BUY, BAD = stock("apples"), order("apples", 1), order("apples", 9)


def episode(actions: list[str], replies: list[str], task: str = "t", seed: int = 0, **more: object) -> LoggedEpisode:
    kw = {"success": True, "finished": True, **more}
    return LoggedEpisode(task, "order 1 apples", tuple(actions), tuple(replies), seed=seed, **kw)  # type: ignore[arg-type]


def library(*given: LoggedEpisode) -> Library:
    return Library(given, DOMAIN, Reads())  # type: ignore[arg-type]


def moment(lib: Library, id: str, t: int, **more: object) -> Moment:
    e = lib.episodes[id]
    base = Moment(e.task_id, e.instruction, 1, lib.steps(id)[:t], anchor=id)
    return replace(base, **more)  # type: ignore[arg-type]


def test_steps_are_parsed_and_carry_errors_rewards_and_the_end() -> None:
    e = episode([LOOK, BAD, "done"], ["3 apples left", "Error: only 3", ""], errors=(1,), rewards=(0.0, -1.0, 1.0))
    lib = library(e, e)
    assert list(lib) == [episode_id(e)]
    (look, first), (_, second), (said, last) = lib.steps(episode_id(e))
    assert (look.tool, look.arguments, said.tool, said.text) == ("stock", {"item": "apples"}, "", "done")
    assert [r.failed for r in (first, second, last)] == [False, True, False]
    assert [r.done for r in (first, second, last)] == [False, False, True]
    assert [r.reward for r in (first, second, last)] == [0.0, -1.0, 1.0]
    assert first.note == episode_id(e) and first.origin == "recorded"
    cut = episode([LOOK], ["3 apples left"], finished=False)
    assert not library(cut).steps(episode_id(cut))[0][1].done and not library(cut).judged(episode_id(cut))
    closed = episode([LOOK, "done"], ["3 apples left", ""], finished=False)  # words end an episode here
    assert library(closed).steps(episode_id(closed))[1][1].done and library(closed).judged(episode_id(closed))
    unjudged = episode([LOOK, "done"], ["3 apples left", ""], judged=False)
    assert not library(unjudged).judged(episode_id(unjudged))
    assert library(unjudged, cut).base_rate == 0.5 and library(unjudged, closed).base_rate == 1.0


def test_facts_end_at_the_first_change_that_worked() -> None:
    e = episode(
        ["hello", LOOK, BAD, stock("books"), LOOK, BUY, stock("cups")],
        ["hi", "3 apples left", "Error: only 3", "2 books left", "again", "ordered 1 apples", "0 cups left"],
        errors=(2,),
    )
    facts = library(e).facts(episode_id(e))
    assert [(a.text, r.text) for a, r in facts] == [(LOOK, "3 apples left"), (stock("books"), "2 books left")]


def test_a_recording_is_replayed_exactly_and_ends_where_it_ended() -> None:
    e = episode([LOOK, BUY, "done"], ["3 apples left", "ordered 1 apples", ""])
    lib = library(e)
    layer, id = Recorded(lib), episode_id(e)
    for t, (action, reply) in enumerate(lib.steps(id)):
        assert layer.reply(moment(lib, id, t), action) == reply
    look, buy, said = (a for a, _ in lib.steps(id))
    assert layer.reply(moment(lib, id, 2), buy) is None  # a second order was never recorded
    assert layer.reply(moment(lib, id, 1), said) is None  # words depend on all that was said before
    told_otherwise = ((look, replace(lib.steps(id)[0][1], text="7 apples left")), lib.steps(id)[1])
    assert layer.reply(moment(lib, id, 2, past=told_otherwise), said) is None
    assert layer.reply(moment(lib, id, 0, task_id="another"), look) is None


def test_a_call_is_answered_after_the_same_changes_whatever_was_read_or_said() -> None:
    e = episode([LOOK, BUY, LOOK], ["3 apples left", "ordered 1 apples", "2 apples left"])
    lib = library(e)
    id = episode_id(e)
    (look, three), (buy, bought), _ = lib.steps(id)
    at_once = lib.exact(moment(lib, id, 0), buy)
    assert at_once is not None and at_once.text == "ordered 1 apples"
    for past, left in (((), "3 apples left"), (((look, three), (look, three)), "3 apples left"),
                       (((buy, bought),), "2 apples left")):  # fmt: skip
        found = lib.exact(moment(lib, id, 0, past=past), look)
        assert found is not None and found.text == left and not found.done
    failed = ((buy, replace(bought, text="Error", failed=True)),)
    found = lib.exact(moment(lib, id, 0, past=failed), look)
    assert found is not None and found.text == "3 apples left"


def test_the_anchor_comes_first_and_worlds_are_not_mixed() -> None:
    one = episode([LOOK, "done"], ["3 apples left", ""], seed=1)
    two = episode([LOOK, BUY], ["5 apples left", "ordered 1 apples"], seed=2)
    lib = library(one, two)
    look = lib.steps(episode_id(one))[0][0]
    for id, left in ((episode_id(one), "3 apples left"), (episode_id(two), "5 apples left")):
        found = lib.exact(moment(lib, id, 0), look)
        assert found is not None and found.text == left
    # The world of `one` never hears what was recorded in the world of `two`.
    books = episode([stock("books")], ["2 books left"], seed=2)
    lib = library(one, books)
    assert lib.exact(moment(lib, episode_id(one), 0), lib.steps(episode_id(books))[0][0]) is None


def test_a_question_is_answered_from_any_recording_of_the_same_world() -> None:
    one = episode(["hello", LOOK, "done"], ["hi", "3 apples left", ""])
    two = episode([stock("books"), "done"], ["2 books left", ""])
    odd = episode([LOOK, stock("cups"), "done"], ["8 apples left", "9 cups left", ""])
    lib = library(one, two, odd)
    anchor = episode_id(one)
    asked = {a.text: (a, r) for id in lib for a, r in lib.steps(id)}
    look = lib.exact(moment(lib, anchor, 0), asked[LOOK][0])
    assert look is not None and look.text == "3 apples left" and not look.done
    books = lib.exact(moment(lib, anchor, 0), asked[stock("books")][0])
    assert books is not None and books.text == "2 books left"
    assert lib.exact(moment(lib, anchor, 0), asked[stock("cups")][0]) is None  # `odd` contradicts the anchor
    assert set(lib.same_world(anchor)) == {episode_id(two)}
    assert [a.text for a, _ in lib.world_facts(anchor)] == [LOOK, stock("books")]


def test_anchors_are_a_function_of_the_world_and_cover_the_recordings() -> None:
    lib = library(*episodes(6))
    ids = set(lib.by_task["t0"])
    chosen = [lib.anchor("t0", world) for world in range(200)]
    assert set(chosen) == ids and chosen == [lib.anchor("t0", world) for world in range(200)]
    assert lib.anchor("unknown", 3) == ""


def test_parts_of_a_library_are_nested_and_leave_tasks_out() -> None:
    lib = library(*episodes(6))
    four, sixteen = lib.only(4, seed=3), lib.only(16, seed=3)
    assert len(four) == 4 and set(four) < set(sixteen) < set(lib)
    assert len(lib.only(0)) == 0 and set(lib.only(10**6)) == set(lib)
    assert set(lib.only(4, seed=1)) != set(four)
    part = lib.without({"t0", "t2"})
    assert set(part.by_task) == {"t1", "t3"} and len(part) == sum(len(lib.by_task[t]) for t in ("t1", "t3"))
    assert part.anchor("t0", 1) == "" and Library([], DOMAIN, Reads()).base_rate == 0.5  # type: ignore[arg-type]


def test_nothing_depends_on_the_order_of_recordings() -> None:
    given = episodes(5)
    a, b = library(*given), library(*reversed(given))
    assert list(a) == list(b) and a.by_task == b.by_task
    assert [a.anchor("t1", w) for w in range(50)] == [b.anchor("t1", w) for w in range(50)]


def test_malformed_calls_and_several_calls_in_one_text_are_one_action() -> None:
    broken = '<tool_call>{"name": "stock", "arguments": {"item": </tool_call>'
    both = call_text("stock", {"item": "a"}) + call_text("stock", {"item": "b"})
    lib = library(episode([broken, both], ["Error: malformed", "?"], errors=(0,)))
    (bad, _), (double, _) = lib.steps(next(iter(lib)))
    assert bad.problem and bad.arguments is None
    assert double.text == both and double.tool == ""
    assert lib.facts(next(iter(lib))) == ()
