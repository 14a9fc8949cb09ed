"""Playing for logs and cloning them: what is counted, what a resumed run reads back, and that cloning learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlready.algorithms import nll
from rlready.envs.base import Env
from rlready.recipes.logs import Logs, clone, play_logs
from rlready.rollout.actors import PolicyActor, ScriptActor
from rlready.run import Run
from rlready.types import Row
from tests.recipes.say_digit import TASKS, SayDigit, right, tiny, wrong
from tests.same_run import lines_of


def opened(root: Path, resume: str | None = None) -> Run:
    return Run.create("logs", seed=2, root=root, progress="quiet", resume=resume)


def limits(row: Row) -> list[list[int] | None]:
    """The ids that were open for each token; None for all."""
    return [] if row.support_of is None else [row.supports[i].tolist() if i >= 0 else None for i in row.support_of]


def same_rows(a: list[Row], b: list[Row]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.tokens, y.tokens)
        np.testing.assert_array_equal(x.weights["nll"], y.weights["nll"])
        np.testing.assert_array_equal(x.temperature, y.temperature)
        assert limits(x) == limits(y)


def test_episodes_are_played_counted_labelled_and_read_back(tmp_path: Path) -> None:
    policy = tiny()
    with opened(tmp_path) as run:
        logs = play_logs(run, "own", TASKS, SayDigit, PolicyActor(policy, seed=2), 40, source="agent")
        assert run.spent("logs") == logs.transitions == 80 and run.spent("real") == 0
    assert len(logs) == 40 and {e.source for e in logs.episodes} == {"agent"}
    assert 0 < logs.success < 1 and logs.successes.success == 1 and len(logs.successes) == round(40 * logs.success)
    assert any(row.support_of is not None for row in logs.rows)  # answers were limited, and cloning must know

    def no_more() -> Env:
        raise AssertionError("played again")

    with opened(tmp_path, "logs-1") as run:
        again = play_logs(run, "own", TASKS, no_more, PolicyActor(policy, seed=2), 40, source="agent")
        assert run.spent("logs") == 80
    assert again.episodes == logs.episodes
    same_rows(again.rows, logs.rows)
    assert nll(policy, again.rows) == nll(policy, logs.rows)


def test_another_stage_meets_other_worlds(tmp_path: Path) -> None:
    actor = ScriptActor(right, tiny().renderer, closing="0")
    with opened(tmp_path) as run:
        seeds = [
            {e.seed for e in play_logs(run, name, TASKS, SayDigit, actor, 12, source="x").episodes} for name in "ab"
        ]
    assert len(seeds[0] | seeds[1]) == 24


def test_no_logs_are_no_trouble(tmp_path: Path) -> None:
    Logs([], []).save(tmp_path)
    empty = Logs.load(tmp_path)
    assert len(empty) == 0 and empty.success == 0 and empty.rows == []


def test_cloning_learns_what_the_successes_show_and_logs_it(tmp_path: Path) -> None:
    policy = tiny()
    actor = ScriptActor({"right": right, "wrong": wrong}, policy.renderer, closing="0", seed=1)
    with opened(tmp_path) as run:
        logs = play_logs(run, "shown", TASKS, SayDigit, actor, 60, source="script")
        assert 0.3 < logs.success < 0.7
        with run.stage("cloning"):
            clone(run, policy, logs.successes.rows, epochs=12, batch_tokens=120, label="clone")
        played = play_logs(run, "after", TASKS, SayDigit, PolicyActor(policy, seed=2), 60, source="agent")
    assert played.success > 0.9
    losses = [m["loss/nll"] for m in lines_of(run.dir, "metrics.jsonl")]
    assert 20 <= len(losses) <= 100 and losses[-1] < 0.2 * losses[0]


def test_cloning_nothing_is_said(tmp_path: Path) -> None:
    with opened(tmp_path) as run, pytest.raises(Exception, match="none of the 0 rows"):
        clone(run, tiny(), [], epochs=1, batch_tokens=100, label="clone")
