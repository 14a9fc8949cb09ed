"""What training in a gym came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlready.dream.gate import GateReport
from rlready.evaluate import Evaluation, Paired

NOT_CHECKED = "not checked in a real environment"


@dataclass
class Sampled:
    """The real checks once more, sampled at the temperature of training. RL that only sharpens shows here alone."""

    temperature: float
    clone: Evaluation
    trained: Evaluation | None = None
    difference: Paired | None = None


@dataclass
class Outcome:
    """What `train_in_dream` found.

    Attributes:
        gate: what the gate said.
        forced: checks that failed and were overridden.
        clone, trained: evaluations on the held-out set of the real environment, greedy; None where it was not asked.
        sampled: the same, sampled.
        dream: success of clone and trained agent in the dream, on held-out tasks where the reward source can judge
            such; never a result.
        difference: the paired difference trained - clone; None where reality was not asked.
        halted: why training halted early, or None.
        skipped: why there was no RL at all, or None.
        budget: what was spent.
    """

    gate: GateReport
    forced: list[str]
    clone: Evaluation | None = None
    trained: Evaluation | None = None
    sampled: Sampled | None = None
    dream: dict[str, float] = field(default_factory=dict)
    difference: Paired | None = None
    halted: str | None = None
    skipped: str | None = None
    budget: str = ""

    @property
    def last_line(self) -> str:
        """The result in one line: the real, paired difference, or that there is none."""
        if self.clone is not None and self.difference is None:
            return f"Result, real: filtered cloning {self.clone}. There was no RL to compare with."
        if self.difference is None:
            return f"Result: {NOT_CHECKED}."
        found = f"Result, real and paired, dream RL against filtered cloning: greedy {self.difference}"
        if self.sampled is None or self.sampled.difference is None:
            return f"{found}."
        return f"{found}; sampled at temperature {self.sampled.temperature:g} {self.sampled.difference}."
