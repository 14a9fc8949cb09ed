"""The environment of a fictional world: a ticket, tools over the hidden tables, and an exact verifier.

The episode ends where the agent answers in plain words (`CLOSING` is usual) or at the step cap. It is rewarded with 1
where the tables are then, record by record, what the right resolution makes of them, and was closed in time; else 0.
"""

from __future__ import annotations

import copy
import functools
import pickle

from rlready.envs.base import Observation, Step
from rlready.envs.tools import SYSTEM, ToolEnv, Tools, read_tools
from rlready.errors import EnvError, UserError
from rlready.types import Task
from rlready.worlds.fiction.setting import Setting, Tables, Ticket


class FictionEnv(ToolEnv):
    """One episode. The tables are a function of the task, so the environment's seed changes nothing.

    Attributes:
        setting: the kind of world.
        tables: the present records; hidden from the agent.
        gold: what they are to be in the end.
    """

    def __init__(self, setting: Setting) -> None:
        """Nothing is built before `reset`."""
        super().__init__(self._open_tables, system=SYSTEM, max_turns=setting.cap, max_calls=setting.max_calls)
        self.setting = setting
        self.tables: Tables = {}
        self.gold: Tables = {}

    def _open_tables(self, task: Task, seed: int) -> Tools:
        try:
            ticket: Ticket = task.data["ticket"]
            packed = _packed(self.setting, int(task.data["tables"]))
            self.tables, self.gold = pickle.loads(packed), pickle.loads(packed)
            self.setting.settle(self.gold, ticket, self.setting.gold(self.gold, ticket))
        except (KeyError, TypeError, ValueError) as problem:
            raise UserError(
                f"Task {task.id} is no ticket of the fictional world {self.setting.name} ({problem!r}); take tasks "
                "from its splits."
            ) from None
        return self.setting.tools(self.tables)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Open the shop and pose the ticket.

        Raises:
            UserError: the task is none of this setting's.
        """
        seen = await super().reset(task, seed)
        return Observation(seen.messages, self.setting.actions)

    async def step(self, action: str) -> Step:
        """Execute calls, or close and judge. `info` holds the counts of `ToolEnv`, and `"right"` at the end.

        Raises:
            EnvError: the episode has not begun, or is over.
        """
        step = await super().step(action)
        if step.terminated or step.truncated:
            step.info["right"] = self.tables == self.gold
            step.reward = float(step.terminated and self.tables == self.gold)
        step.observation = Observation(step.observation.messages, self.setting.actions)
        return step

    async def fork(self) -> FictionEnv:
        """A second environment in the same state.

        Raises:
            EnvError: there is no episode to fork.
        """
        if not self._open:
            raise EnvError("fiction: fork was called on an episode that has not begun or is over.")
        other = FictionEnv(self.setting)
        other.tables, other.gold = copy.deepcopy(self.tables), self.gold
        other._tools = read_tools(self.setting.tools(other.tables))
        other._messages, other._turns, other._open = list(self._messages), self._turns, True
        other.counts = dict(self.counts)
        return other


@functools.lru_cache(maxsize=256)
def _packed(setting: Setting, seed: int) -> bytes:
    """Fresh tables, ready to be copied: a group asks for the same ones many times."""
    return pickle.dumps(setting.tables(seed))
