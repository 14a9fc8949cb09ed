"""Single turn: the task's prompt, one answer, done. The task set scores the answer."""

from __future__ import annotations

from collections.abc import Sequence

from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError
from rlready.types import Message, Task


class ChatEnv(Env):
    """One question, one answer.

    Rewards are 0: a task set for chat needs a score of its own.
    """

    def __init__(self, system: str | None = None, choices: str | Sequence[str] | None = None) -> None:
        """Make an environment for one episode.

        Args:
            system: a system message to put before the prompt.
            choices: admissible answers, to which decoding is limited: the same for all tasks, or the key of `task.data`
                that holds each task's.
        """
        self.system = system
        self.choices = choices
        self._messages: tuple[Message, ...] = ()
        self._open = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Pose the task.

        Raises:
            EnvError: the task has no prompt, or no choices under the given key.
        """
        if not task.prompt:
            raise EnvError(f"task {task.id} has no prompt, so there is nothing to answer.")
        actions = self.choices
        if isinstance(actions, str):
            if not task.data.get(actions):
                raise EnvError(f'task {task.id} has no choices under "{actions}".')
            actions = [str(choice) for choice in task.data[actions]]
        head = () if self.system is None else (Message("system", self.system),)
        self._messages = (*head, *task.prompt)
        self._open = True
        return Observation(self._messages, actions)

    async def step(self, action: str) -> Step:
        """Take the answer and end.

        Raises:
            EnvError: the episode has not begun, or is over.
        """
        if not self._open:
            raise EnvError("step was called on an episode that has not begun or is over.")
        self._open = False
        self._messages = (*self._messages, Message("assistant", action))
        return Step(Observation(self._messages), terminated=True)

    async def fork(self) -> ChatEnv:
        """A second environment in the same state."""
        other = ChatEnv(self.system, self.choices)
        other._messages, other._open = self._messages, self._open
        return other
