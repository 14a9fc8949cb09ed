"""A logged episode in words: what was asked, what was done, what came back, and whether it worked.

This is the form in which experience is stored, annotated and turned into an experience model's training data. It holds
nothing but what a log shows. Trajectories of our own collector become one by `from_trajectory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlready.types import Message, Trajectory, Turn

_OPTIONAL: dict[str, Any] = {"judged": True, "reward": None, "rewards": (), "errors": ()}


@dataclass(frozen=True)
class LoggedEpisode:
    """One episode of a text environment.

    Attributes:
        task_id: the task's id; a label for bookkeeping, not a source of facts.
        instruction: what the agent was asked, as the first observation showed it.
        actions: the actions in order, as text.
        replies: one per action; "" for the closing one.
        success: whether the episode was judged a success.
        finished: whether the agent closed the episode (rather than a step cap).
        source: who acted ("agent", "random", "synthetic", ...).
        version: policy version that acted.
        seed: the episode's environment seed.
        judged: False where nobody said whether it worked; `success` then means nothing.
        reward: the reward as logged; None where only the success is known.
        rewards: one per action where the log has them, else empty.
        errors: indices of the actions that were answered by an error, as far as the log marks them.

    Raises:
        ValueError: there are not as many replies as actions.
    """

    task_id: str
    instruction: str
    actions: tuple[str, ...]
    replies: tuple[str, ...]
    success: bool
    finished: bool
    source: str = "agent"
    version: int = 0
    seed: int = 0
    judged: bool = True
    reward: float | None = None
    rewards: tuple[float, ...] = ()
    errors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Take lists too (JSON has no tuples), and check the lengths."""
        for name in ("actions", "replies", "rewards", "errors"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.actions) != len(self.replies):
            raise ValueError(
                f"episode of task {self.task_id}: {len(self.actions)} actions but {len(self.replies)} replies."
            )

    def __len__(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping; what only some logs have is left out where it has its default."""
        record = asdict(self)
        for name, default in _OPTIONAL.items():
            if record[name] == default:
                del record[name]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> LoggedEpisode:
        """Inverse of `to_json`."""
        return cls(**record)


def from_trajectory(trajectory: Trajectory, *, source: str = "agent") -> LoggedEpisode:
    """Read a trajectory as a log.

    The reply to an action is what the *next* turn saw anew (`Turn.context`, assistant messages left out); the reply
    to the last action, which no turn saw, is `trajectory.info["last_reply"]`, "" where absent.

    Args:
        trajectory: its turns form one chain; untrainable side turns (probes) beside the chain are skipped.
        source: who acted.

    Raises:
        ValueError: the trajectory has no turns, or its turns are not one chain.
    """
    chain = _chain(trajectory)
    replies = [_seen(turn) for turn in chain[1:]] + [str(trajectory.info.get("last_reply", ""))]
    version = chain[-1].version
    return LoggedEpisode(
        task_id=trajectory.task.id,
        instruction=_seen(chain[0]) or _text(trajectory.task.prompt),
        actions=tuple(turn.text.strip() for turn in chain),
        replies=tuple(replies),
        success=trajectory.success,
        finished=not trajectory.truncated and trajectory.failure is None,
        source=source,
        version=version if isinstance(version, int) else version[-1],
        seed=trajectory.seed,
    )


def _chain(trajectory: Trajectory) -> list[Turn]:
    """The trainable turns, checked to be one chain from the first to the last."""
    chain: list[Turn] = []
    last: int | None = None
    for index, turn in enumerate(trajectory.turns):
        if not turn.trainable:
            continue
        if turn.parent != last:
            raise ValueError(
                f"trajectory of task {trajectory.task.id}: turn {index} continues turn {turn.parent}, not {last}; "
                "only a single chain of turns can be read as a log."
            )
        chain.append(turn)
        last = index
    if not chain:
        raise ValueError(f"trajectory of task {trajectory.task.id} has no turns to read.")
    return chain


def _seen(turn: Turn) -> str:
    return _text(turn.context)


def _text(messages: tuple[Message, ...]) -> str:
    """What was said to the agent: its own and system messages left out."""
    return "\n".join(m.text for m in messages if m.role not in ("assistant", "system"))
