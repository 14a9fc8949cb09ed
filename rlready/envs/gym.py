"""Adapters between Gymnasium and rlready, both ways.

`from_gym` makes text episodes of any Gymnasium environment: `render` writes an observation as text, `parse` reads an
action from text. `to_gym` shows any of ours to the tools of that world: text observations in, text or indexed actions
out.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import string
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from rlready.aio import run_sync
from rlready.envs.base import Env, EnvFactory, Observation, Step
from rlready.errors import EnvError, GraderError, UserError
from rlready.seeds import derive
from rlready.tasks.base import TaskSet, score_by_env
from rlready.types import Message, Task, Trajectory, Turn, Verdict

Render = Callable[..., str]
Parse = Callable[[str], Any]
GymEnv = gymnasium.Env[Any, Any]


def from_gym(
    env: str | GymEnv | Callable[[], GymEnv],
    *,
    render: Render | None = None,
    parse: Parse | None = None,
    actions: Sequence[str] | None = None,
    instruction: str | None = None,
    history: bool = True,
    **make: Any,
) -> EnvFactory:
    """Text episodes of a Gymnasium environment.

    Args:
        env: an id for `gymnasium.make`, a function that makes an environment, or an instance (each episode then gets
            one made from its spec, or a deep copy).
        render: observation to text; may take (observation) or (observation, info). Default: texts as they are, anything
            else by `str`.
        parse: text to action; raises ValueError for what is no action. Default: the index of a name in `actions`, the
            number of a discrete action, or the text itself for a text action space.
        actions: names of the discrete actions in order; they are offered as the admissible actions.
        instruction: put before the first observation, where the task has no prompt.
        history: show the whole conversation (partly observed environments), or only the latest observation.
        make: further arguments of `gymnasium.make`.

    Returns:
        A factory of environments. The episode's Gymnasium seed is hashed from the task and the seed;
        `task.data["seed"]` fixes it for all of a task's episodes, and `task.data["options"]` goes to `reset`. Text
        that is no action changes
        nothing: the policy is told so, and `Step.info["invalid_actions"]` counts it.

    Raises:
        UserError: the id is unknown, or actions cannot be read from text without `parse`.
    """
    build = _builder(env, make)
    probe = build()
    try:
        reader = parse or _default_parse(probe.action_space, actions)
        offered = tuple(actions) if actions is not None else _numbers(probe.action_space) if parse is None else None
    finally:
        probe.close()
    writer = _writer(render)

    def factory() -> Env:
        return _FromGym(build, writer, reader, offered, instruction, history)

    return factory


def _builder(env: str | GymEnv | Callable[[], GymEnv], make: dict[str, Any]) -> Callable[[], GymEnv]:
    if isinstance(env, str):
        options = {"disable_env_checker": True, **make}

        def by_id() -> GymEnv:
            try:
                return gymnasium.make(env, **options)
            except gymnasium.error.Error as error:
                raise UserError(f'Gymnasium cannot make "{env}": {error}') from None

        return by_id
    if make:
        raise UserError(f"from_gym: {', '.join(make)} can only be passed where the environment is given by its id.")
    if isinstance(env, gymnasium.Env):
        if env.spec is not None:
            spec = env.spec
            return lambda: gymnasium.make(spec, disable_env_checker=True)
        original = env
        return lambda: copy.deepcopy(original)
    return env


def _writer(render: Render | None) -> Callable[[Any, dict[str, Any]], str]:
    if render is None:
        return lambda observation, info: observation if isinstance(observation, str) else str(observation)
    try:
        inspect.signature(render).bind(None, None)
    except (TypeError, ValueError):
        return lambda observation, info: render(observation)
    return render


def _numbers(space: spaces.Space[Any]) -> tuple[str, ...] | None:
    if isinstance(space, spaces.Discrete):
        return tuple(str(i) for i in range(int(space.start), int(space.start + space.n)))
    return None


def _default_parse(space: spaces.Space[Any], actions: Sequence[str] | None) -> Parse:
    if isinstance(space, spaces.Discrete):
        names = list(actions) if actions is not None else list(_numbers(space) or ())
        if len(names) != space.n or len(set(names)) != len(names):
            raise UserError(f"from_gym: {space.n} discrete actions need as many different names, but got {names}.")
        index = {name: int(space.start) + i for i, name in enumerate(names)}

        def by_name(text: str) -> int:
            try:
                return index[text.strip()]
            except KeyError:
                raise ValueError(f"The actions are: {', '.join(names)}.") from None

        return by_name
    if isinstance(space, spaces.Text):
        return lambda text: text
    raise UserError(f"from_gym: pass parse=, a function from text to an action of {space}.")


class _FromGym(Env):
    """A Gymnasium environment as a text episode."""

    def __init__(
        self,
        build: Callable[[], GymEnv],
        render: Callable[[Any, dict[str, Any]], str],
        parse: Parse,
        actions: tuple[str, ...] | None,
        instruction: str | None,
        history: bool,
    ) -> None:
        self._build, self._render, self._parse = build, render, parse
        self._actions, self._instruction, self._history = actions, instruction, history
        self._env: GymEnv | None = None
        self._head: tuple[Message, ...] = ()
        self._messages: tuple[Message, ...] = ()
        self._seen = ""
        self._invalid = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Seed and start the environment."""
        await self.close()
        self._env = self._build()
        fixed = task.data.get("seed")
        number = fixed if isinstance(fixed, int) else derive("gym", task.id, seed) % 2**31
        observation, info = self._env.reset(seed=number, options=task.data.get("options"))
        self._invalid = 0
        self._head = task.prompt or (() if self._instruction is None else (Message("system", self._instruction),))
        self._seen = self._render(observation, info)
        self._messages = (*self._head, Message.user(self._seen))
        return Observation(self._messages, self._actions, dict(info))

    async def step(self, action: str) -> Step:
        """Apply the action; text that is no action is answered, and changes nothing.

        Raises:
            EnvError: the episode has not begun, or is over.
        """
        if self._env is None:
            raise EnvError("step was called on an episode that has not begun or is over.")
        reward: SupportsFloat = 0.0
        terminated = truncated = False
        info: dict[str, Any] = {}
        try:
            parsed = self._parse(action)
            if not self._env.action_space.contains(parsed):
                raise ValueError(f"It is not in {self._env.action_space}.")
        except ValueError as error:
            self._invalid += 1
            reproach = f"This is no action: {action[:200]!r}. {error}"
            text = reproach if self._history else f"{self._seen}\n{reproach}"
        else:
            observation, reward, terminated, truncated, info = self._env.step(parsed)
            text = self._seen = self._render(observation, info)
        said = (*self._messages, Message("assistant", action)) if self._history else self._head
        self._messages = (*said, Message.user(text))
        shown = Observation(self._messages, self._actions)
        if terminated or truncated:
            await self.close()
        return Step(shown, float(reward), bool(terminated), bool(truncated), {**info, "invalid_actions": self._invalid})

    async def fork(self) -> Env:
        """A copy in the same state, where the environment can be deep-copied.

        Raises:
            NotImplementedError: it cannot.
        """
        other = _FromGym(self._build, self._render, self._parse, self._actions, self._instruction, self._history)
        other._head, other._messages, other._seen = self._head, self._messages, self._seen
        other._invalid = self._invalid
        try:
            other._env = copy.deepcopy(self._env)
        except Exception as error:  # whatever a foreign environment's copy raises
            raise NotImplementedError(f"{self._env} cannot be copied ({error}); replay its actions instead.") from error
        return other

    async def close(self) -> None:
        """Close the environment; may be called again."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


class AnyText(spaces.Text):
    """The space of all texts up to a length, of any script (Gymnasium's own knows a fixed set of characters)."""

    def __init__(self, max_length: int) -> None:
        """Sampling draws printable ASCII."""
        super().__init__(min(max_length, 40), min_length=0, charset=string.printable)
        self.limit = max_length

    def contains(self, x: Any) -> bool:
        """Whether x is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.limit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.limit == self.limit

    def __hash__(self) -> int:
        return hash(self.limit)


def to_gym(
    factory: EnvFactory,
    tasks: TaskSet | Sequence[Task],
    *,
    actions: Sequence[str] | None = None,
    max_length: int = 100_000,
    max_steps: int | None = None,
) -> ToGym:
    """One of our environments as a `gymnasium.Env`; see `ToGym`.

    Args:
        factory: makes an environment for one episode.
        tasks: each episode draws one, by the seed; `reset(options={"task": index or id})` chooses.
        actions: names of a `Discrete` action space; None takes any text.
        max_length: longest observation in characters; longer ones lose their beginning, and `info["cut"]` says how
            much.
        max_steps: truncate after this many steps.

    Raises:
        UserError: there are no tasks.
    """
    return ToGym(factory, tasks, actions, max_length, max_steps)


class ToGym(gymnasium.Env[str, Any]):
    """One of our environments under Gymnasium's contract.

    The observation is the context as text; `info` holds the messages (`messages`), the admissible actions (`actions`)
    and the task's id (`task`). The reward is the environment's; where the task set has a score of its own, the score
    is the reward of the last step, with `info["verdict"]`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (Gymnasium's own form)

    def __init__(
        self,
        factory: EnvFactory,
        tasks: TaskSet | Sequence[Task],
        actions: Sequence[str] | None,
        max_length: int,
        max_steps: int | None,
        render_mode: str | None = "ansi",
    ) -> None:
        """See `to_gym`."""
        if not len(tasks):
            raise UserError("to_gym needs at least one task.")
        self.factory = factory
        self.tasks = tasks if isinstance(tasks, TaskSet) else TaskSet(tasks)
        self.names = None if actions is None else tuple(actions)
        self.render_mode = render_mode
        self.max_steps = max_steps
        self.observation_space = AnyText(max_length)
        self.action_space = AnyText(max_length) if self.names is None else spaces.Discrete(len(self.names))
        self._limit = max_length
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inner: Env | None = None
        self._text = ""
        self._trajectory: Trajectory | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode on a task drawn by the seed, or chosen by `options["task"]`.

        Raises:
            UserError: there is no such task.
        """
        super().reset(seed=seed)
        task = self._choose((options or {}).get("task"))
        number = int(self.np_random.integers(2**63 - 1))
        self._end()
        self._inner = self.factory()
        self._trajectory = Trajectory(task, seed=number)
        return self._show(self._run(self._inner.reset(task, number)), {})

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply an action.

        Raises:
            EnvError: the episode has not begun, or is over.
            GraderError: the task set's score failed.
        """
        if self._inner is None or self._trajectory is None:
            raise EnvError("step was called on an episode that has not begun or is over.")
        text = str(action) if self.names is None else self.names[int(action)]
        step = self._run(self._inner.step(text))
        turns = self._trajectory.turns
        turns.append(
            Turn([], list(text.encode()), parent=len(turns) - 1 if turns else None, reward=step.reward, text=text)
        )
        terminated = bool(step.terminated)
        truncated = bool(step.truncated) or (
            self.max_steps is not None and len(turns) >= self.max_steps and not terminated
        )
        reward = float(step.reward)
        shown, info = self._show(step.observation, step.info)
        if self.tasks.scorer is not score_by_env:
            reward = 0.0
        if terminated or truncated:
            score = self._run(self.tasks.score(self._trajectory.task, self._trajectory))
            if score.verdict is Verdict.GRADER_FAILED:
                raise GraderError(score.note)
            info["verdict"] = str(score.verdict)
            reward = float(step.reward) if self.tasks.scorer is score_by_env else float(score.value)
            self._end()
        return shown, reward, terminated, truncated, info

    def render(self) -> Any:
        """The latest context as text."""
        return self._text

    def close(self) -> None:
        """End the episode and the loop; may be called again."""
        self._end()
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _choose(self, wanted: Any) -> Task:
        drawn = int(self.np_random.integers(len(self.tasks)))
        if wanted is None:
            return self.tasks[drawn]
        if isinstance(wanted, (int, np.integer)) and 0 <= wanted < len(self.tasks):
            return self.tasks[int(wanted)]
        for task in self.tasks:
            if task.id == wanted:
                return task
        raise UserError(f"to_gym: there is no task {wanted!r}; give an id, or an index below {len(self.tasks)}.")

    def _show(self, observation: Observation, extra: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        whole = "\n\n".join(f"[{m.role}] {m.text}" for m in observation.messages)
        self._text = whole[-self._limit :]
        assert self._trajectory is not None
        info = {
            **copy.deepcopy(extra),
            "messages": [m.to_json() for m in observation.messages],
            "task": self._trajectory.task.id,
        }
        if observation.actions is not None:
            info["actions"] = list(observation.actions)
        if len(whole) > self._limit:
            info["cut"] = len(whole) - self._limit
        return self._text, info

    def _end(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            self._run(inner.close())

    def _run(self, coroutine: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(coroutine)
        return run_sync(coroutine)  # a notebook: its loop is busy running this call
