"""Which steps of a long episode a model still sees.

The first visible step moves on only when the next reply might not fit any more, and then so far that half of the room
for history is free again. So most steps append to the last context, a sampler's prefix cache holds, and training rows
are few. The rule depends on nothing but the lengths so far: training and dreaming see the same windows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlready.types import Row


def starts(head: int, steps: Sequence[tuple[int, int]], most: int, room: int) -> list[int]:
    """The first visible step when each step is answered.

    Args:
        head: tokens that are always shown.
        steps: tokens of each step's action and reply; the last reply, which is to be written, counts for nothing.
        most: tokens that a reply may have.
        room: most tokens in all.

    Returns:
        One index per step; not descending, and at most the step itself.
    """
    out = []
    start = history = 0
    for t, (action, reply) in enumerate(steps):
        free = max(0, room - head - action - most)
        if history > free:
            while start < t and history > free // 2:
                history -= sum(steps[start])
                start += 1
        out.append(start)
        history += action + reply
    return out


def fit_in(ids: list[int], room: int) -> list[int]:
    """Ids whose middle is cut where there are more than `room`; a quarter of what is left is the beginning."""
    if len(ids) <= room:
        return ids
    first = room // 4
    return ids[:first] + ids[len(ids) - (room - first) :]


def last_of(row: Row, room: int) -> Row:
    """A training row without its first tokens where it has more than `room`."""
    if len(row) <= room:
        return row
    cut = len(row) - room
    weights = {stream: weight[cut:].copy() for stream, weight in row.weights.items()}
    for weight in weights.values():
        weight[:1] = 0.0
    return Row(row.tokens[cut:], weights, row.logprobs[cut:], row.advantage[cut:], row.temperature[cut:])
