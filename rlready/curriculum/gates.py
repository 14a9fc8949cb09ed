"""Which groups are worth an update. `Gated` puts gates behind any sampler; a group must pass all of them.

train on    Gated(Variance(tasks), MinValid(4), ZeroSignal(refill=2))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlready.curriculum.samplers import NO_VARIANCE
from rlready.errors import UserError
from rlready.rollout.base import Batched, Curriculum
from rlready.types import Group, Task


class Gate(Protocol):
    """One condition on groups."""

    def begin(self, groups: int) -> None:
        """A batch of so many groups begins."""
        ...

    def admit(self, group: Group) -> bool:
        """Whether the group may be trained on."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        ...


class ZeroSignal:
    """Refuses groups whose valid rewards are all alike: their advantages are 0, so they cost time and teach nothing.

    (Dynamic sampling in DAPO, arXiv 2503.14476. The test is on the variance: a filter on the mean misses groups that
    all earned the same partial reward.) After `refill * groups` refusals in a batch it lets the rest pass, so that a
    batch ends also where nothing has signal.
    """

    def __init__(self, refill: float = 2.0) -> None:
        """Set the bound: refusals per group of a batch.

        Raises:
            UserError: the bound is negative.
        """
        if refill < 0:
            raise UserError(f"ZeroSignal: refill is {refill}; it must be at least 0.")
        self.refill = refill
        self._left: int | None = None
        self._refused = 0
        self._passed = 0

    def begin(self, groups: int) -> None:
        """A batch of so many groups begins."""
        self._left = int(self.refill * groups + 1e-9)
        self._refused = self._passed = 0

    def admit(self, group: Group) -> bool:
        """Whether the rewards differ, or the bound is reached. Without `begin` there is no bound."""
        if group.variance > NO_VARIANCE:
            return True
        if self._left is not None and self._refused >= self._left:
            self._passed += 1
            return True
        self._refused += 1
        return False

    def metrics(self) -> dict[str, float]:
        """Uniform groups refused in this batch, and let pass."""
        return {"uniform_refused": float(self._refused), "uniform_passed": float(self._passed)}

    def state_dict(self) -> dict[str, Any]:
        """The position in the batch."""
        return {"left": self._left, "refused": self._refused, "passed": self._passed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._left, self._refused, self._passed = state["left"], int(state["refused"]), int(state["passed"])


class MinValid:
    """Refuses groups with too few valid episodes to compare (the others failed)."""

    def __init__(self, least: int = 2) -> None:
        """Set the smallest number of valid episodes.

        Raises:
            UserError: the number is below 1.
        """
        if least < 1:
            raise UserError(f"MinValid: least is {least}; it must be at least 1.")
        self.least = least
        self._refused = 0

    def begin(self, groups: int) -> None:
        """A batch begins."""
        self._refused = 0

    def admit(self, group: Group) -> bool:
        """Whether enough episodes are valid."""
        enough = len(group.valid) >= self.least
        self._refused += not enough
        return enough

    def metrics(self) -> dict[str, float]:
        """Groups refused in this batch."""
        return {"too_few_valid": float(self._refused)}

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"refused": self._refused}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._refused = int(state["refused"])


class Gated:
    """A curriculum behind gates; itself a curriculum."""

    def __init__(self, curriculum: Curriculum, *gates: Gate) -> None:
        self.curriculum = curriculum
        self.gates = gates

    def begin(self, groups: int) -> None:
        """A batch of so many groups begins."""
        for part in (self.curriculum, *self.gates):
            if isinstance(part, Batched):
                part.begin(groups)

    def next(self) -> Task:
        """The next task."""
        return self.curriculum.next()

    def observe(self, groups: Sequence[Group]) -> None:
        """The curriculum learns from all groups, refused ones included."""
        self.curriculum.observe(groups)

    def admit(self, group: Group) -> bool:
        """Whether the curriculum and all gates admit it; the first refusal ends the question."""
        return self.curriculum.admit(group) and all(gate.admit(group) for gate in self.gates)

    def metrics(self) -> dict[str, float]:
        """Of the curriculum and all gates."""
        out = self.curriculum.metrics()
        for gate in self.gates:
            out = out | gate.metrics()
        return out

    def state_dict(self) -> dict[str, Any]:
        """Of the curriculum and all gates."""
        return {
            "curriculum": self.curriculum.state_dict(),
            "gates": [[type(gate).__name__, gate.state_dict()] for gate in self.gates],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`.

        Raises:
            UserError: the state is of other gates.
        """
        names = [type(gate).__name__ for gate in self.gates]
        saved = [name for name, _ in state["gates"]]
        if names != saved:
            raise UserError(f"This run was saved with the gates {saved}, but now has {names}. Use the same to resume.")
        self.curriculum.load_state_dict(state["curriculum"])
        for gate, (_, inner) in zip(self.gates, state["gates"], strict=True):
            gate.load_state_dict(inner)
