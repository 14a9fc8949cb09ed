"""Collecting in a dream: rollouts under a curriculum of uncertain tasks, and new tasks that vary them.

The loop of DreamGym (arXiv 2511.03773): original tasks and at most a share of generated ones, each group's variance as
the value of its task, the most uncertain tasks as seeds of new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlready.curriculum.samplers import Mixed, Pool, Variance
from rlready.envs.base import EnvFactory
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.collect import Collector
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Group, Task


class Generates(Protocol):
    """Writes new tasks that vary uncertain ones."""

    def observe(self, groups: Sequence[Group]) -> None:
        """See what was played."""
        ...

    async def propose(self, seeds: Sequence[Task], n: int) -> list[Task]:
        """At most `n` new tasks."""
        ...

    def metrics(self) -> dict[str, float]:
        """What became of the proposals."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        ...


class TaskCollector:
    """Rollouts and generated tasks. The trainer's `Collects`."""

    def __init__(
        self,
        policy: Policy,
        env: EnvFactory,
        tasks: TaskSet,
        generator: Generates,
        *,
        seed: int,
        group_size: int,
        generated: float = 0.5,
        seeds: int = 8,
        proposals: int = 16,
        explore: float = 1.0,
        max_failures: float = 0.05,
        params: SamplingParams | None = None,
        max_steps: int | None = None,
        deadline: float | None = 60.0,
    ) -> None:
        """Build curriculum and rollouts.

        Args:
            policy: acts.
            env: makes dreams.
            tasks: the original tasks; they grade.
            generator: varies them.
            seed: the run's.
            group_size: rollouts per task.
            generated: lambda, the greatest share of generated tasks in a batch; 0 turns the generator off.
            seeds: m, how many of the most uncertain tasks are varied per iteration.
            proposals: variations asked for per iteration.
            explore: share of the original tasks drawn in epochs, whatever their variance.
            max_failures: share of dreams that may fail before training stops.
            params: decoding.
            max_steps: actions per episode.
            deadline: seconds per episode.
        """
        self.generated, self.seeds, self.proposals = generated, seeds, proposals
        self.original = Variance(tasks, derive(seed, "dream tasks"), explore=explore)
        self.pool = Pool()
        self.mixed = Mixed(self.original, self.pool, cap=generated)
        self.generator = generator
        self.inner = Collector(
            policy, env, tasks, self.mixed, group_size=group_size, seed=derive(seed, "dream"),
            max_failures=max_failures, params=params, max_steps=max_steps, deadline=deadline,
        )  # fmt: skip

    @property
    def transitions(self) -> int:
        """Dreamt transitions so far."""
        return self.inner.transitions

    async def aclose(self) -> None:
        """End what plays in the background."""
        await self.inner.aclose()

    async def collect(self, groups: int) -> list[Group]:
        """Dream groups, then propose new tasks."""
        played = await self.inner.collect(groups)
        if self.generated > 0:
            self.generator.observe(played)
            self.pool.add(await self.generator.propose(self.mixed.top(self.seeds), self.proposals))
        return played

    def metrics(self) -> dict[str, float]:
        """Numbers of the last collection and of the generator."""
        return self.inner.metrics() | self.generator.metrics()

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs."""
        return {"collector": self.inner.state_dict(), "generator": self.generator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.inner.load_state_dict(state["collector"])
        self.generator.load_state_dict(state["generator"])
