"""The seams of a dream made from any agent's logs.

An episode is a list of *actions* and *replies*. A dream answers an action by asking its *layers* in turn; the first
that knows the answer gives it:

    checks       the action is malformed, unknown or not admissible: the recorded kind of error          (code)
    recordings   an episode that was recorded with exactly these actions, in this world: its reply       (replay)
    state        what the typed state says: looked up, computed, repeated                                (code)
    simulator    retrieval, a small transformer, a language model: one string names it                   (model)

What a layer is shown is a `Moment`: the world, what happened, nothing else. So a reply is a function of (world,
history, action). The *world* is what is hidden; it is drawn once from (task, seed), so a group that shares both shares
it. A question about the world itself (a reading tool called before anything was changed) is asked with an empty
history, so that every member of the group hears the same answer, whatever it did before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from rlready.seeds import derive

if TYPE_CHECKING:
    from rlready.dream.library import Library

Origin = Literal["check", "state", "recorded", "nearest", "model", "perturbed"]


@dataclass(frozen=True, slots=True)
class Action:
    """What an agent did, as the one parser (`Domain.parse`) reads it.

    Attributes:
        text: the canonical text: a tool call with sorted keys (`domain.call_text`), or the words themselves.
        tool: the tool's name; "" for plain words.
        arguments: of the call; None for plain words and for a malformed call.
        problem: why a call is malformed, as a sentence; "" otherwise.
    """

    text: str
    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    problem: str = ""

    @property
    def kind(self) -> str:
        """The tool's name, or "say" for plain words: what shares and accuracies are reported by."""
        return self.tool or "say"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        text: what the agent is shown; "" where the episode ended without a word.
        failed: whether it is an error message.
        done: whether the episode ends here.
        reward: of this step, where the simulator states rewards by step (logs of transitions); None otherwise.
        origin: which layer answered.
        confidence: in [0, 1], how likely the reply is right; calibrated once `fit` has measured it, raw before.
        note: reasoning, or the recording it was taken from; for people.
    """

    text: str
    failed: bool = False
    done: bool = False
    reward: float | None = None
    origin: Origin = "model"
    confidence: float = 1.0
    note: str = ""


def changes(action: Action, reply: Reply, reads: Collection[str]) -> bool:
    """Whether a step may have changed the world: a call of a tool that does not only read, and that did not fail.

    Words change nothing.
    """
    return bool(action.tool) and action.tool not in reads and not reply.failed


State = Mapping[str, Any]
"""The typed state: a JSON document. It is replaced, never changed in place, so moments can be kept and forked."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An episode just before an action: all that a reply may depend on.

    Attributes:
        task_id: whose episode it is.
        instruction: what the agent was asked.
        world: number of the hidden world, hashed from (task, seed).
        past: the (action, reply) pairs so far.
        state: the typed state after them.
        facts: (action, reply) pairs that were asked of the world itself, in the order of asking; for the judge.
        anchor: id of the recording whose hidden world this is ("" where the world is imagined).
    """

    task_id: str
    instruction: str
    world: int
    past: tuple[tuple[Action, Reply], ...] = ()
    state: State = field(default_factory=dict)
    facts: tuple[tuple[Action, Reply], ...] = ()
    anchor: str = ""

    def noise(self, *parts: str | int) -> int:
        """A seed hashed from the world, all that happened in it, and `parts`."""
        return derive(self.world, tuple((a.text, r.text) for a, r in self.past), *parts)


class Simulator(Protocol):
    """Stands in for the environment where code does not know the answer. Concurrent calls may be batched."""

    @property
    def name(self) -> str:
        """As a user writes it: "retrieval", "tiny", "hf:NAME", "http://...#MODEL"."""
        ...

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """Answer an admissible action.

        Raises:
            Unparsable: what the model wrote could not be read, twice.
        """
        ...

    async def judge(self, moment: Moment) -> float:
        """Probability that the finished episode achieved its task.

        Raises:
            Unparsable: what the model wrote could not be read, twice.
        """
        ...

    def release(self, world: int) -> None:
        """Forget what is cached for a world."""
        ...


@runtime_checkable
class Learns(Protocol):
    """A simulator that can learn from further recordings while an agent is trained in it."""

    async def learn(self, library: Library, ids: Sequence[str], *, seed: int) -> dict[str, float]:
        """Take in a grown library.

        Args:
            library: with the further recordings.
            ids: theirs.
            seed: of whatever is random in it.

        Returns:
            Numbers to log.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `learn` changed, so that a resumed run goes on from it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], library: Library) -> None:
        """Inverse of `state_dict`, with the grown library."""
        ...


class Layer(Protocol):
    """Code that may know the answer before any model is asked."""

    def reply(self, moment: Moment, action: Action) -> Reply | None:
        """The answer, or None where this layer does not know it."""
        ...


def first_reply(layers: Sequence[Layer], moment: Moment, action: Action) -> Reply | None:
    """The first layer's answer that there is."""
    for layer in layers:
        found = layer.reply(moment, action)
        if found is not None:
            return found
    return None
