"""The telecom environment: a ticket, then actions and replies, until `done` or the step cap."""

from __future__ import annotations

from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError
from rlready.types import Message, Task
from rlready.worlds.tau2.actions import ACTIONS, CALLS, CLOSING
from rlready.worlds.tau2.mapper import UNKNOWN_ACTION
from rlready.worlds.tau2.simulator import Episode, simulator

CAP = 18
"""Default step cap; the look-then-fix script needs 13.8 steps on average."""


class Tau2Env(Env):
    """One episode with the real simulator behind the state mapper.

    The conversation is: user, the ticket's words; assistant, an action word; tool, the reply's status words; and so
    on. The closing action has no reply. It ends the episode with reward 1 where the task's own assertions on the end
    state hold, else 0. An episode that is not closed within `cap` steps is truncated with reward 0. A text that is no
    action costs a step and changes nothing. Nothing in the domain is random, so the seed does not matter.
    """

    def __init__(self, cap: int = CAP) -> None:
        """Nothing is loaded before `reset`, so the object can be sent to another process.

        Args:
            cap: most actions in an episode, the closing one included.
        """
        self.cap = cap
        self.steps = 0
        self.ended = False
        self.episode: Episode | None = None
        self._messages: tuple[Message, ...] = ()

    @property
    def ticket(self) -> str:
        """The ticket's words, which open the conversation; "" before `reset`."""
        return self._messages[0].text if self._messages else ""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task whose benchmark id is `task.data["tau2"]`.

        Raises:
            UserError: the task is none of this world's, or the benchmark is not installed.
        """
        self.episode = simulator().start(str(task.data.get("tau2", task.id)))
        self.steps, self.ended, self._messages = 0, False, task.prompt
        return self._look()

    async def step(self, action: str) -> Step:
        """Play one action word.

        `info["quirks"]` of a closing step names the oddities of the benchmark's check that a success rests on ("" where
        there are none).

        Raises:
            EnvError: there is no episode to continue, or a tool's reply cannot be read.
        """
        if self.episode is None or self.ended:
            raise EnvError("tau2 telecom: step was called without a running episode; call reset first.")
        action = action.strip()
        self.steps += 1
        self._messages += (Message("assistant", action),)
        if action == CLOSING:
            self.ended = True
            passed = self.episode.passed()
            return Step(self._look(), float(passed), terminated=True, info={"quirks": " ".join(self.episode.quirks())})
        reply = self.episode.act(action) if action in CALLS else UNKNOWN_ACTION
        self._messages += (Message("tool", reply),)
        self.ended = self.steps >= self.cap
        return Step(self._look(), truncated=self.ended)

    async def fork(self) -> Tau2Env:
        """A second environment in the same state.

        Raises:
            EnvError: there is no episode to fork.
        """
        if self.episode is None:
            raise EnvError("tau2 telecom: fork was called before reset.")
        other = Tau2Env(self.cap)
        other.steps, other.ended, other._messages = self.steps, self.ended, self._messages
        other.episode = self.episode.fork()
        return other

    async def close(self) -> None:
        """Drop the state."""
        self.episode = None

    def _look(self) -> Observation:
        return Observation(self._messages, actions=ACTIONS)
