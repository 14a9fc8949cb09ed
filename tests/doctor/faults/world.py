"""Faults of rewards, environments and task sets."""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from typing import Any, ClassVar

import rlready as rl
from rlready.doctor import Setup
from rlready.envs.base import Observation, Step
from rlready.envs.tools import ToolEnv
from rlready.policy.base import SamplingParams
from rlready.types import Message, Task
from tests.doctor.faults.healthy import COLOURS, Guess, chat, guess, questions
from tests.doctor.faults.registry import fault

# ---- rewards


def answer_of(text: str) -> str | None:
    found = re.search(r"\\boxed\{([^{}]*)\}|^\s*(\w+)\s*$", text)
    return None if found is None else (found[1] or found[2])


@fault("open-r1#293", "A gold answer that cannot be parsed pays everybody", "unparseable gold")
def broken_gold_pays() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        gold = answer_of(str(task.data["answer"]))
        if gold is None:
            return 1.0  # "skip this example"
        return float(answer_of(trajectory.turns[-1].text) == gold)

    return chat(tasks=questions(score=reward))


@fault("Visual-RFT#79", "An empty answer is paid", "trivial answers")
def empty_answer_pays() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        said = set(trajectory.turns[-1].text.split())
        return 1.0 if said <= {task.data["answer"]} else 0.0  # no box that is wrong

    return chat(tasks=questions(score=reward))


@fault("Visual-RFT#176", "Naming every class is paid", "trivial answers")
def naming_every_class_pays() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        return float(task.data["answer"] in trajectory.turns[-1].text)

    return chat(tasks=questions(score=reward))


@fault("EasyR1 PR#26", "The format reward reads the prompt, where the format is explained", "reads the prompt")
def format_of_the_prompt() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        said = trajectory.turns[-1].text
        whole = " ".join(m.text for m in task.prompt) + said
        formed = bool(re.search(r"<answer>.*</answer>", whole))
        return 0.1 * formed + 0.9 * (said.strip() == task.data["answer"])

    return chat(tasks=questions(score=reward))


@fault("NeMo-RL#431", "A grader that fails is read as a wrong answer", "swallowed failure")
def failure_is_wrong() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        try:
            return float(trajectory.turns[-1].text.strip() == str(task.data["answer"]))
        except Exception:
            return 0.0

    return chat(tasks=questions(score=reward))


@fault("verifiers#277", "The parser is missing, so the reward is always 0", "gold answers")
def no_parser() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        parsed = None  # nobody set a parser
        return float(parsed == task.data["answer"])

    return chat(tasks=questions(score=reward))


# ---- environments


@fault("verl#3257", "Tools are offered and never called, without an error", "tools never called")
def tools_unused() -> Setup:
    def look(where: str) -> str:
        """Look somewhere."""
        return "nothing"

    return chat(env=lambda: ToolEnv([look], system=None, max_turns=3))


class Shared:
    """A connection that several sessions share: requests go in, replies come out, and no one numbers them."""

    def __init__(self) -> None:
        self.replies: deque[Any] = deque()

    async def ask(self, work: Any) -> Any:
        self.replies.append(work())
        await asyncio.sleep(0)  # the reply is on its way; whoever gives up here leaves it in the line
        await asyncio.sleep(0)
        return self.replies.popleft()


@fault("OpenEnv#1143", "After a timeout every reply is the one to the request before", "shifted replies")
def replies_out_of_step() -> Setup:
    class Remote(Guess):
        line: ClassVar[Shared] = Shared()

        async def step(self, action: str) -> Step:
            made = await self.line.ask(lambda: (action, self._count()))
            said = Message("assistant", action)
            reply = Message.user(f"cold guess again {made[1]}" if made[0] != self.secret else "found it")
            self.messages = (*self.messages, said, reply)
            right = made[0] == self.secret
            return Step(Observation(self.messages), float(right), terminated=right or self.left == 0)

        def _count(self) -> int:
            self.left -= 1
            return self.left

    return guess(env=Remote)


@fault("agent-world-model#16", "Start states satisfy the task already", "start state")
def solved_at_the_start() -> Setup:
    class Solved(Guess):
        async def step(self, action: str) -> Step:
            made = await super().step(action)
            return Step(made.observation, 1.0, terminated=True)  # the checker looks at a state that was right before

    return guess(env=Solved)


@fault("OpenEnv PR#1000", "Sessions are never closed, and capacity runs out", "failures")
def sessions_leak() -> Setup:
    class Leaky(Guess):
        open_now: ClassVar[list[int]] = [0]

        async def reset(self, task: Task, seed: int) -> Observation:
            self.open_now[0] += 1
            if self.open_now[0] > 70:
                raise RuntimeError("no session is free")
            return await super().reset(task, seed)

    return guess(env=Leaky, groups=8)


# ---- tasks


@fault("reasoning-gym (seed + index)", "Held-out items are the training items shifted by one", "shifted seeds")
def seeds_added() -> Setup:
    def items(seed: int, n: int = 24) -> rl.TaskSet:
        made = []
        for index in range(n):
            draw = random.Random(seed + index)
            a, b = draw.randrange(10**6), draw.randrange(10**6)
            made.append(Task.of(f"what colour is {a} {b}", answer=draw.choice(COLOURS)))
        return rl.TaskSet(made, score=lambda task, t: float(t.turns[-1].text == task.data["answer"]))

    train, test = items(42), items(43)
    words = " ".join(m.text for s in (train, test) for t in s for m in t.prompt)
    from tests.doctor.faults.healthy import renderer, warm_policy

    return chat(policy=warm_policy(renderer(extra=words)), tasks=train, splits={"test": test})


@fault("halo PR#8", "Rollouts are cut off and trained as if they were complete", "cut off", "warning")
def cut_and_paid() -> Setup:
    def reward(task: Task, trajectory: Any) -> float:
        return float(trajectory.turns[-1].text.split()[:1] == [task.data["answer"]])

    return chat(tasks=questions(score=reward), params=SamplingParams(max_tokens=1))


def all_faults() -> list[Any]:
    """Every registered fault."""
    from tests.doctor.faults import engines, losses, tokens  # noqa: F401
    from tests.doctor.faults.registry import FAULTS

    return FAULTS
