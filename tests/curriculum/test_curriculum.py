"""Samplers and gates: what is drawn, caps that hold, and state that resumes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.curriculum.gates import Gated, MinValid, ZeroSignal
from rlready.curriculum.samplers import Band, Mixed, Pool, Uniform, Variance, top_by_variance
from rlready.errors import UserError
from rlready.types import Group, Task, Trajectory, Verdict


def tasks(n, prefix="task"):
    return [Task.of(f"{prefix} {i}") for i in range(n)]


def group(task, rewards, failed=0):
    """A group with these rewards; a positive one is right."""
    good = [Trajectory(task, reward=r, verdict=Verdict.RIGHT if r > 0 else Verdict.WRONG) for r in rewards]
    return Group(task, good + [Trajectory(task, failure="died") for _ in range(failed)])


def drawn(sampler, n):
    return [sampler.next().id for _ in range(n)]


# Samplers


def test_uniform_draws_every_task_once_an_epoch_in_changing_order():
    every = tasks(7)
    ids = {t.id for t in every}
    run = drawn(Uniform(every, 3), 21)
    epochs = [run[i : i + 7] for i in (0, 7, 14)]
    assert all(set(e) == ids for e in epochs) and len({tuple(e) for e in epochs}) == 3
    assert run == drawn(Uniform(every, 3), 21) != drawn(Uniform(every, 4), 21)
    with pytest.raises(UserError, match="no tasks"):
        Uniform([])


def test_band_leaves_out_what_is_too_easy_or_too_hard():
    every = tasks(10)
    band = Band(every, 0.2, 0.8, seed=1, revisit=0.0)
    assert len(set(drawn(band, 10))) == 10  # untried tasks count as within
    rates = [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, None]
    for task, rate in zip(every, rates, strict=True):
        if rate is not None:
            band.observe([group(task, [1.0] * round(rate * 10) + [0.0] * (10 - round(rate * 10)))])
    inside = {every[i].id for i in (2, 3, 4, 5, 6, 9)}
    assert set(drawn(band, 60)) == inside
    assert band.metrics()["too_easy"] == 2 / 9 and band.metrics()["too_hard"] == 2 / 9
    open_band = Band(every, 0.2, 0.8, seed=1, revisit=0.5)
    open_band.load_state_dict(band.state_dict())
    seen = drawn(open_band, 400)
    assert 0.05 < sum(x not in inside for x in seen) / 400 < 0.35  # about half of draws, 4 of 10 tasks outside


def test_band_rate_is_running_and_ends_where_all_is_outside():
    every = tasks(3)
    band = Band(every, 0.4, 0.6, memory=0.5, revisit=0.0)
    for task in every:
        band.observe([group(task, [0.0, 0.0])])
    assert drawn(band, 3)  # no endless search
    band.observe([group(every[0], [1.0, 1.0])])  # (0 + 1) / 2 is within
    assert set(drawn(band, 6)) == {every[0].id}
    band.observe([group(every[0], [], failed=4), group(Task.of("of someone else"), [1.0])])
    assert set(drawn(band, 6)) == {every[0].id}


def test_variance_prefers_uncertain_tasks_in_proportion():
    every = tasks(5)
    sampler = Variance(every, 2, explore=0.2)
    sampler.observe([group(every[0], [0.0, 1.0]), group(every[1], [1.0, 0.0, 0.0, 0.0]), group(every[2], [1.0, 1.0])])
    run = drawn(sampler, 4000)
    share = [run.count(t.id) / 4000 for t in every]
    # V is 1/4 and 3/16, so of the 80% that follow it 4/7 and 3/7; the other 20% are uniform.
    for got, expected in zip(share, [0.8 * 4 / 7 + 0.04, 0.8 * 3 / 7 + 0.04, 0.04, 0.04, 0.04], strict=True):
        assert abs(got - expected) < 0.03
    assert [t.id for t in sampler.top(5)] == [every[0].id, every[1].id]
    assert sampler.top(1) == [every[0]]
    assert sampler.metrics()["uncertain"] == 2 / 3 and sampler.metrics()["variance"] == pytest.approx(
        (1 / 4 + 3 / 16) / 2
    )


def test_variance_explores_where_nothing_is_known_and_forgets_what_became_certain():
    every = tasks(4)
    sampler = Variance(every, 1, explore=0.01)
    assert len(set(drawn(sampler, 4))) == 4
    sampler.observe([group(every[0], [0.0, 1.0]), group(every[1], [1.0], failed=3)])
    assert [t.id for t in sampler.top(4)] == [every[0].id]  # one valid episode has no variance
    sampler.observe([group(every[0], [1.0, 1.0])])
    assert sampler.top(4) == []


def test_pool_draws_the_least_tried_and_drops_tasks_without_signal():
    made = tasks(4, "made")
    pool = Pool(size=3)
    assert pool.add(made[:2]) == 2 and pool.add(made[:2]) == 0
    assert drawn(pool, 5) == [made[0].id, made[1].id, made[0].id, made[1].id, made[0].id]
    pool.observe([group(made[0], [1.0, 1.0]), group(made[1], [0.0, 1.0])])
    assert len(pool) == 1 and pool.add([made[0]]) == 0  # a dropped task does not come back
    assert [(v, t.id) for v, t in pool.valued()] == [(0.25, made[1].id)]
    pool.add([*made[2:], Task.of("one more")])
    assert len(pool) == 3 and made[1].id not in drawn(pool, 9)  # the oldest went
    with pytest.raises(UserError, match="empty"):
        Pool().next()


@settings(max_examples=150, deadline=None)
@given(
    cap=st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0]) | st.floats(0, 1),
    batches=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=5),
    supply=st.integers(0, 3),
)
def test_the_mixing_cap_is_exact_in_every_batch(cap, batches, supply):
    """floor(cap * n) generated draws of n where the pool has tasks, none where it has not; refills are original."""
    made = {t.id for t in tasks(supply, "made")}
    pool = Pool()
    pool.add(tasks(supply, "made"))
    mixed = Mixed(Uniform(tasks(5), 1), pool, cap)
    for n, refills in batches:
        mixed.begin(n)
        run = drawn(mixed, n + refills)
        count = sum(x in made for x in run)
        assert count <= cap * n + 1e-6
        assert count == (int(cap * n + 1e-9) if supply else 0)
        assert not any(x in made for x in run[n:])


def test_mixed_without_begin_keeps_the_cap_in_blocks():
    pool = Pool()
    pool.add(tasks(2, "made"))
    made = {t.id for t in tasks(2, "made")}
    mixed = Mixed(Uniform(tasks(5), 1), pool, 0.3, batch=10)
    run = drawn(mixed, 40)
    assert [sum(x in made for x in run[i : i + 10]) for i in range(0, 40, 10)] == [3, 3, 3, 3]
    with pytest.raises(UserError, match="cap"):
        Mixed(Uniform(tasks(5), 1), pool, 1.5)


def test_seeds_of_new_tasks_come_from_both_sides():
    every, made = tasks(3), tasks(3, "made")
    pool = Pool()
    pool.add(made)
    mixed = Mixed(Variance(every), pool)
    mixed.observe(
        [
            group(every[0], [0.0, 0.0, 0.0, 1.0]),
            group(every[1], [1.0, 1.0]),
            group(made[0], [0.0, 1.0]),
            group(made[1], [0.0, 0.0]),
        ]
    )
    assert [t.id for t in mixed.top(9)] == [made[0].id, every[0].id]
    assert top_by_variance(1, mixed.original, pool) == [made[0]]
    with pytest.raises(UserError, match="Variance sampler"):
        Mixed(Uniform(every), pool).top(2)


# Gates


def test_zero_signal_tests_the_variance_not_the_mean():
    gate, task = ZeroSignal(), Task.of("x")
    assert gate.admit(group(task, [0.0, 1.0])) and gate.admit(group(task, [0.5, 0.6]))
    for same in ([0.0, 0.0], [1.0, 1.0], [0.5, 0.5, 0.5], [1.0], []):
        assert not gate.admit(group(task, same, failed=2))
    assert gate.metrics()["uniform_refused"] == 5


def test_zero_signal_has_a_bound_per_batch():
    gate, dull = ZeroSignal(refill=0.5), group(Task.of("x"), [1.0, 1.0])
    for _ in range(2):
        gate.begin(6)
        assert [gate.admit(dull) for _ in range(6)] == [False] * 3 + [True] * 3
        assert gate.metrics() == {"uniform_refused": 3.0, "uniform_passed": 3.0}
    with pytest.raises(UserError, match="at least 0"):
        ZeroSignal(-1)


def test_gates_compose_and_the_first_refusal_ends_the_question():
    zero = ZeroSignal(refill=9)
    gated = Gated(Uniform(tasks(3)), MinValid(3), zero)
    gated.begin(2)
    task = tasks(1)[0]
    assert gated.admit(group(task, [0.0, 1.0, 1.0]))
    assert not gated.admit(group(task, [0.0, 1.0], failed=6))
    assert not gated.admit(group(task, [1.0, 1.0], failed=6))
    assert not gated.admit(group(task, [1.0, 1.0, 1.0]))
    assert gated.metrics()["too_few_valid"] == 2 and gated.metrics()["uniform_refused"] == 1
    gated.begin(2)
    assert gated.metrics()["too_few_valid"] == 0 and gated.metrics()["uniform_refused"] == 0


def test_other_gates_cannot_take_the_state():
    saved = Gated(Uniform(tasks(3)), ZeroSignal()).state_dict()
    with pytest.raises(UserError, match=r"saved with the gates \['ZeroSignal'\]"):
        Gated(Uniform(tasks(3)), MinValid()).load_state_dict(saved)


# Resume


def make(name):
    """A fresh curriculum of each kind."""
    every, pool = tasks(9), Pool()
    pool.add(tasks(4, "made"))
    return {
        "uniform": lambda: Uniform(every, 5),
        "band": lambda: Band(every, seed=5, revisit=0.3),
        "variance": lambda: Variance(every, 5, explore=0.3),
        "mixed": lambda: Mixed(Variance(every, 5, explore=0.3), pool, 0.4),
        "gated": lambda: Gated(Mixed(Variance(every, 5), pool, 0.4), MinValid(2), ZeroSignal(1)),
    }[name]()


def step(curriculum, outcomes):
    """One batch as a collector does it; what was drawn and admitted."""
    if hasattr(curriculum, "begin"):
        curriculum.begin(len(outcomes))
    out = []
    for rewards in outcomes:
        task = curriculum.next()
        g = group(task, rewards)
        curriculum.observe([g])
        out.append((task.id, curriculum.admit(g)))
    return out


batch = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=4), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["uniform", "band", "variance", "mixed", "gated"])
@settings(max_examples=60, deadline=None)
@given(before=st.lists(batch, max_size=4), after=st.lists(batch, min_size=1, max_size=4))
def test_resumed_equals_uninterrupted(name, before, after):
    one, two, three = make(name), make(name), make(name)
    for outcomes in before:
        step(one, outcomes)
        step(two, outcomes)
    three.load_state_dict(json.loads(json.dumps(two.state_dict())))
    for outcomes in after:
        assert step(one, outcomes) == step(three, outcomes)
    assert one.state_dict() == three.state_dict() and one.metrics() == three.metrics()


def test_state_does_not_change_under_the_run_that_goes_on():
    for name in ("band", "variance", "mixed"):
        curriculum = make(name)
        step(curriculum, [[0.0, 1.0]] * 3)
        saved = curriculum.state_dict()
        before = json.dumps(saved)
        step(curriculum, [[0.0, 0.5]] * 5)
        assert json.dumps(saved) == before
