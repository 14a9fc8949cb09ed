"""From rewards to one number per trajectory.

With a group of G rewards r, their mean m and population deviation s:

    mean        r - m                                                   Dr. GRPO, arXiv 2503.20783
    loo         r - mean of the others  =  G / (G - 1) (r - m)          RLOO, arXiv 2402.14740
    std         (r - m) / s                                             GRPO, arXiv 2402.03300, sec. 4.1.2
    batch_std   (r - m) / deviation of r - m over the update            REINFORCE++-baseline, 2501.03262; 2508.08221
    maxrl       (r - m) / m, 0 where m is 0; needs r >= 0               MaxRL, arXiv 2602.02710
    ngrpo       as std, m and s with one reward `reward_cap` more       NGRPO, arXiv 2509.18851; all wrong: -1/sqrt(G)
    best        best reward less the second best, to the best; 0 else   pass@k with k = G, arXiv 2503.19595
    batch       r - mean of the update                                  REINFORCE (Williams 1992)
    running     r - running mean of earlier updates' means              likewise
    none        r                                                       likewise

The deviation includes the sample itself, which bounds what a lone success can earn: |A| <= sqrt(G - 1). Two spikes are
closed. A group without variance gets exactly 0, not rounding noise over epsilon; and a divisor is at least `std_floor`,
so that the jitter of a float reward is not blown up to advantages of 1. Statistics count trajectories, never turns, and
those of "batch", "batch_std" and "running" are of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rlready.errors import UserError
from rlready.types import Trajectory

Doubles = NDArray[np.float64]
Advantage = Literal["mean", "loo", "std", "batch_std", "maxrl", "ngrpo", "best", "batch", "running", "none"]


class Settings(Protocol):
    """What the rules read besides rewards; see `PolicyGradient`."""

    @property
    def std_floor(self) -> float:
        """Least divisor, in units of reward."""
        ...

    @property
    def reward_cap(self) -> float:
        """The virtual reward of "ngrpo"."""
        ...

    @property
    def decay(self) -> float:
        """Of the running mean."""
        ...

    @property
    def memory(self) -> dict[str, float]:
        """What "running" remembers between updates."""
        ...


Credit = Callable[[Sequence[Doubles], Settings], list[Doubles]]
"""Rewards [G] of every group of an update to advantages [G] of every group."""


def cut_off(trajectory: Trajectory) -> bool:
    """True where one of its trainable turns was stopped by the length cap."""
    return trajectory.cut_off


def centre(rewards: Sequence[float] | Doubles) -> Doubles:
    """Rewards less their mean, [G]; exactly 0 where they are all equal."""
    r = np.asarray(rewards, dtype=np.float64)
    return np.zeros_like(r) if not len(r) or r.max() == r.min() else r - r.mean()


def _mean(groups: Sequence[Doubles], _: Settings) -> list[Doubles]:
    return [centre(r) for r in groups]


def _loo(groups: Sequence[Doubles], _: Settings) -> list[Doubles]:
    return [centre(r) * (len(r) / max(1, len(r) - 1)) for r in groups]


def _std(groups: Sequence[Doubles], settings: Settings) -> list[Doubles]:
    return [gaps / max(float(gaps.std()) if len(gaps) else 0.0, settings.std_floor) for gaps in map(centre, groups)]


def _batch_std(groups: Sequence[Doubles], settings: Settings) -> list[Doubles]:
    centred = [centre(r) for r in groups]
    every = np.concatenate([np.zeros(0), *centred])
    divisor = max(float(every.std()) if len(every) else 0.0, settings.std_floor)
    return [gaps / divisor for gaps in centred]


def _maxrl(groups: Sequence[Doubles], _: Settings) -> list[Doubles]:
    for r in groups:
        if len(r) and r.min() < 0:
            raise UserError(
                f'advantage="maxrl" divides by the mean reward and needs rewards of 0 or more; one is {r.min():g}.'
            )
    return [gaps / r.mean() if len(r) and r.mean() > 0 else gaps for r, gaps in ((r, centre(r)) for r in groups)]


def _ngrpo(groups: Sequence[Doubles], settings: Settings) -> list[Doubles]:
    out = []
    for r in groups:
        if len(r) and r.max() > settings.reward_cap + 1e-9:
            raise UserError(
                f"A reward of {r.max():g} is above reward_cap={settings.reward_cap:g}, the best that "
                'advantage="ngrpo" compares with; set reward_cap to the largest reward there can be.'
            )
        gaps = centre(np.append(r, settings.reward_cap))
        out.append(gaps[:-1] / max(float(gaps.std()), settings.std_floor))
    return out


def _best(groups: Sequence[Doubles], _: Settings) -> list[Doubles]:
    out = []
    for r in groups:
        gaps = np.zeros_like(r)
        if len(r) > 1:
            second, first = np.sort(r)[-2:]
            gaps[int(r.argmax())] = first - second
        out.append(gaps)
    return out


def _batch(groups: Sequence[Doubles], _: Settings) -> list[Doubles]:
    every = centre(np.concatenate([np.zeros(0), *groups]))
    return np.split(every, np.cumsum([len(r) for r in groups])[:-1]) if groups else []


def _running(groups: Sequence[Doubles], settings: Settings) -> list[Doubles]:
    every = np.concatenate([np.zeros(0), *groups])
    if not len(every):
        return [*groups]
    mean = float(every.mean())
    before = settings.memory.get("mean", mean)
    settings.memory["mean"] = settings.decay * before + (1 - settings.decay) * mean
    return [r - before for r in groups]


def _none(groups: Sequence[Doubles], _: Settings) -> list[Doubles]:
    return [*groups]


WITHIN = ("mean", "loo", "std", "batch_std", "maxrl", "best")
"""Rules that compare the trajectories of a group; one alone gets 0. ("ngrpo" compares it with a virtual one.)"""
CREDITS: dict[str, Credit] = {
    "mean": _mean,
    "loo": _loo,
    "std": _std,
    "batch_std": _batch_std,
    "maxrl": _maxrl,
    "ngrpo": _ngrpo,
    "best": _best,
    "batch": _batch,
    "running": _running,
    "none": _none,
}
"""The rules by name."""
