"""What a fit measures of its gym: calibration on dev, figures beside baselines and the curve on test, the verdict.

Everything that a clock decides comes back apart from the figures, so that these are the same whenever they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlready.aio import run_sync
from rlready.dream.base import Simulator
from rlready.dream.domain import Domain
from rlready.dream.library import Library, Recorded
from rlready.dream.measure.open_loop import OpenLoop, compare, open_loop
from rlready.dream.simulators.baselines import NearestTransition, NoChange
from rlready.dream.simulators.confidence import Calibration
from rlready.dream.state import StateRules
from rlready.experience.episode import LoggedEpisode

if TYPE_CHECKING:
    from rlready.dreaming.fit import FitOptions
    from rlready.dreaming.understand import Understanding

Count = Callable[[int, int], None]
"""Called with (done, total)."""

_FEWEST = 20
"""Outcomes that a calibration needs (ours)."""
_GUESSED = ("nearest", "model")
"""Origins whose confidence is a guess; code and recordings are sure."""


@dataclass(frozen=True)
class Parts:
    """What answers in a gym."""

    domain: Domain
    state: StateRules
    library: Library
    simulator: Simulator

    @property
    def layers(self) -> tuple[Recorded, StateRules]:
        """Code that is asked before the simulator."""
        return (Recorded(self.library), self.state)


def calibrate(parts: Parts, dev: Sequence[LoggedEpisode], count: Count | None = None) -> Calibration | None:
    """What the simulator's confidences are worth: how often a reply of such a confidence equals the recorded one.

    Only replies that the simulator gives are asked about. None where there are fewer than 20 of them.
    """
    if not dev:
        return None
    found = run_sync(
        open_loop(
            dev, parts.domain, parts.state, parts.layers, parts.simulator, judge=False, examples=0, on_progress=count
        )
    )
    guesses = [r for r in found.results if r.said.origin in _GUESSED and r.said.confidence < 1.0]
    if len(guesses) < _FEWEST:
        return None
    return Calibration.fit([r.said.confidence for r in guesses], [r.exact for r in guesses])


def token_f1(library: Library, domain: Domain, simulator: Simulator, dev: Sequence[LoggedEpisode]) -> float:
    """Token F1 of held-out replies, mean over kinds of action."""
    parts = Parts(domain, library.state, library, simulator)
    found = run_sync(open_loop(dev, domain, parts.state, parts.layers, simulator, judge=False, examples=0))
    return found.f1.macro
