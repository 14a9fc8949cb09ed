"""Reward functions in every accepted form; the adapter itself is `rlready.scoring`, which rewards use as well."""

from __future__ import annotations

from rlready.scoring import RewardFn, Scorer, answer_text, as_scorer, columns_of

__all__ = ["RewardFn", "Scorer", "answer_text", "as_scorer", "columns_of"]
