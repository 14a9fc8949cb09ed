"""Rows by the exact-prefix rule: a matrix derived by hand, properties over random forests, and messages."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.rollout.compile import CompileError, compile_groups, compile_trajectory
from rlready.types import Group, Task, Trajectory, Turn, Verdict

TASK = Task.of("a task")


def T(prompt, completion, parent=None, **kw):
    """A turn whose tokens are characters."""
    kw.setdefault("logprobs", [-0.5] * len(completion))
    kw.setdefault("advantage", 1.0)
    return Turn([ord(c) for c in prompt], [ord(c) for c in completion], parent=parent, **kw)


def probe(prompt, completion, parent=None, **kw):
    return T(prompt, completion, parent, trainable=False, tag="probe", logprobs=[], advantage=None, **kw)


def episode(turns, **kw):
    return Trajectory(TASK, list(turns), reward=1.0, verdict=Verdict.RIGHT, **kw)


def drawn(row):
    """A row as two strings: its tokens, and the index of the turn each trained token belongs to."""
    weight = row.weights["policy"]
    owner = "".join(str(row.turn[t]) if weight[t] else "." for t in range(len(row)))
    return "".join(chr(t) for t in row.tokens), owner


# Context is in small letters, what was sampled in capitals. Expected: tokens over the turn that each is trained for.
MATRIX = {
    "one turn": ([T("ab", "XY")], [("abXY", "..00")]),
    "tool chain": (
        [T("ab", "X"), T("abXc", "YZ", 0), T("abXcYZd", "W", 1)],
        [("abXcYZdW", "..0.11.2")],
    ),
    "turns without anything between": ([T("a", "X"), T("aX", "Y", 0)], [("aXY", ".01")]),
    "rewritten context (chunks)": (
        [T("ab", "XY"), T("aY", "Z", None), T("aZ", "W", None)],
        [("abXY", "..00"), ("aYZ", "..1"), ("aZW", "..2")],
    ),
    "a parent whose context was rewritten": ([T("ab", "X"), T("acX", "Y", 0)], [("abX", "..0"), ("acXY", "...1")]),
    "a prompt that drops part of what was sampled": (
        [T("ab", "XY"), T("abX", "Z", 0)],
        [("abXY", "..00"), ("abXZ", "...1")],
    ),
    "an extension that names no parent is a new context": (
        [T("a", "X"), T("aXb", "Y", None)],
        [("aX", ".0"), ("aXbY", "...1")],
    ),
    "tree: two children share a prefix, trained once": (
        [T("a", "X"), T("aXb", "Y", 0), T("aXc", "Z", 0)],
        [("aXbY", ".0.1"), ("aXcZ", "...2")],
    ),
    "tree: branches of branches": (
        [T("a", "P"), T("aP", "Q", 0), T("aP", "R", 0), T("aPQ", "S", 1), T("aPQ", "U", 1), T("aPR", "V", 2)],
        [("aPQS", ".013"), ("aPRV", "..25"), ("aPQU", "...4")],
    ),
    "depth first: the row goes on below its first child": (
        [T("a", "P"), T("aP", "Q", 0), T("aPQ", "R", 1), T("aP", "S", 0)],
        [("aPQR", ".012"), ("aPS", "..3")],
    ),
    "probe before the trained sibling does not take the tail": (
        [T("a", "X"), probe("aX", "P", 0), T("aXb", "Y", 0)],
        [("aXbY", ".0.2")],
    ),
    "probes at every turn cost no row": (
        [T("a", "X"), probe("aX", "P", 0), probe("aX", "Q", 0), T("aX", "Y", 0), probe("aXY", "R", 3)],
        [("aXY", ".03")],
    ),
    "a trained turn that continues a probe has it as context": (
        [T("a", "X"), probe("aX", "P", 0), T("aXPb", "Y", 1)],
        [("aXPbY", ".0..2")],
    ),
    "such a probe yields the tail to a trained sibling": (
        [T("a", "X"), probe("aX", "P", 0), T("aXP", "Y", 1), T("aX", "Z", 0)],
        [("aXZ", ".03"), ("aXPY", "...2")],
    ),
    "only probes": ([probe("a", "X"), probe("aX", "Y", 0)], []),
    "an empty completion trains nothing": ([T("a", "X"), T("aX", "", 0)], [("aX", ".0")]),
    "a chain through an empty completion": (
        [T("a", "X"), T("aXb", "", 0), T("aXbc", "Y", 1)],
        [("aXbcY", ".0..2")],
    ),
    "stages by tag": (
        [T("a", "X", tag="plan"), T("aXb", "Y", 0, tag="act"), T("c", "Z", None, tag="reflect")],
        [("aXbY", ".0.1"), ("cZ", ".2")],
    ),
}


@pytest.mark.parametrize("name", MATRIX)
def test_branching_matrix(name):
    turns, expected = MATRIX[name]
    assert [drawn(row) for row in compile_trajectory(episode(turns))] == expected


def test_shared_turns_are_trained_in_every_branch_when_asked():
    turns = [T("a", "P"), T("aP", "Q", 0), T("aPQ", "S", 1), T("aPQb", "U", 1), T("aP", "R", 0)]
    rows = compile_trajectory(episode(turns), shared="every")
    assert [drawn(row) for row in rows] == [("aPQS", ".012"), ("aPQbU", ".01.3"), ("aPR", ".04")]
    assert [drawn(row) for row in compile_trajectory(episode(turns))] == [
        ("aPQS", ".012"),
        ("aPQbU", "....3"),
        ("aPR", "..4"),
    ]


def test_every_column_is_filled_at_its_token():
    s1, s2 = np.array([1, 7]), np.array([2, 9])
    turns = [
        T(
            "ab",
            "XY",
            logprobs=[-1.0, -2.0],
            advantage=[0.5, -0.5],
            temperature=0.5,
            support=[s1, None],
            value=[3.0, 4.0],
            version=[3, 4],
        ),
        T("abXYc", "Z", 0, logprobs=[-3.0], advantage=2.0, temperature=0.0, support=[s2], returns=7.0, version=7),
    ]
    (row,) = compile_trajectory(episode(turns))
    np.testing.assert_array_equal(row.logprobs, [0, 0, -1, -2, 0, -3])
    np.testing.assert_array_equal(row.advantage, [0, 0, 0.5, -0.5, 0, 2])
    np.testing.assert_array_equal(
        row.temperature, [1, 1, 0.5, 0.5, 1, 1]
    )  # greedy log-probs are those at temperature 1
    np.testing.assert_array_equal(row.values, [0, 0, 3, 4, 0, 0])
    np.testing.assert_array_equal(row.returns, [0, 0, 0, 0, 0, 7])
    np.testing.assert_array_equal(row.turn, [-1, -1, 0, 0, -1, 1])
    np.testing.assert_array_equal(row.support_of, [-1, -1, 0, -1, -1, 1])
    assert [list(s) for s in row.supports] == [[1, 7], [2, 9]]
    np.testing.assert_array_equal(row.version, [-1, -1, 3, 4, -1, 7])


def test_supports_are_one_array_by_identity_and_by_content():
    shared = np.array([4, 5])
    turns = [T("a", "XY", support=[shared, np.array([4, 5])]), T("aXY", "Z", 0, support=[np.array([4, 6])])]
    one, two = compile_groups([Group(TASK, [episode(turns), episode(turns)])])
    assert [list(s) for s in one.supports] == [[4, 5], [4, 6]]
    np.testing.assert_array_equal(one.support_of, [-1, 0, 0, 1])
    assert all(a is b for a, b in zip(one.supports, two.supports, strict=True))


def test_indices_count_excluded_trajectories_but_leave_them_out():
    good, bad = [T("a", "X")], [T("b", "Y")]
    groups = [
        Group(TASK, [episode(bad, failure="the environment died"), episode(good)]),
        Group(TASK, [Trajectory(TASK, bad, verdict=Verdict.GRADER_FAILED), episode(good), Trajectory(TASK, bad)]),
    ]
    rows = compile_groups(groups)
    assert [(row.group, row.trajectory) for row in rows] == [(0, 1), (1, 3)]


def test_streams_are_separate_arrays_and_nll_needs_no_credit():
    turns = [T("ab", "XY", logprobs=[], advantage=None)]
    (row,) = compile_trajectory(episode(turns), streams=("nll", "kl"))
    assert list(row.weights) == ["nll", "kl"]
    np.testing.assert_array_equal(row.weights["nll"], [0, 0, 1, 1])
    row.weights["nll"] *= 0
    np.testing.assert_array_equal(row.weights["kl"], [0, 0, 1, 1])


WRONG = {
    "no advantage": ({"advantage": None}, r"Turn 1 of trajectory 2 of task \w+ has no advantage.*credit\(\)"),
    "no logprobs": ({"logprobs": []}, 'has no logprobs.*"nll"'),
    "too few logprobs": ({"logprobs": [-1.0]}, "has 1 logprobs for 2 completion tokens"),
    "too many advantages": ({"advantage": [1.0, 1.0, 1.0]}, "has 3 advantage for 2 completion tokens"),
    "nan log-prob": ({"logprobs": [-1.0, math.nan]}, "Turn 1 .* has logprobs nan"),
    "minus infinity": ({"logprobs": [-math.inf, -1.0]}, "has logprobs -inf"),
    "a probability in place of its logarithm": (
        {"logprobs": [0.5, 0.25]},
        "0.5 at token 4, which is no log-probability",
    ),
    "infinite advantage": ({"advantage": math.inf}, "has advantage inf"),
    "nan return": ({"returns": [0.0, math.nan]}, "has returns nan"),
    "parent later than its child": ({"parent": 1}, "has parent 1"),
    "wrong support": ({"support": [None]}, "has 1 support for 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_messages_name_turn_trajectory_and_cure(name):
    change, pattern = WRONG[name]
    turns = [T("ab", "X"), T("abXc", "YZ", 0)]
    for key, value in change.items():
        setattr(turns[1], key, value)
    fine = [episode([T("ab", "X")]) for _ in range(2)]
    with pytest.raises(CompileError, match=pattern) as caught:
        compile_groups([Group(TASK, [*fine, episode(turns)])])
    assert isinstance(caught.value, UserError) and isinstance(caught.value, ValueError)


def test_an_empty_prompt_cannot_be_trained():
    with pytest.raises(CompileError, match="empty prompt"):
        compile_trajectory(episode([T("", "X")]))


def test_returns_must_be_given_to_all_turns_or_none_for_the_value_stream():
    turns = [T("a", "X", returns=1.0), T("aX", "Y", 0)]
    with pytest.raises(CompileError, match=r"Turn 1 .* has no returns, but other turns do"):
        compile_trajectory(episode(turns), streams=("policy", "value"))


@st.composite
def forests(draw):
    """Random forests: extensions, rewritten contexts, branches, probes. Two letters, so that contexts collide."""
    letters = st.integers(0, 1)
    turns = []
    for i in range(draw(st.integers(1, 9))):
        parent = draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None
        tail = draw(st.lists(letters, max_size=2))
        if parent is None:
            prompt = [draw(letters), *tail]
        else:
            p = turns[parent]
            seen = p.prompt_ids + p.completion_ids
            if draw(st.integers(0, 3)) == 0:  # rewritten: cut somewhere, or changed
                seen = seen[: draw(st.integers(1, len(seen)))]
            prompt = seen + tail
        completion = draw(st.lists(letters, max_size=3))
        trainable = draw(st.booleans())
        logprobs = [-float(i + 1) - t / 10 for t in range(len(completion))]
        turns.append(Turn(prompt, completion, logprobs, parent, trainable=trainable, advantage=float(i) + 1))
    return episode(turns)


def continues(turn, turns):
    """Whether the turn's prompt extends its parent exactly, written independently of the code under test."""
    if turn.parent is None:
        return False
    seen = turns[turn.parent].prompt_ids + turns[turn.parent].completion_ids
    return turn.prompt_ids[: len(seen)] == seen


def trained_below(i, turns):
    """Whether something that continues turn i is trained."""
    children = [j for j, t in enumerate(turns) if t.parent == i and continues(t, turns)]
    return any((turns[j].trainable and turns[j].completion_ids) or trained_below(j, turns) for j in children)


@settings(max_examples=400, deadline=None)
@given(forests(), st.sampled_from(["once", "every"]))
def test_every_trainable_token_is_trained_exactly_once_in_its_own_context(trajectory, shared):
    turns = trajectory.turns
    rows = compile_trajectory(trajectory, shared=shared)
    trained = {}
    for row in rows:
        weight = row.weights["policy"]
        assert weight.any() and set(weight.tolist()) <= {0.0, 1.0}
        for t in np.flatnonzero(weight):
            i = int(row.turn[t])
            turn = turns[i]
            at = int(t) - len(turn.prompt_ids)
            assert turn.trainable
            assert row.tokens[: t + 1].tolist() == turn.prompt_ids + turn.completion_ids[: at + 1]
            assert row.logprobs[t] == np.float32(turn.logprobs[at])
            assert row.advantage[t] == turn.advantage
            trained[i, at] = trained.get((i, at), 0) + 1
    wanted = {(i, at) for i, turn in enumerate(turns) if turn.trainable for at in range(turn.length)}
    assert set(trained) == wanted
    if shared == "once":
        assert set(trained.values()) <= {1}
    # No more rows than there are trained ends: rows are as long as the rule allows.
    ends = [i for i, t in enumerate(turns) if t.trainable and t.completion_ids and not trained_below(i, turns)]
    assert len(rows) == len(ends)


def test_speed_of_a_batch():
    """128 trajectories of 18 one-token turns, far below a millisecond each (measured: about 10 ms in all)."""
    support = np.arange(45)
    trajectories = []
    for _ in range(128):
        prompt, turns = list(range(10)), []
        for i in range(18):
            turns.append(Turn(list(prompt), [i], [-1.0], i - 1 if i else None, advantage=0.5, support=[support]))
            prompt += [i, 7, 9]
        trajectories.append(episode(turns))
    best = math.inf
    for _ in range(5):
        began = time.process_time()
        rows = compile_groups([Group(TASK, trajectories)])
        best = min(best, time.process_time() - began)
    assert len(rows) == 128 and all(row.weights["policy"].sum() == 18 for row in rows)
    assert best < 0.1
