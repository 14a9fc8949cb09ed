"""The dream as an environment: the same messages as the real one, with the experience model in its place.

`reset` draws the hidden start once from (instruction, seed), so a group that shares task and seed shares its world. A
step checks the action in code, retrieves similar recorded transitions, and lets the model reason and answer. The
noise of an answer is hashed from the world's seed and all that was done and said in it, so the same actions give the
same episode.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlready.dream.format import Unparsable, trace_at
from rlready.dream.memory import Notes
from rlready.dream.model import ExperienceModel
from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import SYNTHETIC
from rlready.seeds import derive
from rlready.types import Message, Task

CARD = "card"
"""Key of `Task.data` under which a task brings its own hidden start (generated tasks, the privileged upper bound)."""


def instruction_of(task: Task) -> str:
    """What the agent is asked, as a log of the task shows it."""
    return "\n".join(m.text for m in task.prompt if m.role not in ("assistant", "system"))


class DreamEnv(Env):
    """One dreamt episode.

    The reward is 1 at the end of an episode that the model judges right, else 0. A text that is no action costs a
    step and changes nothing. An episode that is not closed within `cap` steps is truncated with reward 0. An answer
    that cannot be read even on a second draw voids the episode (`Step.info["failure"]`), and so does a hidden start
    that cannot be read.
    """

    def __init__(self, model: ExperienceModel, *, cap: int = 18, invalid_reply: str = "error unknown_action") -> None:
        """Bind an environment to a model.

        Args:
            model: the simulator.
            cap: most actions in an episode, the closing one included.
            invalid_reply: what the real environment answers to a text that is no action, word for word.
        """
        self.model = model
        self.cap = cap
        self.invalid_reply = invalid_reply
        self.task: Task | None = None
        self.ended = True
        self._session: object = object()

    async def reset(self, task: Task, seed: int) -> Observation:
        """Draw the hidden start and show the instruction.

        Raises:
            EnvError: the task has no instruction, or no hidden start could be read from the model.
        """
        form = self.model.form
        self.task, self.seed = task, seed
        self.instruction = instruction_of(task)
        if not self.instruction.split():
            raise EnvError(f"dream: task {task.id} has no instruction in its prompt.")
        self.card: tuple[str, ...] = ()
        if form.card:
            given = task.data.get(CARD)
            if given is not None:
                self.card = tuple(given)
            else:
                try:
                    self.card = await self.model.draw_card(self.instruction, seed)
                except Unparsable as error:
                    raise EnvError(f"dream: no hidden start for task {task.id}: {error}") from error
        self.messages: tuple[Message, ...] = task.prompt
        self.actions: list[str] = []
        self.replies: list[str] = []
        self.traces: list[Sequence[str]] = []
        self.ended = False
        self._head = form.head(self.instruction) + (form.card_ids(self.card) if form.card else [])
        self._done: list[list[int]] = []
        self._noise = derive("world", seed, self.instruction, self.card)
        return self._look()

    async def step(self, action: str) -> Step:
        """Play an action given as text.

        `info` may hold "invalid" (the text was no action), "failure" (the episode is void), and at the end "trace"
        (what the model held to be so).

        Raises:
            EnvError: there is no episode to continue.
        """
        if self.ended or self.task is None:
            raise EnvError("dream: step was called without a running episode; call reset first.")
        action = action.strip()
        form = self.model.form
        self.messages += (Message("assistant", action),)
        if action not in form.known:
            self._log(action, self.invalid_reply, self._now())
            self.messages += (Message("tool", self.invalid_reply),)
            return self._after({"invalid": action})
        closing = action == form.closing
        demos = self.model.memory.demos(self.instruction, self._now(), self.replies, action, self.task.id)
        ask = form.ask(action, demos)
        prompt = [*self._head, *form.recent(self._done), *ask]
        self._noise = derive(self._noise, action)
        try:
            answer, ids = await self.model.answer(prompt, closing=closing, noise=self._noise, session=self._session)
        except Unparsable as error:
            self.ended = True
            return Step(self._look(), info={"failure": f"dream: the answer to {action} could not be read: {error}"})
        self._done.append(ask + ids)
        self._noise = derive(self._noise, tuple(ids))
        self._log(action, answer.reply, answer.trace)
        if not closing:
            self.messages += (Message("tool", answer.reply),)
        if answer.verdict is None:
            return self._after({})
        self._end(answer.verdict)
        return Step(self._look(), float(answer.verdict), terminated=True, info={"trace": " ".join(answer.trace)})

    async def fork(self) -> DreamEnv:
        """A second environment in the same state.

        Raises:
            EnvError: there is no episode to fork.
        """
        if self.task is None:
            raise EnvError("dream: fork was called before reset.")
        other = DreamEnv(self.model, cap=self.cap, invalid_reply=self.invalid_reply)
        session = other._session
        other.__dict__.update({k: list(v) if isinstance(v, list) else v for k, v in self.__dict__.items()})
        other._session = session
        return other

    async def close(self) -> None:
        """Forget the episode's cache."""
        self.model.policy.sampler.release(self._session)

    def _now(self) -> Sequence[str]:
        notes = Notes(self.card, self.traces)
        return trace_at(notes, len(self.traces) - 1) if self.traces else self.card

    def _log(self, action: str, reply: str, trace: Sequence[str]) -> None:
        self.actions.append(action)
        self.replies.append(reply)
        self.traces.append(trace)

    def _after(self, info: dict[str, object]) -> Step:
        """The step's end where the episode goes on, unless the cap is reached."""
        truncated = len(self.actions) >= self.cap
        if truncated:
            self._end(None)
        return Step(self._look(), truncated=truncated, info=info)

    def _end(self, verdict: bool | None) -> None:
        """Hand the finished dream to the memory."""
        self.ended = True
        assert self.task is not None
        episode = LoggedEpisode(
            task_id=self.task.id,
            instruction=self.instruction,
            actions=tuple(self.actions),
            replies=tuple(self.replies),
            success=bool(verdict),
            finished=verdict is not None,
            source=SYNTHETIC,
            version=self.model.memory.version,
            seed=self.seed,
        )
        self.model.memory.stage(episode, Notes(self.card, tuple(self.traces)))

    def _look(self) -> Observation:
        return Observation(self.messages, actions=self.model.form.actions)
