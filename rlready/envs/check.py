"""`check_env`: the environment contract, executed.

It plays a few short episodes and says in words what is wrong: wrong types, other episodes for the same seed and
actions, hidden state (clock, global random numbers, class attributes, module globals), contexts that lose or falsify
what was said, pay after the end, tasks that are solved before the first action, calls that never return.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import numpy as np

from rlready.envs.base import Env, EnvFactory
from rlready.envs.transcript import Transcript, context_problems, observation_problems, step_problems
from rlready.errors import UserError
from rlready.findings import Findings
from rlready.seeds import derive, rng
from rlready.tasks.base import TaskSet, score_by_env
from rlready.types import Task, Trajectory, Turn, Verdict

Actions = Sequence[str] | Callable[..., str]
_PROBES = ("look", "1", "help", "yes", "the answer is 2", "")
_ODD = "no such action \u2028 {}"
_SHIFT = 86_400.0 * 400  # seconds that the clock is set forward in replays


def check_env(
    factory: EnvFactory,
    tasks: TaskSet | Sequence[Task] | Task,
    *,
    actions: Actions | None = None,
    closing: str | None = None,
    episodes: int = 3,
    max_steps: int = 12,
    seed: int = 0,
    deadline: float = 30.0,
) -> Findings:
    """Check an environment against its contract.

    Args:
        factory: an Env class, or anything that makes an environment without arguments.
        tasks: tasks to play. With a task set of its own score, start states that are already right are looked for.
        actions: what to play where observations offer no actions: texts to draw from, or (observation, rng) -> text.
        closing: the action that ends an episode, if there is one; tasks that pass with it alone are counted.
        episodes: how many tasks to play.
        max_steps: steps per episode.
        seed: other seeds play other actions.
        deadline: seconds a single call may take.

    Returns:
        The findings; print them, or call `raise_for_errors()`.

    Raises:
        UserError: there is no task.
    """
    chosen = [tasks] if isinstance(tasks, Task) else list(tasks)
    if not chosen:
        raise UserError("check_env needs at least one task.")
    name = getattr(factory, "__name__", type(factory).__name__)
    checker = _Checker(factory, chosen, tasks if isinstance(tasks, TaskSet) else None, Findings(f"check_env({name})"))
    checker.actions, checker.closing, checker.seed = actions, closing, seed
    checker.episodes, checker.max_steps = episodes, max_steps
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(checker.run())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="check_env")
    thread.start()
    while thread.is_alive():
        thread.join(0.02)
        doing, since = checker.doing
        if doing and time.monotonic() - since > deadline and thread.is_alive():
            checker.found.error(
                "hang", f"{doing} has not returned after {deadline:g} seconds; the check stopped there."
            )
            return checker.found
    if failure and not isinstance(failure[0], _StopError):
        raise failure[0]
    return checker.found


class _StopError(Exception):
    """Nothing more can be checked."""


class _Checker:
    actions: Actions | None
    closing: str | None
    seed: int
    episodes: int
    max_steps: int

    def __init__(self, factory: EnvFactory, tasks: list[Task], scored: TaskSet | None, found: Findings) -> None:
        self.factory, self.tasks, self.scored, self.found = factory, tasks, scored, found
        self.doing: tuple[str, float] = ("", 0.0)
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}

    async def run(self) -> None:
        """All checks, the cheap and fatal ones first."""
        await self.closes()
        played = [await self.play(task, self.seed_of(i)) for i, task in enumerate(self.tasks[: self.episodes])]
        self.contexts(played)
        if await self.replays(played):
            await self.interleaves(played)
            await self.forks(max(played, key=lambda log: len(log.actions)))
        await self.other_seeds(played)
        await self.after_the_end(next((log for log in played if log.over), played[0]))
        await self.odd_action()
        await self.start_states()
        self.facts(played)

    def seed_of(self, index: int) -> int:
        return derive(self.seed, "check", index)

    async def call(self, env: Env, method: str, *arguments: Any) -> Any:
        """A call under the watch of the main thread."""
        shown = ", ".join(repr(a)[:40] for a in arguments if not isinstance(a, (Task, int)))
        self.doing = (f"{method}({shown})", time.monotonic())
        began = time.perf_counter()
        try:
            result = getattr(env, method)(*arguments)
            if not isinstance(result, Awaitable):
                self.found.error("types", f"{method} must be `async def`, but it returned a {type(result).__name__}.")
                raise _StopError
            return await result
        finally:
            self.doing = ("", 0.0)
            self.seconds.setdefault(method, []).append(time.perf_counter() - began)

    def make(self) -> Env:
        self.doing = ("the factory", time.monotonic())
        try:
            env: Any = self.factory()
        except Exception as error:
            self.found.error("factory", f"The factory raised {type(error).__name__}: {error}.")
            raise _StopError from error
        finally:
            self.doing = ("", 0.0)
        if not isinstance(env, Env):
            self.found.error("factory", f"The factory gave a {type(env).__name__}, not an Env.")
            raise _StopError
        made: Env = env
        return made

    async def close(self, env: Env, when: str) -> None:
        try:
            await self.call(env, "close")
        except _StopError:
            raise
        except Exception as error:
            self.found.error(
                "close", f"close raised {type(error).__name__} {when}: {error}. It must always be callable."
            )

    async def closes(self) -> None:
        """`close` before reset and twice; two environments are two objects."""
        env = self.make()
        if self.make() is env:
            self.found.error("factory", "The factory gave the same object twice; each episode needs one of its own.")
        await self.close(env, "before reset")
        await self.close(env, "when called twice")

    async def begin(self, env: Env, task: Task, seed: int) -> Transcript:
        before = task.to_json()
        try:
            first = await self.call(env, "reset", task, seed)
        except _StopError:
            raise
        except Exception as error:
            self.found.error("reset", f"reset raised {type(error).__name__} for task {task.id}: {error}.")
            raise _StopError from error
        problems = observation_problems(first)
        if problems:
            self.found.error("types", f"reset gave an observation that is not usable: {problems[0]}.")
            raise _StopError
        if task.to_json() != before:
            self.found.error(
                "purity", f"reset changed the data of task {task.id}; tasks are shared and must stay as they are."
            )
        return Transcript(task, seed, [first])

    async def advance(self, env: Env, log: Transcript, action: str) -> None:
        try:
            step = await self.call(env, "step", action)
        except _StopError:
            raise
        except Exception as error:
            self.found.error("step", f"step({action[:40]!r}) raised {type(error).__name__}: {error} ({log.place}).")
            raise _StopError from error
        problems = step_problems(step)
        if problems:
            self.found.error(
                "types", f"step({action[:40]!r}) gave a step that is not usable: {problems[0]} ({log.place})."
            )
            raise _StopError
        log.add(action, step)

    def choose(self, log: Transcript, draw: random.Random) -> str:
        offered = log.observations[-1].actions
        if offered:
            return draw.choice(offered)
        if callable(self.actions):
            return self.actions(log.observations[-1], draw)
        return draw.choice(tuple(self.actions or _PROBES))

    async def play(self, task: Task, seed: int, script: Sequence[str] | None = None) -> Transcript:
        """An episode: of drawn actions, or of given ones."""
        env = self.make()
        draw = rng(self.seed, "actions", task.id)
        state = _global_state()
        try:
            log = await self.begin(env, task, seed)
            while not log.over and len(log.actions) < (self.max_steps if script is None else len(script)):
                await self.advance(env, log, self.choose(log, draw) if script is None else script[len(log.actions)])
        finally:
            await self.close(env, "after an episode")
        if _global_state() != state:
            self.found.warning(
                "global state",
                "An episode uses or seeds the global random generator, which episodes share; "
                "draw from a generator of your own, seeded by (task, seed).",
            )
        return log

    async def replays(self, played: Sequence[Transcript]) -> bool:
        """Same seed, same actions: same episode, whatever was played in between and whatever the clock says."""
        same = True
        for log in played:
            with _other_world():
                again = await self.play(log.task, log.seed, log.actions)
            difference = log.difference(again)
            if difference:
                same = False
                self.found.error(
                    "determinism",
                    f"The same seed and actions gave another episode (task {log.task.id}): {difference}. "
                    "Everything random must be a function of (task, seed); clocks, global random numbers, sets' order "
                    "and what earlier episodes left behind must not matter.",
                )
        return same

    async def interleaves(self, played: Sequence[Transcript]) -> None:
        """Two episodes at once, step by step in turn, are the episodes that they are alone."""
        one = played[0]
        two = played[1] if len(played) > 1 else await self.play(one.task, self.seed_of(1))
        pairs = [(log, self.make()) for log in (one, two)]
        try:
            logs = [await self.begin(env, log.task, log.seed) for log, env in pairs]
            for i in range(max(len(one.actions), len(two.actions))):
                for (log, env), new in zip(pairs, logs, strict=True):
                    if i < len(log.actions) and not new.over:
                        await self.advance(env, new, log.actions[i])
        finally:
            for _, env in pairs:
                await self.close(env, "after two episodes at once")
        for (log, _), new in zip(pairs, logs, strict=True):
            difference = log.difference(new)
            if difference:
                self.found.error(
                    "shared state",
                    f"Two episodes at once disturb each other (task {log.task.id}): {difference}. "
                    "Keep state in the object made for the episode, not in its class or module.",
                )

    async def forks(self, log: Transcript) -> None:
        """A fork goes on alike, and does not disturb its origin."""
        if len(log.actions) < 2:
            return
        env, twin = self.make(), None
        try:
            origin = await self.begin(env, log.task, log.seed)
            await self.advance(env, origin, log.actions[0])
            try:
                twin = await self.call(env, "fork")
            except NotImplementedError:
                self.found.note("fork", "It cannot fork; tree search will replay actions from reset.")
                return
            branch = Transcript(log.task, log.seed, list(origin.observations), list(origin.actions), list(origin.steps))
            for new, each in ((branch, twin), (origin, env)):
                for action in log.actions[1:]:
                    await self.advance(each, new, action)
            for new, who in ((branch, "A fork goes on differently"), (origin, "A fork disturbs its origin")):
                difference = log.difference(new)
                if difference:
                    self.found.error("fork", f"{who} (task {log.task.id}): {difference}.")
        finally:
            for each in (env, twin):
                if each is not None:
                    await self.close(each, "after a fork")

    async def other_seeds(self, played: Sequence[Transcript]) -> None:
        log = played[0]
        others = [await self.play(log.task, derive(self.seed, "other", i), log.actions) for i in range(3)]
        if all(log.difference(other) is None for other in others):
            self.found.note("seeds", "Four seeds gave the same episode: nothing in it is random.")

    async def after_the_end(self, log: Transcript) -> None:
        """A step after the end is refused, or pays nothing."""
        if not log.over:
            self.found.note("end", f"No episode end in {len(log.actions)} steps (task {log.task.id}); cap its length.")
            return
        env = self.make()
        try:
            new = await self.begin(env, log.task, log.seed)
            for action in log.actions:
                await self.advance(env, new, action)
            for action in dict.fromkeys([log.actions[-1], *(log.observations[0].actions or ())[:5]]):
                with suppress(Exception):
                    step = await self.call(env, "step", action)
                    if not step_problems(step) and step.reward != 0:
                        self.found.warning(  # our own collector never does this; others may
                            "end",
                            f"step({action[:40]!r}) after the end paid {step.reward}; what is over pays nothing.",
                        )
                        break
        finally:
            await self.close(env, "after a step past the end")

    async def odd_action(self) -> None:
        """Text that is no action must not break the episode: policies write anything."""
        env = self.make()
        try:
            log = await self.begin(env, self.tasks[0], self.seed_of(0))
            for action in ("", _ODD):
                if not log.over:
                    await self.advance_gently(env, log, action)
        finally:
            await self.close(env, "after text that is no action")

    async def advance_gently(self, env: Env, log: Transcript, action: str) -> None:
        try:
            step = await self.call(env, "step", action)
        except _StopError:
            raise
        except Exception as error:
            self.found.warning(
                "odd action",
                f"step({action!r}) raised {type(error).__name__}: {error}. Text that is no action should be answered "
                "in the observation; as it is, the episode is void.",
            )
            raise _StopError from error
        problems = step_problems(step)
        if problems:
            self.found.error("types", f"step({action!r}) gave a step that is not usable: {problems[0]}.")
        else:
            log.add(action, step)

    def contexts(self, played: Sequence[Transcript]) -> None:
        """Each observation is the whole context: it repeats what was said truly, or is rewritten as a whole."""
        for log in played:
            problems, rewritten, extended = context_problems(log)
            for problem in problems[:1]:
                self.found.error("context", f"{problem} (task {log.task.id}).")
            if rewritten and extended:
                self.found.warning(
                    "context",
                    f"The context is sometimes continued and sometimes rewritten (task {log.task.id}, first rewritten "
                    f"after step {rewritten[0]}); each rewriting starts a new training row.",
                )

    async def start_states(self) -> None:
        """Tasks that are right before anything was done."""
        if self.scored is None:
            return
        checked = self.tasks[:200]
        if self.scored.scorer is not score_by_env:
            passed = []
            for task in checked:
                self.doing = (f"the score of task {task.id}", time.monotonic())
                score = await self.scored.score(task, Trajectory(task))
                if score.verdict is Verdict.RIGHT:
                    passed.append(task.id)
            self.doing = ("", 0.0)
            self.passing(passed, len(checked), "before any action")
        if self.closing is not None:
            passed = []
            for i, task in enumerate(checked[:20]):
                log = await self.play(task, self.seed_of(i), [self.closing])
                turn = Turn([], [], reward=log.steps[0].reward, text=self.closing)
                if (await self.scored.score(task, Trajectory(task, [turn]))).verdict is Verdict.RIGHT:
                    passed.append(task.id)
            self.passing(passed, min(len(checked), 20), f"by {self.closing!r} alone")

    def passing(self, passed: list[str], of: int, how: str) -> None:
        if passed:
            self.found.error(
                "start state", f"{len(passed)} of {of} tasks are right {how} (first: {passed[0]}); drop them."
            )

    def facts(self, played: Sequence[Transcript]) -> None:
        if not any(step.reward for log in played for step in log.steps) and self.scored is None:
            self.found.note("reward", "Random play earned no reward.")
        for method in ("reset", "step"):
            took = sorted(self.seconds[method])
            if took:
                self.found.note(
                    "time", f"{method}: median {1e3 * took[len(took) // 2]:.2f} ms, longest {1e3 * took[-1]:.2f} ms."
                )


def _global_state() -> tuple[Any, ...]:
    name, keys, position, *_ = np.random.get_state()
    return random.getstate(), name, bytes(np.asarray(keys)), position


@contextmanager
def _other_world() -> Iterator[None]:
    """Another global random state and another date, put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    real, real_ns = time.time, time.time_ns
    random.seed(1234567)
    np.random.seed(7654321)
    try:
        with (
            mock.patch("time.time", lambda: real() + _SHIFT),
            mock.patch("time.time_ns", lambda: real_ns() + int(_SHIFT * 1e9)),
        ):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
