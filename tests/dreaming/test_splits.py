"""Tasks are cut without leaks, and keep their side."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.dreaming.splits import normalised, split_tasks
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode


def run(task: str, instruction: str) -> LoggedEpisode:
    return LoggedEpisode(task, instruction, ("a",), ("",), True, True)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=120),
    st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]),
    st.integers(0, 3),
)
def test_every_task_has_one_side_and_twins_share_it(pairs, held_out, seed):
    episodes = [run(f"t{t}", f"Do number {i}!") for t, i in pairs]
    s = split_tasks(episodes, held_out, seed)
    tasks = {e.task_id for e in episodes}
    assert sorted((*s.train, *s.dev, *s.test)) == sorted(tasks)
    assert s.train
    side = {t: name for name, ids in s.by_name().items() for t in ids}
    single = {t for t in tasks if len({e.instruction for e in episodes if e.task_id == t}) == 1}
    for a in episodes:
        using = {e.task_id for e in episodes if e.instruction == a.instruction}  # words that many use bind nothing
        if len(using) <= 2 or 2 * len(using) <= len(tasks) // 2:
            assert len({side[t] for t in using & single}) <= 1


def test_layout_and_case_do_not_tell_tasks_apart():
    assert normalised("Buy  shoes,\n PLEASE.") == normalised("buy shoes please")
    episodes = [run(f"t{i}", f"task {i}") for i in range(40)] + [run("x", "Task 7."), run("y", "TASK: 7")]
    for seed in range(20):
        side = {t: n for n, ids in split_tasks(episodes, 0.5, seed).by_name().items() for t in ids}
        assert side["x"] == side["y"] == side["t7"]
    assert split_tasks(episodes).twins == 2


def test_a_task_keeps_its_side_when_logs_grow():
    few = split_tasks([run(f"t{i}", f"task {i}") for i in range(200)], 0.2)
    more = split_tasks([run(f"t{i}", f"task {i}") for i in range(2000)], 0.2)
    for name, ids in few.by_name().items():
        assert set(ids) <= set(more.by_name()[name])
    assert 0.16 < 1 - len(more.train) / 2000 < 0.24


def test_words_that_open_a_task_only_now_and_then_bind_nothing():
    """A simulated user opens each run in other words; two tasks share an opening once in four runs."""
    episodes = [run(f"t{i}", f"opening {i} {k}") for i in range(30) for k in range(4)]
    episodes += [run("t0", "Hi!"), run("t1", "Hi!")]
    assert split_tasks(episodes).twins == 0


def test_a_greeting_of_all_tasks_binds_nothing():
    assert split_tasks([run(f"t{i}", "Play.") for i in range(30)]).twins == 0


@pytest.mark.parametrize(("tasks", "sizes"), [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1))])
def test_few_tasks_are_shared_out_as_far_as_they_go(tasks, sizes):
    for seed in range(10):
        s = split_tasks([run(f"t{i}", f"task {i}") for i in range(tasks)], 0.2, seed)
        assert (len(s.train), len(s.dev), len(s.test)) == sizes


def test_nothing_held_out_and_a_wrong_share():
    assert split_tasks([run(f"t{i}", f"task {i}") for i in range(50)], 0.0).dev == ()
    with pytest.raises(UserError, match="share"):
        split_tasks([run("t", "x")], 1.0)
