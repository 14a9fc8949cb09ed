"""A dreamt episode of a gym made from logs: parse, check, look up, replay, imagine, judge.

`reset` draws the hidden world once from (task, seed). A step reads what the agent wrote with the one parser, and
answers every call by the first layer that knows (`dream.base`); only what no code knows is asked of the simulator.
Every reply is a function of (world, history, action), so the same actions give the same episode, and a group that
shares task and seed shares its world.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlready.dream import perturb
from rlready.dream.base import Action, Moment, Reply, changes, first_reply
from rlready.dream.domain import is_call
from rlready.dream.env import instruction_of
from rlready.dream.format import Unparsable
from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError
from rlready.seeds import derive, hashed_uniform
from rlready.types import Message, Task

if TYPE_CHECKING:
    from rlready.dream.gym import Gym

_MOST_FACTS = 8


class GymEnv(Env):
    """One dreamt episode.

    `Step.info` may hold "origin" (which layer answered last), "confidence" (the lowest of the step), "failed" (a reply
    was an error), "failure" (the episode is void), and at the end "judged" (the probability of success that the reward
    was drawn from; the draw's noise belongs to the world, so within a group the better judged episode never loses).
    """

    def __init__(self, gym: Gym, *, evaluation: bool = False) -> None:
        """Bind an environment to a gym.

        Args:
            gym: what it plays.
            evaluation: no trouble on purpose, no end or masking at low confidence.
        """
        self.gym = gym
        self.evaluation = evaluation
        self.open = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Draw the hidden world and show the instruction.

        Raises:
            EnvError: the task has no instruction.
        """
        gym = self.gym
        task_id = str(task.data.get("task_id", task.id))
        instruction = asked(task)
        if not instruction.strip():
            raise EnvError(f"dream: task {task.id} has no instruction in its prompt.")
        world = derive("world", task_id, instruction, seed)
        anchor = gym.library.anchor(task_id, world)
        facts = gym.library.world_facts(anchor) if anchor else ()
        self.moment = Moment(task_id, instruction, world, state=gym.state.start(facts), anchor=anchor)
        self.known_facts = facts
        self.shown: tuple[tuple[Action, Reply], ...] = ()
        self.messages: tuple[Message, ...] = gym.domain.prompt(instruction)
        self.turns = 0
        self.changed = False
        self.open = True
        return self._look()

    async def step(self, action: str) -> Step:
        """Play what the agent wrote: one action, or several calls one after another.

        Raises:
            EnvError: there is no episode to continue.
        """
        if not self.open:
            raise EnvError("dream: step was called without a running episode; call reset first.")
        gym, domain = self.gym, self.gym.domain
        self.turns += 1
        self.messages += (Message("assistant", action),)
        reward, confidence, last = 0.0, 1.0, Reply("")
        for number, part in enumerate(domain.parse(action)):
            try:
                last = await self._answer(part)
            except Unparsable as error:
                self.open = False
                return Step(
                    self._look(), info={"failure": f"dream: the reply to {part.text!r} could not be read: {error}"}
                )
            reward += last.reward or 0.0
            confidence = min(confidence, last.confidence)
            if last.text or not last.done:
                self.messages += (domain.answer(part, last, self.turns, number),)
            if last.done:
                break
        info: dict[str, object] = {"origin": last.origin, "confidence": confidence, "failed": last.failed}
        if not self.evaluation and confidence < gym.min_confidence:
            self.open = False
            if gym.low_confidence == "mask":
                info["failure"] = f"dream: masked, since the simulator's confidence fell to {confidence:.2f}"
            return Step(self._look(), reward, truncated=True, info=info)
        if not last.done:
            truncated = len(self.shown) >= domain.ending.cap
            self.open = not truncated
            return Step(self._look(), reward, truncated=truncated, info=info)
        self.open = False
        if not domain.step_rewards:
            try:
                reward = await self._judge(info)
            except Unparsable as error:
                info["failure"] = f"dream: the verdict could not be read: {error}"
        return Step(self._look(), reward, terminated=True, info=info)

    async def fork(self) -> GymEnv:
        """A second environment in the same state.

        Raises:
            EnvError: there is no episode to fork.
        """
        if not hasattr(self, "moment"):
            raise EnvError("dream: fork was called before reset.")
        other = GymEnv(self.gym, evaluation=self.evaluation)
        other.__dict__.update(self.__dict__)
        return other

    async def close(self) -> None:
        """Forget what is cached for the world."""
        if hasattr(self, "moment"):
            self.gym.simulator.release(self.moment.world)

    # ------------------------------------------------------------------ within

    async def answer(self, action: Action) -> Reply:
        """What the world answers to an action here, without trouble; nothing moves on.

        Raises:
            Unparsable: the simulator's answer could not be read.
        """
        gym = self.gym
        reply = gym.refuse(self.moment, action)
        if reply is None:
            reply = await self._true_reply(action)
        if reply.confidence < 1.0 and reply.origin in ("nearest", "model"):
            reply = replace(reply, confidence=gym.calibrated(reply.confidence))
        return reply

    def take(self, action: Action, reply: Reply) -> None:
        """Let an action and its reply have happened: history and state move on.

        What code refused changed nothing, so neither state nor simulator hear of it.
        """
        gym, moment = self.gym, self.moment
        if reply.origin == "check" and reply.failed:
            return
        self.changed |= changes(action, reply, gym.state.reads)
        state = gym.state.observe(moment.state, action, reply)
        self.moment = replace(moment, past=(*moment.past, (action, reply)), state=state)

    async def _answer(self, action: Action) -> Reply:
        """The reply to one action, as it is shown; the episode moves on."""
        gym, world = self.gym, self.moment.world
        trouble = () if self.evaluation else gym.perturb
        if trouble and gym.refuse(self.moment, action) is None:
            shown = perturb.before(trouble, world, self.shown, action)
            if shown is not None:
                self.shown += ((action, shown),)
                return shown
        reply = await self.answer(action)
        self.take(action, reply)
        shown = perturb.after(trouble, world, self.shown, action, reply)
        self.shown += ((action, shown),)
        return shown

    async def _true_reply(self, action: Action) -> Reply:
        """What the world answers to an admissible action."""
        domain = self.gym.domain
        if not is_call(action) and domain.closes(action):
            return Reply("", done=True, origin="check")
        reply = await self._ask(self.moment, action)
        if not reply.done and (domain.closes(action, reply) or (not reply.failed and domain.closes(action))):
            return replace(reply, done=True)
        return reply

    async def _ask(self, moment: Moment, action: Action) -> Reply:
        """Code first, then the simulator; a question about the untouched world is asked of the world alone."""
        known = first_reply(self.gym.layers, moment, action)
        if known is not None:
            return known
        if action.tool in self.gym.state.reads and not self.changed:
            return await self.gym.imagined(replace(moment, past=(), facts=self.known_facts, state={}), action)
        return await self.gym.simulator.reply(moment, action)

    async def _judge(self, info: dict[str, object]) -> float:
        """The reward of a finished episode."""
        gym, moment = self.gym, self.moment
        if gym.reward_source == "verifier":
            return 0.0  # the task set's scorer decides, see `Gym.tasks`
        if gym.reward_source == "criteria":
            if not gym.criteria.known(moment.task_id):
                info["failure"] = f"dream: there are no criteria for task {moment.task_id}"
                return 0.0
            return float(gym.criteria.met(moment.task_id, moment.past))
        p = await gym.simulator.judge(replace(moment, facts=await self._facts()))
        info["judged"] = p
        judged = p > hashed_uniform(moment.world, "judge")
        if gym.reward_source == "both" and gym.criteria.known(moment.task_id):
            met = gym.criteria.met(moment.task_id, moment.past)
            if met != judged:
                info["failure"] = f"dream: criteria say {met} and the simulator says {judged}"
        return float(judged)

    async def _facts(self) -> tuple[tuple[Action, Reply], ...]:
        """What could have been looked up in this world, whoever looked: recorded facts, or the world's own answers."""
        if self.known_facts:
            return self.known_facts
        gym = self.gym
        blank = replace(self.moment, past=(), state={}, facts=())
        seen = dict[str, tuple[Action, Reply]]()
        changed, self.changed = self.changed, False
        try:
            texts = [self.moment.instruction]
            while texts and len(seen) < _MOST_FACTS:
                text = texts.pop(0)
                for question in gym.questions.about(text):
                    if question.text in seen or len(seen) >= _MOST_FACTS:
                        continue
                    if gym.refuse(blank, question) is not None:
                        continue
                    reply = await self._ask(blank, question)
                    seen[question.text] = (question, reply)
                    if not reply.failed:
                        texts.append(reply.text)
        finally:
            self.changed = changed
        return tuple(seen.values())

    def _look(self) -> Observation:
        return Observation(self.messages, actions=self.gym.domain.actions if self.gym.limited else None)


def asked(task: Task) -> str:
    """What a task asks, as a gym reads it: its own instruction, or what its prompt shows."""
    return str(task.data.get("instruction") or "") or instruction_of(task)
