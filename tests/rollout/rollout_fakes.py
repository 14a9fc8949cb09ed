"""A word-level renderer, a sampler without a model, and small environments, for tests of everything around them."""

import asyncio
import time

import numpy as np

from rlready.envs.base import Env, Observation, Step
from rlready.policy.base import Policy, Sample
from rlready.seeds import hashed_uniform
from rlready.tasks.base import TaskSet
from rlready.types import Message, Score, Task

END = 0


class Words:
    """Every word is a token; `<role>` opens a message, the id 0 ends an assistant turn. New words get new ids."""

    def __init__(self):
        rooms = [f"room{i}" for i in range(20)]
        common = [
            "</s>",
            "<user>",
            "<assistant>",
            "<tool>",
            "find",
            "the",
            "lamp",
            "of",
            "press",
            "0",
            "1",
            "2",
            "done",
            "light",
            "dark",
        ]
        self.words = common + rooms
        self.ids = {word: i for i, word in enumerate(self.words)}

    def id(self, word):
        if word not in self.ids:
            self.ids[word] = len(self.words)
            self.words.append(word)
        return self.ids[word]

    def _message(self, message):
        return [self.id(f"<{message.role}>"), *(self.id(w) for w in message.text.split())]

    @property
    def stop_ids(self):
        return (END,)

    def render(self, messages):
        return [i for m in messages for i in self._message(m)] + [self.id("<assistant>")]

    def extend(self, prompt_ids, completion_ids, new):
        return prompt_ids + completion_ids + [i for m in new for i in self._message(m)] + [self.id("<assistant>")]

    def encode_completion(self, text):
        return [*(self.id(w) for w in text.split()), END]

    def decode(self, completion_ids):
        return " ".join(self.words[i] for i in completion_ids if i != END)


class Chance:
    """Draws among the choices by the request's own noise; batches what waits together."""

    def __init__(self, delay=0.0):
        self.version = 0
        self.delay = delay
        self.requests = []
        self.released = []
        self.batches = []
        self._waiting = 0

    async def sample(self, requests):
        self.requests.extend(requests)
        self._waiting += 1
        await asyncio.sleep(self.delay)
        if self._waiting:
            self.batches.append(self._waiting)
            self._waiting = 0
        return [self._one(r) for r in requests]

    def _one(self, request):
        ids, logprobs, support = [], [], []
        choices = request.params.choices
        while True:
            allowed = choices.allowed(ids) if choices else (np.array([1, 2]) if not ids else np.array([END]))
            if allowed is None:
                break
            u = hashed_uniform(request.seed, len(ids)) if request.params.temperature else 0.0
            ids.append(int(allowed[int(u * len(allowed))]))
            logprobs.append(-float(np.log(len(allowed))))
            support.append(allowed)
            if ids[-1] == END:
                break
        return Sample(ids, logprobs, "end", self.version, support)

    def load(self, state, version):
        self.version = version

    def release(self, session):
        self.released.append(session)


def policy(delay=0.0):
    return Policy(Chance(delay), Words())


class Lamps(Env):
    """Turn the lamp with the hidden number on, then say done. The number is a function of (task, seed)."""

    opened = 0
    closed = 0

    def __init__(self):
        type(self).opened += 1

    async def reset(self, task, seed):
        self.hidden = int(hashed_uniform(task.id, seed, "lamp") * 3)
        self.lit = False
        self.messages = [Message.user(f"find the lamp of {task.data['name']}")]
        return self.look()

    async def step(self, action):
        self.messages.append(Message("assistant", action))
        self.lit = self.lit or action == f"press {self.hidden}"
        self.messages.append(Message("tool", "light" if self.lit else "dark"))
        done = action == "done"
        return Step(self.look(), reward=float(done and self.lit), terminated=done, info={"lit": self.lit})

    def look(self):
        return Observation(self.messages, actions=("press 0", "press 1", "press 2", "done"))

    async def close(self):
        type(self).closed += 1


class Broken(Lamps):
    """Does one thing wrong, named by the task's data."""

    async def reset(self, task, seed):
        self.fault = task.data.get("fault", "")
        if self.fault == "reset raises":
            raise KeyError("no such room")
        if self.fault == "reset hangs":
            await asyncio.sleep(60)
        if self.fault == "reset type":
            return "a dark room"
        if self.fault == "no messages":
            return Observation([])
        return await super().reset(task, seed)

    async def step(self, action):
        step = await super().step(action)
        match self.fault:
            case "step raises":
                raise RuntimeError("the fuse blew")
            case "step hangs":
                await asyncio.sleep(60)
            case "step type":
                return step.observation, 1.0, False, False, {}
            case "observation type":
                step.observation = "dark"
            case "nan reward":
                step.reward = float("nan")
            case "text reward":
                step.reward = "much"
            case "void":
                step.info["failure"] = "the simulator wrote nonsense"
            case "sleeps":
                time.sleep(30)
            case "stubborn":
                while True:
                    try:
                        await asyncio.sleep(0.5)
                        if self.free:
                            break
                    except asyncio.CancelledError:
                        pass
        return step

    free = False

    async def close(self):
        await super().close()
        if self.fault == "close raises":
            raise OSError("already gone")


async def lit(task, trajectory):
    """Right where the lamp was lit when the episode ended."""
    won = trajectory.turns[-1].text == "done" and trajectory.info["last_reply"] == "light"
    return Score.right() if won else Score.wrong()


def lamps(n=8, **data):
    tasks = TaskSet([Task.of(f"lamp {i}", name=f"room{i}", **data) for i in range(n)], name="lamps")
    tasks.scorer = lit
    return tasks
