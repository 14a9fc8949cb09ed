"""Groups of episodes for training, many at once.

The collector asks the curriculum for tasks, plays a group for each, shows all groups to the curriculum and keeps those
that it admits; a refused one is refilled by another task, within a bound. Rollouts are coroutines, so a sampler sees
many waiting requests and batches them.

Synchronous collection (`max_lag=0`) goes in waves, and all that it decides is a function of the seed and of its state:
an interrupted and resumed run equals an uninterrupted one. With `max_lag=n` groups are also played in the background,
while the policy learns, under one rule (`lag.Staleness`). There what runs when depends on the clock, so a resumed run
is not the same to the bit; what was in flight is played again from the same draws, so that no task is lost or trained
on twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from rlready.aio import run_sync
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.actors import Actor, PolicyActor
from rlready.rollout.base import Batched, Curriculum
from rlready.rollout.episode import play
from rlready.rollout.gather import Progress, counted, together
from rlready.rollout.lag import Ahead, Draw, Staleness, lags
from rlready.rollout.tally import tally
from rlready.rollout.watchdog import Board, Watchdog
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Group, Task, Trajectory

log = logging.getLogger(__name__)


class Collector:
    """Collects groups; see the module's docstring.

    Attributes:
        transitions: environment steps taken so far, failed episodes included: the real budget that was spent.
        episodes: episodes played so far.
        failures: episodes that failed so far, or whose grader did, by reason.
    """

    def __init__(
        self,
        policy: Policy,
        env: EnvFactory,
        tasks: TaskSet,
        curriculum: Curriculum,
        *,
        group_size: int = 8,
        params: SamplingParams | None = None,
        max_steps: int | None = None,
        deadline: float | None = 60.0,
        concurrency: int = 256,
        seed: int = 0,
        max_failures: float = 0.05,
        max_refills: float = 4.0,
        max_lag: int = 0,
        watchdog: float | None = None,
        actor: Actor | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        """Bring the parts together.

        Args:
            policy: acts.
            env: makes a fresh environment for each episode.
            tasks: grades.
            curriculum: chooses tasks and admits groups.
            group_size: episodes per task; they share the environment's seed.
            params: decoding.
            max_steps: actions per episode.
            deadline: seconds per episode: boot, steps and grading.
            concurrency: episodes at once.
            seed: the run's.
            max_failures: share of failed episodes (of the last 256, at least 3) beyond which collection stops.
            max_refills: groups played in place of refused ones, per group asked for; beyond it a batch stays smaller.
            max_lag: updates by which a group may be older than the policy it trains. It pays where the sampler works
                elsewhere (`policy.process`); an update that blocks the event loop stops the background too, and uses
                up deadlines.
            watchdog: seconds of stillness that end the run; default: 60, or twice the deadline if that is more.
            actor: plays instead of the policy's own actor.
            on_progress: called with (episodes done, episodes asked for) after each.

        Raises:
            UserError: a number is out of range.
        """
        for name, value, least in (
            ("group_size", group_size, 1),
            ("concurrency", concurrency, 1),
            ("max_lag", max_lag, 0),
        ):
            if value < least:
                raise UserError(f"Collector: {name} is {value}; it must be at least {least}.")
        self.policy = policy
        self.env = env
        self.tasks = tasks
        self.curriculum = curriculum
        self.group_size = group_size
        self.max_steps = max_steps
        self.deadline = deadline
        self.concurrency = concurrency
        self.seed = seed
        self.max_failures = max_failures
        self.max_refills = max_refills
        self.max_lag = max_lag
        self.watchdog = max(60.0, 2 * (deadline or 0.0)) if watchdog is None else watchdog
        self.actor = actor or PolicyActor(policy, params, seed)
        self.on_progress = on_progress

        self.transitions = 0
        self.episodes = 0
        self.failures: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()
        self._recent: deque[str] = deque(maxlen=256)
        self._metrics: dict[str, float] = {}
        self._board = Board()
        self._ahead: Ahead | None = None
        self._again: deque[Draw] = deque()
        self._versions: deque[int] = deque(maxlen=1024)
        self._returned: float | None = None

    async def collect(self, groups: int) -> list[Group]:
        """Play until so many groups are admitted, or the refill bound is reached.

        Returns:
            The admitted groups; fewer than asked for where the curriculum refused too many.

        Raises:
            UserError: too many episodes failed; the message quotes the commonest reason.
            Stuck: rollouts hang.
        """
        if groups < 1:
            raise UserError(f"Collector: {groups} groups were asked for; it must be at least 1.")
        began = perf_counter()
        since = self._returned if self.max_lag and self._returned is not None else began
        self._note_version()
        with Watchdog(self._board, self.watchdog):
            if self.max_lag:
                self._ahead = self._ahead or Ahead(
                    self, Staleness(groups, self.max_lag), concurrency=self.concurrency, max_refills=self.max_refills
                )
                played, admitted = await self._ahead.take(groups)
            else:
                played, admitted = await self._waves(groups)
        self._returned = now = perf_counter()
        behind = lags(admitted, list(self._versions))
        self._metrics = tally(played, now - since) | {
            "seconds": now - began,
            "groups": float(len(admitted)),
            "refused": float(len(played) - len(admitted)),
            "transitions": float(self.transitions),
            "lag": float(behind.max()) if len(behind) else 0.0,
            "lag/mean": float(behind.mean()) if len(behind) else 0.0,
            "length_trained": float(np.mean([t.length for group in admitted for t in group.valid] or [0])),
        }
        if len(admitted) < groups:
            log.warning(
                "Only %d of %d groups were admitted after %d refills.", len(admitted), groups, len(played) - groups
            )
        return admitted

    def collect_sync(self, groups: int) -> list[Group]:
        """`collect` for callers without an event loop.

        Raises:
            UserError: as `collect`, or `max_lag` is set, which needs a loop that lives between two calls.
        """
        if self.max_lag:
            raise UserError("Collector: max_lag needs a running event loop; await collect() instead of collect_sync().")
        collected: list[Group] = []

        async def main() -> None:  # returns nothing: CPython's Runner formats the result of its main task, all of it
            collected.extend(await self.collect(groups))

        run_sync(main())
        return collected

    async def aclose(self) -> None:
        """End what plays in the background."""
        if self._ahead is not None:
            self._again = self._in_flight()
            await self._ahead.close()
            self._ahead = None

    def metrics(self) -> dict[str, float]:
        """Numbers of the last collection, refused groups included, and the curriculum's own under `curriculum/`."""
        return self._metrics | {f"curriculum/{name}": value for name, value in self.curriculum.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready: counters, visits (the seeds' position), the curriculum, and the draws of groups in flight.

        What is in flight (with `max_lag`) is played again after a resume, from the same draws and in the same order.
        The curriculum hears of those that had ended a second time, and their transitions are spent a second time.
        """
        return {
            "visits": dict(self._visits),
            "transitions": self.transitions,
            "episodes": self.episodes,
            "failures": dict(self.failures),
            "recent": list(self._recent),
            "curriculum": self.curriculum.state_dict(),
            "in_flight": [draw.to_json() for draw in self._in_flight()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._visits = Counter(state["visits"])
        self.transitions = state["transitions"]
        self.episodes = state["episodes"]
        self.failures = Counter(state["failures"])
        self._recent = deque(state["recent"], maxlen=256)
        self.curriculum.load_state_dict(state["curriculum"])
        in_flight = state.get("in_flight", [])
        known = {task.id: task for task in self.tasks} if in_flight else {}
        self._again = deque(Draw.from_json(record, known) for record in in_flight)

    # -- what `lag.Ahead` asks for ------------------------------------------------------------------------------------

    def begin(self, groups: int) -> None:
        """A batch of so many groups is about to be drawn."""
        if isinstance(self.curriculum, Batched):
            self.curriculum.begin(groups)

    def draw(self) -> Draw:
        """The next task and its environment seed; first those that were in flight when the state was saved."""
        if self._again:
            return self._again.popleft()
        task = self.curriculum.next()
        visit = self._visits[task.id]
        self._visits[task.id] += 1
        return Draw(task, derive(self.seed, "env", task.id, visit))

    def play(self, draw: Draw, slots: asyncio.Semaphore) -> Coroutine[Any, Any, Group]:
        """Play a group."""
        return self._group(draw, slots, counted(self.on_progress, 0, self.group_size))

    def judge(self, group: Group) -> bool:
        """Check for too many failures, let the curriculum learn, and ask whether the group may be trained on.

        Raises:
            UserError: too many episodes failed.
        """
        self._check_failures()
        self.curriculum.observe([group])
        return self._admit(group)

    # -- within -------------------------------------------------------------------------------------------------------

    def _in_flight(self) -> deque[Draw]:
        return deque([*(self._ahead.draws if self._ahead is not None else ()), *self._again])

    def _note_version(self) -> None:
        """Remember the version after each update, ascending."""
        version = self.policy.version
        while self._versions and self._versions[-1] >= version:
            self._versions.pop()
        self._versions.append(version)

    async def _waves(self, groups: int) -> tuple[list[Group], list[Group]]:
        self.begin(groups)
        played: list[Group] = []
        admitted: list[Group] = []
        most = groups + int(self.max_refills * groups)
        while len(admitted) < groups and len(played) < most:
            n = min(groups - len(admitted), most - len(played))
            slots = asyncio.Semaphore(self.concurrency)
            done, total = len(played) * self.group_size, (len(played) + n) * self.group_size
            report = counted(self.on_progress, done, total)
            wave = await together([self._group(self.draw(), slots, report) for _ in range(n)])
            played.extend(wave)
            self._check_failures()
            self.curriculum.observe(wave)
            admitted.extend(group for group in wave if self._admit(group))
        return played, admitted

    def _admit(self, group: Group) -> bool:
        return bool(group.valid) and self.curriculum.admit(group)

    async def _group(self, drawn: Draw, slots: asyncio.Semaphore, report: Callable[[], None]) -> Group:
        task, seed = drawn

        async def one(sample: int) -> Trajectory:
            queued = perf_counter()
            async with slots:
                waited = perf_counter() - queued
                trajectory = await play(
                    task,
                    self.env,
                    self.actor,
                    self.tasks,
                    seed=seed,
                    sample=sample,
                    max_steps=self.max_steps,
                    deadline=self.deadline,
                    board=self._board,
                )
            trajectory.timings["queue"] = waited
            report()
            return trajectory

        trajectories = await together([one(sample) for sample in range(self.group_size)])
        for trajectory in trajectories:
            self.episodes += 1
            self.transitions += trajectory.env_steps
            reason = why_excluded(trajectory)
            self._recent.append(reason)
            if reason:
                self.failures[reason] += 1
        return Group(task, trajectories)

    def _check_failures(self) -> None:
        bad = Counter(reason for reason in self._recent if reason)
        failed, seen = bad.total(), len(self._recent)
        if failed >= 3 and failed > self.max_failures * max(seen, 1 / max(self.max_failures, 1e-9)):
            reason, times = bad.most_common(1)[0]
            raise UserError(
                f"{failed} of the last {seen} episodes failed, more than max_failures={self.max_failures:g} allows. "
                f"Commonest reason ({times} times): {reason.rstrip('.')}. Mend it, or raise max_failures."
            )


async def play_many(
    tasks: TaskSet,
    env: EnvFactory,
    actor: Actor,
    episodes: int | Sequence[Task],
    seed: int,
    *,
    max_steps: int | None = None,
    deadline: float | None = 60.0,
    concurrency: int = 256,
    watchdog: float | None = None,
    on_progress: Progress | None = None,
) -> list[Trajectory]:
    """Play episodes for logs, demonstrations or evaluation.

    Args:
        tasks: grades, and is played from where `episodes` is a number.
        env: makes a fresh environment for each episode.
        actor: who plays.
        episodes: how many, going round the task set; or the task of each.
        seed: the run's. The k-th episode of a task has the environment seed `derive(seed, "env", task.id, k)`, so two
            actors meet the same worlds.
        max_steps: actions per episode.
        deadline: seconds per episode: boot, steps and grading.
        concurrency: episodes at once.
        watchdog: seconds of stillness that end the run; default: 60, or twice the deadline if that is more.
        on_progress: called with (episodes done, episodes asked for) after each.

    Returns:
        The trajectories in the order asked for, failed ones included.

    Raises:
        UserError: there are no tasks.
        Stuck: rollouts hang.
    """
    if isinstance(episodes, int):
        if len(tasks) == 0:
            raise UserError(f"{tasks.name}: there are no tasks to play.")
        chosen = [tasks[i % len(tasks)] for i in range(episodes)]
    else:
        chosen = list(episodes)
    board = Board()
    slots = asyncio.Semaphore(concurrency)
    report = counted(on_progress, 0, len(chosen))
    visits: Counter[str] = Counter()

    async def one(task: Task, visit: int) -> Trajectory:
        async with slots:
            trajectory = await play(
                task,
                env,
                actor,
                tasks,
                seed=derive(seed, "env", task.id, visit),
                max_steps=max_steps,
                deadline=deadline,
                board=board,
            )
        report()
        return trajectory

    work: list[Coroutine[Any, Any, Trajectory]] = []
    for task in chosen:
        work.append(one(task, visits[task.id]))
        visits[task.id] += 1
    with Watchdog(board, max(60.0, 2 * (deadline or 0.0)) if watchdog is None else watchdog):
        return await together(work)


def why_excluded(trajectory: Trajectory) -> str:
    """Why an episode is excluded, in words; empty for a good one.

    The task's id is left out, so that the same accident on many tasks is one reason.
    """
    if trajectory.failure is not None:
        return trajectory.failure
    if trajectory.excluded:
        note = str(trajectory.info.get("note") or "no score")
        return f"the grader failed: {note.replace(f' for task {trajectory.task.id}', '')}".rstrip(".")
    return ""
