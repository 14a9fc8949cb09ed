"""One episode: boot, turns, grading, under one deadline; the environment is always closed.

What the environment does wrong (raises, returns a wrong type, misses the deadline, declares its episode void) becomes
`Trajectory.failure`, a sentence: the episode is excluded and counted, never read as wrong. What the policy or we do
wrong is raised. An environment serves one episode, so a dead one is never met again: the next episode has a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from types import coroutine
from typing import Any, TypeVar

from rlready.envs.base import Env, EnvFactory, Observation, Step
from rlready.errors import EnvError
from rlready.rollout.actors import Actor, Player, reply_text
from rlready.rollout.watchdog import Activity, Board
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory, Verdict

log = logging.getLogger(__name__)
T = TypeVar("T")

CLOSE_SECONDS = 10.0
_closing: set[asyncio.Task[str | None]] = set()


async def play(
    task: Task,
    env: EnvFactory,
    actor: Actor,
    tasks: TaskSet,
    *,
    seed: int,
    sample: int = 0,
    max_steps: int | None = None,
    deadline: float | None = 60.0,
    board: Board | None = None,
) -> Trajectory:
    """Play and grade one episode.

    Args:
        task: what to play.
        env: makes a fresh environment.
        actor: who plays.
        tasks: grades it, by `tasks.score`.
        seed: the environment's; members of a group share it.
        sample: index within the group.
        max_steps: the episode is truncated after so many actions.
        deadline: wall-clock seconds for boot, steps and grading together; None for no limit.
        board: where to report progress, for the watchdog.

    Returns:
        The trajectory, with reward, verdict, `env_steps`, `timings` (seconds: boot, sample, env, score, total;
        `env_busy` and `score_busy` are those in which boot and steps, or grading, held the event loop),
        `info["last_reply"]` (the environment's answer to the last action) and `info["env"]` (plain values of the last
        step's info).

    Raises:
        Stuck: the watchdog ended the run.
    """
    board = board or Board()
    episode = _Episode(task, actor.start(task, seed, sample), tasks, seed, max_steps, board)
    trajectory = episode.trajectory
    try:
        try:
            async with asyncio.timeout(deadline) as limit:
                await episode.run(env)
        except TimeoutError:
            if not limit.expired():
                raise
            activity = episode.activity
            trajectory.failure = (
                f"{activity.env} missed the deadline of {deadline:g} s in phase {activity.phase} "
                f"after {trajectory.env_steps} steps"
            )
        except EnvError as error:
            trajectory.failure = str(error)
    finally:
        await episode.close()
        if trajectory.failure is not None:
            trajectory.reward, trajectory.verdict = math.nan, None
    return trajectory


class _Episode:
    """State of one `play`."""

    def __init__(
        self, task: Task, player: Player, tasks: TaskSet, seed: int, max_steps: int | None, board: Board
    ) -> None:
        self.trajectory = Trajectory(task, seed=seed)
        self.player = player
        self.tasks = tasks
        self.max_steps = math.inf if max_steps is None else max_steps
        self.env: Env | None = None
        self.activity = board.open("environment", task.id)

    async def run(self, factory: EnvFactory) -> None:
        trajectory, activity = self.trajectory, self.activity
        observation = await self.boot(factory)
        env = self.env
        assert env is not None
        while True:
            activity.enter("sample")
            turn = await self.player.act(observation, trajectory)
            trajectory.turns.append(turn)
            activity.enter("env")
            step = self.checked(await self.call("step", env.step, turn.text))
            trajectory.env_steps += 1
            turn.reward = float(step.reward)
            observation = step.observation
            if step.terminated or step.truncated or trajectory.env_steps >= self.max_steps:
                break
        trajectory.truncated = not step.terminated
        trajectory.info["last_reply"] = reply_text(observation.messages)
        plain = {k: v for k, v in step.info.items() if isinstance(v, (str, int, float, bool))}
        if plain:
            trajectory.info["env"] = plain
        activity.enter("score")
        activity.board.check()
        self.grade(await _drive(self.tasks.score(trajectory.task, trajectory), activity))

    async def boot(self, factory: EnvFactory) -> Observation:
        self.activity.enter("boot")
        self.activity.board.check()
        began = perf_counter()
        try:
            env = factory()
        except Exception as error:
            raise self.fault("could not be made:", error) from error
        if not isinstance(env, Env):
            raise EnvError(f"The environment factory returned {type(env).__name__}, not an Env")
        self.activity.busy["boot"] = perf_counter() - began
        self.env = env
        self.activity.env = type(env).__name__
        observation = await self.call("reset", env.reset, self.trajectory.task, self.trajectory.seed)
        return self.seen("reset", observation)

    async def call(self, name: str, method: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await a method of the environment; whatever it raises is its failure."""
        self.activity.board.check()  # of many episodes that would block the loop, only the first does
        try:
            awaitable = method(*args)
            if not isinstance(awaitable, Awaitable):
                raise TypeError(f"it must be `async def`, but returned {type(awaitable).__name__}")
            return await _drive(awaitable, self.activity)
        except Exception as error:
            self.activity.board.check()  # what the watchdog raised inside it is not the environment's own error
            raise self.fault(f"{name} raised", error) from error

    def fault(self, what: str, error: Exception) -> EnvError:
        log.debug("environment failure in task %s", self.trajectory.task.id, exc_info=error)
        if isinstance(error, EnvError):  # says it all itself
            return EnvError(f"{self.activity.env}: {error}")
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}, line {frames[-1].lineno})" if frames else ""
        text = str(error)
        return EnvError(f"{self.activity.env} {what} {type(error).__name__}{f': {text}' if text else ''}{where}")

    def seen(self, method: str, observation: Any) -> Observation:
        if not isinstance(observation, Observation):
            raise EnvError(f"{self.activity.env}.{method} gave {type(observation).__name__}, not an Observation")
        if not observation.messages:
            raise EnvError(f"{self.activity.env}.{method} gave an observation without messages")
        return observation

    def checked(self, step: Any) -> Step:
        if not isinstance(step, Step):
            raise EnvError(f"{self.activity.env}.step gave {type(step).__name__}, not a Step")
        failure = step.info.get("failure")
        if failure:
            self.trajectory.env_steps += 1
            raise EnvError(str(failure))
        try:
            finite = math.isfinite(step.reward)
        except TypeError:
            finite = False
        if not finite:
            raise EnvError(f"{self.activity.env}.step gave the reward {step.reward!r}, not a finite number")
        self.seen("step", step.observation)
        return step

    def grade(self, score: Any) -> None:
        trajectory = self.trajectory
        self.activity.board.check()  # a scorer turns exceptions into failed scores, the watchdog's too
        if not isinstance(score, Score):
            score = Score.failed(f"the scorer returned {type(score).__name__}, not a Score")
        elif score.verdict is not Verdict.GRADER_FAILED and not math.isfinite(score.value):
            score = Score.failed(f"the scorer returned {score.value}")
        trajectory.reward = score.value
        trajectory.scores = dict(score.parts)
        trajectory.verdict = score.verdict
        if score.note:
            trajectory.info["note"] = score.note

    async def close(self) -> None:
        """Close player and environment, also while being cancelled, and book the time."""
        self.activity.enter("close")
        try:
            self.player.close()
            if self.env is not None and type(self.env).close is not Env.close:
                task = asyncio.ensure_future(_close(self.env))
                _closing.add(task)
                task.add_done_callback(_closing.discard)
                problem = await asyncio.shield(task)
                if problem is not None:
                    self.trajectory.info["close"] = problem
        finally:
            activity = self.activity
            activity.board.close(activity)
            busy, seconds = activity.busy, activity.seconds
            timings = {name: seconds.get(name, 0.0) for name in ("boot", "sample", "env", "score")}
            timings["total"] = sum(seconds.values())
            timings["env_busy"] = busy.get("boot", 0.0) + busy.get("env", 0.0)
            timings["score_busy"] = busy.get("score", 0.0)
            self.trajectory.timings = timings


async def _close(env: Env) -> str | None:
    """Close an environment; say in words what went wrong, for it does not void the episode."""
    name = type(env).__name__
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await env.close()
    except TimeoutError:
        problem = f"{name}.close took more than {CLOSE_SECONDS:g} s and was abandoned"
    except Exception as error:
        problem = f"{name}.close raised {type(error).__name__}: {error}"
    else:
        return None
    log.warning("%s", problem)
    return problem


@coroutine
def _drive(awaitable: Awaitable[T], activity: Activity) -> Generator[Any, Any, T]:
    """Await something, adding up the seconds in which it runs, as opposed to being suspended."""
    inner = awaitable.__await__()
    board, phase, busy = activity.board, activity.phase, activity.busy
    value: Any = None
    thrown: BaseException | None = None
    while True:
        board.current = activity
        began = perf_counter()
        try:
            if thrown is not None:
                error, thrown = thrown, None
                pending = inner.throw(error)
            else:
                pending = inner.send(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            busy[phase] = busy.get(phase, 0.0) + perf_counter() - began
        try:
            value = yield pending
        except BaseException as error:
            thrown, value = error, None
