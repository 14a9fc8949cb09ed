"""A soft penalty on long answers: none up to a limit, then growing, then constant.

With limits `l_max` and `l_cache`, penalty p and an answer of n tokens (Magistral, arXiv 2506.10910; DAPO's "soft
overlong punishment", arXiv 2503.14476, eq. 13, which has p = 1):

    0                                     n <= l_max - l_cache
    -p (n - (l_max - l_cache)) / l_cache  l_max - l_cache < n <= l_max
    -p                                    l_max < n

The limits are in tokens. A sampler that stops at `l_max` never shows the last case: an answer that was cut off should
fail for its missing end, not for its length.
"""

from __future__ import annotations

import math

from rlready.errors import UserError
from rlready.scoring import RewardFn, declare
from rlready.types import Score, Task, Trajectory


def length_penalty(tokens: int, l_max: int, l_cache: int, penalty: float = 0.1) -> float:
    """The formula above: a number in [-penalty, 0].

    Args:
        tokens: length n of the answer.
        l_max: length from which the penalty is whole.
        l_cache: tokens below `l_max` within which it grows.
        penalty: p; 0.1 in Magistral.

    Raises:
        UserError: the limits or the penalty cannot work.
    """
    if not 0 < l_cache <= l_max:
        raise UserError(f"Length penalty: l_cache is {l_cache} and l_max {l_max}; it needs 0 < l_cache <= l_max.")
    if not 0 <= penalty < math.inf:
        raise UserError(f"Length penalty: penalty is {penalty}; it must be a finite number that is not negative.")
    over = min(max(tokens - (l_max - l_cache), 0), l_cache)
    return -penalty * (over / l_cache) if over else 0.0


def soft_length(l_max: int, l_cache: int, penalty: float = 0.1) -> RewardFn:
    """A reward that is the penalty of `length_penalty` on a trajectory's completion tokens, probes left out.

    It judges no answer, so its verdict says nothing: name another part as the `verdict` of `compose`.

    Returns:
        A reward with the parts `tokens` (the length) and `over` (1 where there is a penalty).

    Raises:
        UserError: the limits or the penalty cannot work.
    """
    length_penalty(0, l_max, l_cache, penalty)

    def soft_length(task: Task, trajectory: Trajectory) -> Score:
        n = sum(turn.length for turn in trajectory.turns if turn.tag != "probe")
        value = length_penalty(n, l_max, l_cache, penalty)
        return Score.right(value, tokens=float(n), over=float(value < 0))

    return declare(soft_length, name="soft_length")
