"""Rules that halt a training loop before it ruins a policy.

A rule is any callable from a step's metrics to a reason, or None. `train` asks every rule after every update. A rule
with `state_dict` is checkpointed, so that a resumed run halts where an uninterrupted one would. The thresholds are
numbers of ours. A metric that a step does not have is no reason to halt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

StopRule = Callable[[Mapping[str, float]], str | None]


@dataclass
class KLJump:
    """One update moved the policy too far: `metric` (nats per token) is above `limit`."""

    limit: float = 0.5
    metric: str = "update/kl/behaviour"

    def __call__(self, metrics: Mapping[str, float]) -> str | None:
        """The reason, or None."""
        kl = metrics.get(self.metric, 0.0)
        return f"{self.metric} is {kl:.3g}, above {self.limit:g}: the update left the data" if kl > self.limit else None


@dataclass
class _Patient:
    """A rule that fires once its condition held for `patience` steps in a row."""

    patience: int = 3
    _bad: int = field(default=0, init=False)

    def _held(self, bad: bool) -> bool:
        self._bad = self._bad + 1 if bad else 0
        return self._bad >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers."""
        return {"bad": self._bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._bad = int(state["bad"])


@dataclass
class EntropyFall(_Patient):
    """The policy stopped exploring: entropy stayed below `share` of its first value."""

    share: float = 0.02
    metric: str = "update/entropy"
    _first: float | None = field(default=None, init=False)

    def __call__(self, metrics: Mapping[str, float]) -> str | None:
        """The reason, or None."""
        entropy = metrics.get(self.metric)
        if entropy is None:
            return None
        self._first = entropy if self._first is None else self._first
        if not self._held(entropy < self.share * self._first):
            return None
        return f"{self.metric} fell from {self._first:.3g} to {entropy:.3g}, below {self.share:.0%} of its start"

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers."""
        return super().state_dict() | {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self._first = state["first"]


@dataclass
class NoAction(_Patient):
    """Episodes end without the agent doing anything: fewer than `least` environment steps each, on average.

    With `least` 1.5 it also catches a tool agent that only ever answers and calls no tool.
    """

    least: float = 0.5

    def __call__(self, metrics: Mapping[str, float]) -> str | None:
        """The reason, or None."""
        episodes = metrics.get("episodes", 0.0)
        if not episodes:
            return None
        each = metrics.get("env_steps", 0.0) / episodes
        if not self._held(each < self.least):
            return None
        return f"episodes have {each:.2g} environment steps on average, fewer than {self.least:g}"


@dataclass
class RewardFall(_Patient):
    """A number that should rise has collapsed: it stayed below `share` of the best it had reached.

    With `metric="dream/agreement"` and the like it watches any number a run logs.
    """

    share: float = 0.5
    metric: str = "reward"
    _best: float = field(default=0.0, init=False)

    def __call__(self, metrics: Mapping[str, float]) -> str | None:
        """The reason, or None."""
        value = metrics.get(self.metric)
        if value is None:
            return None
        self._best = max(self._best, value)
        if not self._held(value < self.share * self._best):
            return None
        return f"{self.metric} fell from {self._best:.3g} to {value:.3g}, below {self.share:.0%} of its best"

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers."""
        return super().state_dict() | {"best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self._best = float(state["best"])
