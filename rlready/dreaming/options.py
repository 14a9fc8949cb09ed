"""How a gym is made from logs."""

from __future__ import annotations

from dataclasses import dataclass

from rlready.dream.gym import REWARD_SOURCES
from rlready.dream.perturb import Perturb
from rlready.dreaming.simulating import check
from rlready.errors import UserError, did_you_mean


@dataclass(frozen=True)
class FitOptions:
    """How a gym is made.

    Attributes:
        simulator: "retrieval" (no training), "tiny", "hf:NAME", "http://...#MODEL", or "auto".
        rewards: a file of `id, reward`; "" for the log's own.
        verifier: name of the function that scores runs and dreams, such as "my.py:score"; "" for none.
        reward_source: who says whether a dream succeeded; "" chooses (see `choose_reward_source`).
        random_sources: sources in the log that are random play.
        perturb: trouble on purpose, such as "error=0.05".
        templates: folder of prompt templates of one's own, for language models; "" for ours.
        held_out: share of the tasks that nothing is learned from; half calibrates, half measures.
        min_confidence: replies below end or mask an episode; 0 never.
        low_confidence: "mask" or "end".
        setup_seconds, step_seconds: what the real environment takes; None reads the log's times.
        steps: training steps of a simulator that is trained; 0 chooses by the amount of text.
        curve: whether to measure the curve over numbers of traces.
    """

    simulator: str = "retrieval"
    rewards: str = ""
    verifier: str = ""
    reward_source: str = ""
    random_sources: tuple[str, ...] = ()
    perturb: tuple[str, ...] = ()
    templates: str = ""
    held_out: float = 0.2
    min_confidence: float = 0.0
    low_confidence: str = "mask"
    setup_seconds: float | None = None
    step_seconds: float | None = None
    steps: int = 0
    curve: bool = True

    def __post_init__(self) -> None:
        """Check what cannot work, before hours are spent.

        Raises:
            UserError: a value is out of range or unknown; names the option.
        """
        check(self.simulator)
        for text in self.perturb:
            Perturb.parse(text)
        if self.reward_source and self.reward_source not in REWARD_SOURCES:
            raise did_you_mean("reward source", self.reward_source, REWARD_SOURCES)
        if self.reward_source == "verifier" and not self.verifier:
            raise UserError('The reward source "verifier" needs a verifier: --verifier my.py:score.')
        if not 0 <= self.held_out < 1:
            raise UserError(f"held_out is {self.held_out:g}; it is a share of the tasks, at least 0 and below 1.")
        if not 0 <= self.min_confidence <= 1:
            raise UserError(f"min_confidence is {self.min_confidence:g}; it must lie in [0, 1].")
        if self.low_confidence not in ("mask", "end"):
            raise did_you_mean("way with low confidence", self.low_confidence, ("mask", "end"))
        for name in ("setup_seconds", "step_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"{name} is {value:g}; it must not be negative.")
        if self.steps < 0:
            raise UserError(f"steps is {self.steps}; it must not be negative.")
