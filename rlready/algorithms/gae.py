"""Generalised advantage estimation over the sampled tokens of a trajectory.

    delta_t = r_t + gamma V_next(t) - V_t,     A_t = delta_t + gamma lambda A_next(t),     R_t = A'_t + V_t

(Schulman et al., arXiv 1506.02438, eq. 11-16.) A' is A with a lambda of the critic's own where there is one (decoupled
GAE, VC-PPO, arXiv 2503.01491: an unbiased target for the critic, little variance for the policy). A step is one
*sampled* token. What the environment wrote between two turns is not an action, so `next` of a turn's last token is the
first sampled token of the turn that follows it.

**Which turn follows.** Along a parent chain, the child. Two cases need a rule:
- Rewritten context (a memory, a chunk, a stage): the turn has no parent, but the episode went on. It follows the
  trained turn before it in sampling order. If its prompt is that of an earlier fresh context, it is another branch from
  there, and follows what that one follows.
- A tree: several turns may follow one. V_next and A_next are then the means over them: each branch is a sample of what
  comes after, and their mean estimates its expectation.

**Rewards.** A turn's reward is paid at its last token. `Trajectory.reward` is the number that is trained on, so what it
has beyond the sum of the turns' rewards (a terminal score, or minus what the score does not count) is paid at the last
token of the trajectory's last trained turn. With gamma = 1 and one chain, R_0 at lambda = 1 is `Trajectory.reward`
exactly, whether the environment, the scorer or both gave it. `Turn.costs` are subtracted token by token (a KL penalty
in the reward), so that A carries a token's effect on the cost of later ones; the critic learns their return as well.

Left out, and why: a bootstrap value for truncated episodes. For an agent with a cap, being cut off is an outcome.

Turns that are not trainable or have no tokens are passed over; a child of theirs follows their nearest trained
ancestor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlready.types import Trajectory, Turn


def followers(turns: Sequence[Turn]) -> dict[int, list[int]]:
    """For every trained turn with tokens, the indices of those that follow it; each index is larger than its key."""
    before: dict[int, int | None] = {}
    roots: dict[tuple[int, ...], int | None] = {}
    latest: int | None = None
    for i, turn in enumerate(turns):
        if not (turn.trainable and turn.length):
            continue
        parent = turn.parent
        while parent is not None and parent not in before:
            parent = turns[parent].parent
        if parent is None:
            parent = roots.setdefault(tuple(turn.prompt_ids), latest)
        before[i] = parent
        latest = i
    out: dict[int, list[int]] = {i: [] for i in before}
    for i, j in before.items():
        if j is not None:
            out[j].append(i)
    return out


def assign_gae(
    trajectory: Trajectory,
    gamma: float,
    lam: float,
    lam_value: float | None = None,
    *,
    reward: float | None = None,
) -> None:
    """Write `advantage` and `returns`, one number per token, into every trained turn; `Turn.value` must be there.

    Args:
        trajectory: with values.
        gamma: discount per sampled token.
        lam: lambda of the advantages.
        lam_value: lambda of the returns; None: the same.
        reward: what is trained on; None: `Trajectory.reward`.

    Raises:
        ValueError: a trained turn has no values, or not one value or cost per token.
    """
    turns = trajectory.turns
    follow = followers(turns)
    if not follow:
        return
    last = max(follow)
    rest = (trajectory.reward if reward is None else reward) - sum(turns[i].reward for i in follow)
    lambdas = (lam, lam if lam_value is None else lam_value)
    heads: dict[int, tuple[float, float, float]] = {}  # value, and A and A' at a turn's first token
    for i in sorted(follow, reverse=True):
        turn = turns[i]
        if turn.value is None or len(turn.value) != turn.length:
            raise ValueError(f"Turn {i} has {len(turn.value or [])} values for {turn.length} tokens.")
        costs = turn.costs or [0.0] * turn.length
        if len(costs) != turn.length:
            raise ValueError(f"Turn {i} has {len(costs)} costs for {turn.length} tokens.")
        after = [heads[j] for j in follow[i]]
        value, a, b = (float(x) for x in np.mean(after, axis=0)) if after else (0.0, 0.0, 0.0)
        paid = turn.reward + (rest if i == last else 0.0)
        advantage, target = [0.0] * turn.length, [0.0] * turn.length
        for t in reversed(range(turn.length)):
            delta = paid - costs[t] + gamma * value - turn.value[t]
            a, b = delta + gamma * lambdas[0] * a, delta + gamma * lambdas[1] * b
            value, paid = turn.value[t], 0.0
            advantage[t], target[t] = a, b + value
        heads[i] = (turn.value[0], a, b)
        turn.advantage, turn.returns = advantage, target
