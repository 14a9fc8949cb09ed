"""A dream whose simulator is a prompted language model: the roles' templates in place of a model of one's own.

For domains whose states are prose. States are whole texts (a list of elements, a page), the demonstrations are
retrieved as in `DreamEnv`, and the answer is read by the same strict reader that everything else uses.
"""

from __future__ import annotations

from collections.abc import Callable

from rlready.dream.endpoint import Writer
from rlready.dream.env import instruction_of
from rlready.dream.format import Unparsable
from rlready.dream.roles import Simulation, Template, read_simulation
from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError
from rlready.experience.retrieve import Retriever
from rlready.seeds import derive
from rlready.types import Message, Task

Refusal = Callable[[str, str], str | None]
"""Given state and action: why the state does not admit the action, or None."""


class PromptedDream(Env):
    """One episode simulated by a prompted language model.

    The first state is `Task.data["state"]`. An action that `refuse` objects to changes nothing and is answered in
    code. An answer that cannot be read is asked for once more; a second one voids the episode. Whether the same
    actions give the same episode rests on the writer (decode greedily); `checks.same_actions` tells.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        rules: str = "(none given)",
        retriever: Retriever | None = None,
        demos: int = 3,
        template: Template | None = None,
        refuse: Refusal = lambda state, action: None,
        cap: int = 30,
    ) -> None:
        """Bind an environment to a writer.

        Args:
            writer: the language model.
            rules: of the domain, in plain words.
            retriever: over recorded transitions, whose states are whole states.
            demos: how many of them to show.
            template: of the role "simulator"; the one that comes with rlready by default.
            refuse: checks an action against the present state in code.
            cap: most actions in an episode.
        """
        self.writer = writer
        self.rules = rules
        self.retriever = retriever
        self.demos = demos
        self.template = template or Template.load("simulator")
        self.refuse = refuse
        self.cap = cap
        self.ended = True

    async def reset(self, task: Task, seed: int) -> Observation:
        """Show the instruction and the first state.

        Raises:
            EnvError: the task brings no first state.
        """
        state = task.data.get("state")
        if not isinstance(state, str) or not state:
            raise EnvError(f'dream: task {task.id} has no first state in its data ("state").')
        self.task, self.state, self.ended = task, state, False
        self.instruction = instruction_of(task)
        self.past: list[tuple[str, str]] = []
        self.noise = derive("world", seed, task.id)
        self.messages: tuple[Message, ...] = (*task.prompt, Message.user(state))
        return Observation(self.messages)

    async def step(self, action: str) -> Step:
        """Play an action.

        Raises:
            EnvError: there is no episode to continue.
        """
        if self.ended:
            raise EnvError("dream: step was called without a running episode; call reset first.")
        action = action.strip()
        self.messages += (Message("assistant", action),)
        problem = self.refuse(self.state, action)
        if problem is not None:
            return self._after(action, problem, {"invalid": action})
        self.noise = derive(self.noise, action)
        try:
            said = await self._simulate(action)
        except Unparsable as error:
            self.ended = True
            return Step(
                Observation(self.messages),
                info={"failure": f"dream: the answer to {action!r} could not be read: {error}"},
            )
        self.noise = derive(self.noise, said.next_state)
        self.state = said.next_state
        step = self._after(action, said.next_state, {"think": said.think})
        if said.done:
            self.ended = True
            step.reward, step.terminated, step.truncated = float(said.reward), True, False
        return step

    async def _simulate(self, action: str) -> Simulation:
        prompt = self.template.render(
            rules=self.rules,
            demonstrations=self._shown(action),
            instruction=self.instruction,
            history="\n".join(f"{i}. action: {a}\n   then: {s}" for i, (a, s) in enumerate(self.past, 1))
            or "(nothing yet)",
            state=self.state,
            action=action,
        )
        try:
            return read_simulation(await self.writer.write(prompt, seed=self.noise))
        except Unparsable:
            return read_simulation(await self.writer.write(prompt, seed=derive("again", self.noise)))

    def _shown(self, action: str) -> str:
        if self.retriever is None:
            return "(none)"
        hits = self.retriever.topk(self.state, action, self.demos, task=self.task.id)
        return (
            "\n\n".join(f"state: {h.case.state}\naction: {h.case.action}\nnext: {h.case.reply}" for h in hits)
            or "(none)"
        )

    def _after(self, action: str, reply: str, info: dict[str, str]) -> Step:
        self.past.append((action, reply))
        self.messages += (Message("tool", reply),)
        self.ended = len(self.past) >= self.cap
        return Step(Observation(self.messages), truncated=self.ended, info=dict(info))
