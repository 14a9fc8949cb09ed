"""Which values the fields of `PolicyGradient` may have together; a field that no chosen rule reads is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlready.algorithms.base import AVERAGES
from rlready.algorithms.credit import CREDITS
from rlready.algorithms.mismatch import bounds
from rlready.errors import UserError

if TYPE_CHECKING:
    from rlready.algorithms.policy_gradient import PolicyGradient

CHOICES: dict[str, tuple[str, ...]] = {
    "advantage": tuple(CREDITS),
    "ratio": ("none", "token", "sequence", "geometric"),
    "trust": ("none", "clip", "cispo", "sapo", "tv"),
    "anchor": ("sampler", "start", "interpolated"),
    "mismatch": ("none", "truncate", "icepop", "sequence", "geometric"),
    "kl_estimator": ("k1", "k2", "k3"),
    "kl_in": ("loss", "reward"),
    "kl_gradient": ("exact", "naive"),
    "truncated": ("keep", "zero", "mask"),
}
NOT_NEGATIVE = (
    "clip_low", "clip_high", "behaviour", "mismatch_low", "mismatch_high", "veto", "opsm", "kl", "entropy", "observe",
    "imitate",
)  # fmt: skip
POSITIVE = ("std_floor", "cap", "tau_high", "tau_low", "delta", "kl_clamp")

Reads = Callable[["PolicyGradient"], bool]
READ_BY: dict[str, tuple[Reads, str]] = {
    "constant": (lambda a: "constant" in (a.average, a.kl_average), 'average="constant" or kl_average="constant"'),
    "reward_cap": (lambda a: a.advantage == "ngrpo", 'advantage="ngrpo"'),
    "std_floor": (lambda a: a.advantage in ("std", "batch_std", "ngrpo"), 'advantage="std", "batch_std" and "ngrpo"'),
    "decay": (lambda a: a.advantage == "running", 'advantage="running"'),
    "clip_low": (lambda a: a.trust == "clip", 'trust="clip"'),
    "clip_high": (lambda a: a.trust == "clip", 'trust="clip"'),
    "dual_clip": (
        lambda a: a.trust == "clip" and a.ratio != "geometric",
        'trust="clip" (not with ratio="geometric")',
    ),
    "cap": (lambda a: a.trust == "cispo", 'trust="cispo"'),
    "tau_high": (lambda a: a.trust == "sapo", 'trust="sapo"'),
    "tau_low": (lambda a: a.trust == "sapo", 'trust="sapo"'),
    "delta": (lambda a: a.trust == "tv", 'trust="tv"'),
    "anchor": (lambda a: a.ratio != "none" or a.mismatch != "none", "a ratio or a mismatch rule"),
    "mismatch_low": (lambda a: a.mismatch in ("icepop", "geometric"), 'mismatch="icepop" and "geometric"'),
    "mismatch_high": (lambda a: a.mismatch != "none", "a mismatch rule"),
    "kl_estimator": (lambda a: bool(a.kl) and (a.kl_in == "loss" or a.kl_estimator == "k1"), "kl above 0 in the loss"),
    "kl_in": (lambda a: bool(a.kl), "kl above 0"),
    "kl_gradient": (lambda a: bool(a.kl) and a.kl_in == "loss", "kl above 0 in the loss"),
    "kl_average": (lambda a: bool(a.kl) and a.kl_in == "loss", "kl above 0 in the loss"),
    "kl_clamp": (lambda a: bool(a.kl) and a.kl_in == "loss", "kl above 0 in the loss"),
}
"""For each field whether the rules read it, and what does."""


def check(rules: PolicyGradient, *, own_credit: bool) -> None:
    """Refuse values that cannot work.

    Args:
        rules: the algorithm.
        own_credit: whether its class has a `credit` of its own, which may read more: what `credit_reads` names, or,
            where it reads the field `advantage` as well, what it likes.

    Raises:
        UserError: the field, what is wrong, and what to do.
    """
    name = type(rules).__name__
    for key, values in CHOICES.items():
        if getattr(rules, key) not in values:
            raise UserError(f'{name}: {key}="{getattr(rules, key)}" is unknown; choose one of {", ".join(values)}.')
    for key in NOT_NEGATIVE:
        if (getattr(rules, key) or 0.0) < 0:
            raise UserError(f"{name}: {key}={getattr(rules, key)} must not be negative.")
    for key in POSITIVE:
        value = getattr(rules, key)
        if value is not None and value <= 0:
            raise UserError(f"{name}: {key}={value} must be positive.")
    if rules.dual_clip is not None and rules.dual_clip <= 1:
        raise UserError(f"{name}: dual_clip={rules.dual_clip} must be above 1 (3 is usual), or None.")
    if not 0 <= rules.decay < 1:
        raise UserError(f"{name}: decay={rules.decay} must be in [0, 1).")
    if rules.kl_average is not None and rules.kl_average not in AVERAGES:
        raise UserError(f'{name}: kl_average="{rules.kl_average}" is unknown; choose one of {", ".join(AVERAGES)}.')
    _together(rules, name)
    if not rules.reads_advantage:
        for key in ("advantage", "std_floor", "reward_cap", "decay"):
            if _changed(rules, key) and key not in rules.credit_reads:
                raise UserError(
                    f"{name} has a credit of its own, which does not read {key}; leave it at {_default(rules, key)!r}."
                )
    free = ("std_floor", "reward_cap") if own_credit else ()
    for key, (reads, what) in READ_BY.items():
        if _changed(rules, key) and not reads(rules) and key not in free:
            raise UserError(f"{name}: {key} is read by {what} only; leave it at {_default(rules, key)!r}.")


def _together(rules: PolicyGradient, name: str) -> None:
    """Pairs of rules that contradict each other."""
    if rules.ratio == "none" and rules.trust != "none":
        raise UserError(f'{name}: trust="{rules.trust}" bounds a ratio, and ratio is "none"; use ratio="token".')
    if rules.ratio == "geometric" and rules.trust not in ("none", "clip"):
        raise UserError(f'{name}: ratio="geometric" clips in its own way; use trust="clip", or another ratio.')
    if rules.trust == "tv" and (rules.ratio != "token" or rules.anchor != "sampler"):
        raise UserError(
            f'{name}: trust="tv" compares each token with its sampler; use ratio="token" and anchor="sampler".'
        )
    if rules.trust == "sapo" and rules.anchor != "sampler":
        raise UserError(f'{name}: trust="sapo" is not made for a decoupled ratio (AReaL); use anchor="sampler".')
    low, high = bounds(rules.mismatch, rules.mismatch_low, rules.mismatch_high)
    if low is not None and high is not None and low >= high:
        raise UserError(
            f'{name}: mismatch="{rules.mismatch}" keeps what is between mismatch_low={low:g} and '
            f"mismatch_high={high:g}, which is nothing; the lower bound must be below the upper one."
        )
    if rules.mismatch == "truncate" and rules.anchor == "sampler":
        raise UserError(
            f'{name}: mismatch="truncate" would weigh by pi_start / mu twice, as a ratio against the sampler holds it '
            'already; use anchor="start".'
        )


def _default(rules: PolicyGradient, key: str) -> Any:
    return type(rules).__dataclass_fields__[key].default


def _changed(rules: PolicyGradient, key: str) -> bool:
    return bool(getattr(rules, key) != _default(rules, key))
