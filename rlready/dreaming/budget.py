"""Real transitions as a counted budget: what must be kept back for the last check, and what is free for the rest.

What the last check takes is known only when it is done, so its reservation is an estimate that is stated; it alone may
be exceeded, and the ledger says so. All else is bounded by what is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlready.errors import UserError


@dataclass
class RealBudget:
    """A ledger of real transitions.

    Attributes:
        total: what the user allows; None for no limit.
        reserved: kept back for the last check.
        spent: by purpose.
    """

    total: int | None
    reserved: int = 0
    spent: dict[str, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """Spent so far, whatever for."""
        return sum(self.spent.values())

    def free(self) -> float:
        """What may be spent now on anything but the last check."""
        return float("inf") if self.total is None else max(0, self.total - self.used - self.reserved)

    def reserve(self, transitions: int, what: str) -> None:
        """Keep transitions back.

        Raises:
            UserError: the budget cannot pay for it.
        """
        if self.total is not None and self.used + transitions > self.total:
            raise UserError(
                f"A real budget of {self.total} transitions does not pay for {what}, which may take {transitions}. "
                f"Give --real-budget {self.used + transitions} or more, or fewer held-out tasks."
            )
        self.reserved = transitions

    def keep(self, transitions: int) -> None:
        """Keep at least so much back from now on, as far as there is so much."""
        left = transitions if self.total is None else max(0, min(transitions, self.total - self.used))
        self.reserved = max(self.reserved, left)

    def spend(self, purpose: str, transitions: int, *, reserved: bool = False) -> None:
        """Count what was spent."""
        self.spent[purpose] = self.spent.get(purpose, 0) + transitions
        if reserved:
            self.reserved = max(0, self.reserved - transitions)

    def __str__(self) -> str:
        """In one line, for people."""
        parts = ", ".join(f"{n} {purpose}" for purpose, n in self.spent.items()) or "none"
        of = "" if self.total is None else f" of {self.total}"
        return f"{self.used}{of} real transitions ({parts})"

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        return {"reserved": self.reserved, "spent": dict(self.spent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.reserved, self.spent = int(state["reserved"]), dict(state["spent"])
