"""What a log says of a run beside its conversation: id, task, reward, end, seed. Keys have many names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_IDS = ("id", "trajectory_id", "run_id", "rollout_id", "episode_id", "conversation_id", "session_id", "uuid")
_TASKS = ("task_id", "task.id", "instance_id", "problem_id", "example_id", "reference_example_id", "task", "task_name")
_TRIALS = ("trial", "trial_id", "attempt", "sample_index", "rollout")
_REWARDS = ("reward", "final_reward", "total_reward", "score", "return")
_SUCCESS = ("success", "resolved", "is_correct", "correct", "passed")
_PREFERRED = ("reward", "success", "task_success", "resolved", "correct", "correctness", "passed", "pass", "score")
_NESTED = ("metadata", "meta", "info", "extra", "reward_info", "about")
_ENDED = ("done", "finished", "completed", "terminated", "is_done")
_CUT = ("truncated", "timed_out")
_SAID = {
    "user_stop": True, "agent_stop": True, "stop": True, "completed": True, "max_steps": False,
    "too_many_errors": False, "max_turns": False, "length": False, "timeout": False, "truncated": False,
}  # fmt: skip
_KEPT = 200  # characters of a text that goes to a recording's meta

Notes = Counter[str]


@dataclass(slots=True)
class Facts:
    """Unset ones are "" or None.

    Attributes:
        scores: (name, value) pairs of evaluations, from which `reward` is chosen where the log has no plain one.
        meta: what else is short and worth keeping.
    """

    id: str = ""
    task: str = ""
    trial: str = ""
    reward: float | None = None
    success: bool | None = None
    done: bool | None = None
    seed: int = 0
    source: str = "agent"
    model: str = ""
    scores: list[tuple[str, float]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def read(self, said: Mapping[str, Any], notes: Notes, *, ids: bool = True, deep: bool = True) -> None:
        """Take from a mapping what is not set yet; nested mappings such as `metadata` come after it.

        Args:
            said: a record, or its metadata.
            notes: counts rewards that are no finite numbers.
            ids: whether its `id` is the run's.
            deep: whether to look into nested mappings.
        """
        if ids and not self.id:
            self.id = _first(said, _IDS)
        self.task = self.task or _first(said, _TASKS)
        self.trial = self.trial or _first(said, _TRIALS)
        if self.reward is None:
            for name in _REWARDS:
                if name in said and (found := number(said[name], notes)) is not None:
                    self.reward = found
                    break
        if self.success is None:
            self.success = next((said[k] for k in _SUCCESS if isinstance(said.get(k), bool)), None)
        if self.done is None:
            self.done = _ended(said)
        if not self.seed and type(said.get("seed")) is int:
            self.seed = said["seed"]
        if isinstance(said.get("source"), str) and self.source == "agent" and said["source"]:
            self.source = said["source"][:_KEPT]
        self.model = self.model or _first(said, ("model", "model_name"))
        if deep:
            for name in _NESTED:
                if isinstance(said.get(name), dict):
                    self.read(said[name], notes, ids=False, deep=False)

    def value(self, notes: Notes) -> float | None:
        """The reward: as logged, else the score that is named like one or is the only one, else success as 0 or 1."""
        if self.reward is not None:
            return self.reward
        if self.scores:
            named = {name.lower(): value for name, value in self.scores}
            for name in _PREFERRED:
                if name in named:
                    return named[name]
            if len(named) == 1:
                return next(iter(named.values()))
            notes["several scores, none of them named reward, success, correctness or score: none was used"] += 1
        return None if self.success is None else float(self.success)

    @property
    def about(self) -> dict[str, Any]:
        """For `Recording.meta`."""
        out = dict(self.meta)
        if self.trial:
            out["trial"] = self.trial
        if self.success is not None:
            out["success"] = self.success
        if self.scores:
            out["scores"] = dict(self.scores)
        return out


def number(value: Any, notes: Notes) -> float | None:
    """A finite number, a bool as 0 or 1, a number written as text; None for all else, NaN counted in the notes."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)):
        return None
    found = float(value)
    if not math.isfinite(found):
        notes["rewards that are not finite numbers (left out)"] += 1
        return None
    return found


def scores_of(rows: Any, notes: Notes) -> list[tuple[str, float]]:
    """(name, value) of rows such as {"name": "correct", "value": 1}; texts and flags as far as they are numbers."""
    out = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            inner = row["result"] if isinstance(row.get("result"), dict) else row
            value = next((inner[k] for k in ("value", "score", "avg") if inner.get(k) is not None), None)
            if (found := number(value, notes)) is not None:
                out.append((str(row.get("name") or row.get("key") or "score"), found))
    return out


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = said.get(name)
        if (type(value) is str and value) or type(value) is int:
            return str(value)[:_KEPT]
    return ""


def _ended(said: Mapping[str, Any]) -> bool | None:
    if any(said.get(k) is True for k in _CUT):
        return False
    found = next((said[k] for k in _ENDED if isinstance(said.get(k), bool)), None)
    if found is None:
        why = said.get("termination_reason")
        found = _SAID.get(why) if isinstance(why, str) else None
    return found
