"""RL in a gym with reality beside it: checks of agreement, and rounds that are played in reality.

A real round is an iteration like any other, except that its groups are played in the real environment: the policy
learns from them (mixing), and then the gym does (repair): the episodes join its recordings, and the simulator learns
what it had got wrong. What a round may cost is settled before it starts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlready.curriculum.samplers import Uniform
from rlready.dream.base import Action
from rlready.dream.checks import Agreement, AgreementWatch, agreement
from rlready.dream.gym import Gym
from rlready.dream.measure.walk import looks_failed
from rlready.dream.variations import Variations
from rlready.dreaming.budget import RealBudget
from rlready.dreaming.collect import TaskCollector
from rlready.envs.base import Env, EnvFactory, Observation, Step
from rlready.errors import EnvError, UserError
from rlready.evaluate import Evaluation, evaluate
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Group, Task, Trajectory

if TYPE_CHECKING:
    from rlready.dreaming.train import DreamTrainConfig

_REAL = "real/"
SPENT = "the real transitions that were set aside are used up"


@dataclass
class RealSide:
    """The real environment and its tasks.

    Attributes:
        env: makes real environments.
        held_out: tasks that no recording of the gym's training split is of: the full set is the last check.
        practice: tasks that the gym trains on, for checks on the way and for real rounds; the logged ones where none
            of them were given.
        max_steps: most actions of an episode; None leaves it to the environment.
    """

    env: EnvFactory
    held_out: TaskSet
    practice: TaskSet
    max_steps: int | None = None

    @classmethod
    def of(cls, gym: Gym, env: EnvFactory, tasks: TaskSet | None = None) -> RealSide:
        """Sort real tasks into held-out ones and others, by the ids that the gym trains on.

        Args:
            gym: its training split names the tasks that are not held out.
            env: makes real environments.
            tasks: the real tasks; None takes the gym's own, as the logs pose them.

        Raises:
            UserError: no task is held out.
        """
        if tasks is None:
            tasks = TaskSet([t for split in gym.splits for t in _logged(gym, split)], name="logged tasks")
        known = set(gym.splits["train"])
        held = tasks.filter(lambda t: t.id not in known)
        practice = tasks.filter(lambda t: t.id in known)
        if not len(practice):  # what is held out is never practised on
            practice = TaskSet(_logged(gym, "train"), name="logged tasks")
            practice.scorer = tasks.scorer
        if not len(held):
            raise UserError(
                f"All {len(tasks)} real tasks are among those that the gym trains on, so nothing is held out for the "
                "check. Give further tasks with --tasks my_env.py:test_tasks."
            )
        return cls(env, held, practice, gym.domain.ending.cap + 8)

    def metered(self, most: Callable[[], float] = lambda: math.inf) -> tuple[EnvFactory, Counter[str]]:
        """The environment with a count of its steps under "steps", those that failed included.

        Args:
            most: how many there may be in all; beyond, every episode that goes on is void.
        """
        count: Counter[str] = Counter()

        def make() -> Env:
            env = self.env()
            if not isinstance(env, Env):
                raise UserError(f"The real environment is of type {type(env).__name__}, not an Env.")
            inner = env.step

            async def step(action: str) -> Step:
                if count["steps"] >= most():
                    raise EnvError(SPENT)
                count["steps"] += 1
                return await inner(action)

            env.step = step  # type: ignore[method-assign]
            return env

        return make, count

    def cost(self, episodes: int, gym: Gym) -> int:
        """A cautious estimate of the transitions of so many episodes: one and a half times the recorded mean length."""
        lengths = [len(e) for e in gym.library.episodes.values()] or [gym.domain.ending.cap]
        return math.ceil(episodes * min(1.5 * sum(lengths) / len(lengths), gym.domain.ending.cap))


def blaming(env: EnvFactory) -> EnvFactory:
    """The environment, its errors as sentences for whoever wrote it. Rollouts need no such thing, they exclude."""

    def make() -> Env:
        made = env()
        reset, step = made.reset, made.step

        async def loud_reset(task: Task, seed: int) -> Observation:
            try:
                return await reset(task, seed)
            except Exception as error:
                raise UserError(
                    f"The real environment could not be reset to task {task.id} of the logs: {_said(error)}. If it "
                    "knows only tasks of its own, give those that the gym trains on, too: --tasks my_env.py:tasks."
                ) from error

        async def loud_step(action: str) -> Step:
            try:
                return await step(action)
            except Exception as error:
                raise UserError(f"The real environment failed on the action {action!r}: {_said(error)}.") from error

        made.reset, made.step = loud_reset, loud_step  # type: ignore[method-assign]
        return made

    return make


def _said(error: Exception) -> str:
    text = str(error).rstrip(".")
    return text if isinstance(error, (UserError, EnvError)) else f"{type(error).__name__}: {text}"


@dataclass
class Look:
    """A measurement on the way: the policy in the dream, and in reality where the budget allowed."""

    dream: Evaluation
    agreement: Agreement | None = None
    env_steps: int = 0

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        out = {"dream": self.dream.success}
        return out | (self.agreement.metrics() | {"success": self.agreement.real} if self.agreement is not None else {})


@dataclass
class _Rounds:
    """Which iterations are real."""

    due: list[int] = field(default_factory=list)
    at: int = 0
    played: int = 0
    skipped: int = 0


class GymCollector(TaskCollector):
    """A collector in a gym; some of its iterations are real. The trainer's `Collects`."""

    def __init__(
        self,
        gym: Gym,
        policy: Policy,
        tasks: TaskSet,
        config: DreamTrainConfig,
        run: Run,
        params: SamplingParams,
        real: RealSide | None,
        budget: RealBudget,
    ) -> None:
        """Build curriculum, generator, rollouts and the real side."""
        seed = run.seed
        super().__init__(
            policy, gym.env, tasks, Variations(gym, seed=derive(seed, "new tasks")), seed=seed,
            group_size=config.group_size,
            # Criteria and verifiers know recorded tasks only.
            generated=config.generated if gym.reward_source in ("model", "both") else 0.0,
            max_failures=config.max_failures, params=params, deadline=config.deadline,
        )  # fmt: skip
        self.gym, self.run, self.params, self.real, self.budget, self.config = gym, run, params, real, budget, config
        self.watch = AgreementWatch(allowed=config.allowed)
        self.reasons: list[str] = []
        n = config.real_rounds if real is not None else 0
        self.rounds = _Rounds([round(config.steps * (i + 1) / (n + 1)) for i in range(n)])
        self.added: list[LoggedEpisode] = []
        self._dream_metrics = True
        self._repair: dict[str, float] = {}
        self.reality: Collector | None = None
        self._may = 0.0  # real steps that this and the earlier real rounds may take
        if real is not None:
            metered, self._steps = real.metered(lambda: self._may)
            self.reality = Collector(
                policy, metered, real.practice, Uniform(real.practice, derive(seed, "real rounds")),
                group_size=config.group_size, seed=derive(seed, "real"), params=params, max_steps=real.max_steps,
                deadline=config.deadline, max_failures=0.5,
            )  # fmt: skip

    # ------------------------------------------------------------------ collecting

    async def collect(self, groups: int) -> list[Group]:
        """Groups of the dream, or of reality where a real round is due and paid for."""
        self.rounds.at += 1
        self._dream_metrics, self._repair = True, {}
        if self.rounds.at in self.rounds.due and self.real is not None and self.reality is not None:
            free, left = self.budget.free(), sum(step >= self.rounds.at for step in self.rounds.due)
            each = max(1, self.real.cost(self.config.group_size, self.gym))
            n = groups if math.isinf(free) else min(groups, int(free * 0.9) // each // left)
            if n >= 1:
                return await self._real_round(n)
            self.rounds.skipped += 1
        return await super().collect(groups)

    async def _real_round(self, groups: int) -> list[Group]:
        """Play a real batch: it trains the policy as any batch does, and the gym learns from it."""
        assert self.reality is not None
        before = self._steps["steps"]
        self._may = before + self.budget.free()
        played = await self.reality.collect(groups)
        spent = self._steps["steps"] - before
        self.run.spend(real=spent, mixing=spent)
        self.budget.spend("mixing and repair", spent)
        self.rounds.played += 1
        self._dream_metrics = False
        episodes = [episode_from(self.gym, t) for group in played for t in group.valid]
        self._repair = await self.gym.learn(episodes, seed=derive(self.run.seed, "repair", self.rounds.played))
        self.added += episodes
        return played

    def metrics(self) -> dict[str, float]:
        """Numbers of the last collection; those of a real round stand under `real/`."""
        rounds = {"real_rounds": float(self.rounds.played)}
        if self._dream_metrics or self.reality is None:
            return super().metrics() | rounds
        seen = self.reality.metrics()
        plain = {k: v for k, v in seen.items() if k in ("episodes", "env_steps", "uniform")}
        return {f"{_REAL}{k}": v for k, v in seen.items()} | plain | self._repair | rounds

    # ------------------------------------------------------------------ checking

    async def check(self, policy: Policy) -> Look:
        """The policy on the same tasks in the dream and, where the budget allows, in reality; sampled as it trains."""
        config, seed = self.config, derive(self.run.seed, "check", self.rounds.at)
        source = self.real.practice if self.real is not None else self.inner.tasks
        tasks = source.shuffle(seed).head(config.check_tasks)
        dream = await evaluate(
            policy, TaskSet(tasks, name="check"), self.gym.env_factory(evaluation=True), params=self.params, seed=seed,
            deadline=config.deadline,
        )  # fmt: skip
        self.run.spend(dream=dream.env_steps)
        look = Look(dream)
        if self.real is None or self.budget.free() < self.real.cost(len(tasks), self.gym):
            return look
        metered, count = self.real.metered(self.budget.free)
        seen = await evaluate(
            policy, tasks, metered, params=self.params, max_steps=self.real.max_steps, seed=seed,
            deadline=config.deadline,
        )  # fmt: skip
        self.run.spend(real=count["steps"], check=count["steps"])
        self.budget.spend("agreement", count["steps"])
        rates = [{task: sum(o) / len(o) for task, o in side.outcomes.items()} for side in (dream, seen)]
        if set(rates[0]) & set(rates[1]):
            look.agreement = agreement(*rates)
            self._watch(look.agreement)
        return look

    def _watch(self, now: Agreement) -> None:
        """Halt where the dream flatters more than at first, or success rises in the dream and falls in reality."""
        earlier = [seen for _, seen in self.watch.seen]
        reason = self.watch.observe(self.rounds.at, now, episodes=now.tasks)
        if reason is None and earlier:
            best = max(earlier, key=lambda a: a.real)
            error = math.sqrt(max(now.real * (1 - now.real) + best.real * (1 - best.real), 0.0) / max(now.tasks, 1))
            if now.dream > best.dream and now.real < best.real - 2 * error - 0.02:
                reason = (
                    f"At step {self.rounds.at} success rose from {best.dream:.0%} to {now.dream:.0%} in the dream and "
                    f"fell from {best.real:.0%} to {now.real:.0%} in reality, on the same kind of tasks."
                )
        if reason is not None:
            self.reasons.append(reason)

    def why_to_stop(self, metrics: Mapping[str, float]) -> str | None:
        """A stop rule: what the checks found."""
        return self.reasons[-1] if self.reasons else None

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs, the repaired gym included."""
        return super().state_dict() | {
            "reality": self.reality.state_dict() if self.reality is not None else None,
            "rounds": [self.rounds.at, self.rounds.played, self.rounds.skipped],
            "added": [e.to_json() for e in self.added],
            "simulator": self.gym.learned(),
            "watch": self.watch.state_dict(),
            "reasons": list(self.reasons),
            "budget": self.budget.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        if self.reality is not None:
            self.reality.load_state_dict(state["reality"])
        self.rounds.at, self.rounds.played, self.rounds.skipped = state["rounds"]
        self.added = [LoggedEpisode.from_json(record) for record in state["added"]]
        self.gym.restore(self.added, state["simulator"])
        self.watch.load_state_dict(state["watch"])
        self.reasons = list(state["reasons"])
        self.budget.load_state_dict(state["budget"])


def episode_from(gym: Gym, trajectory: Trajectory) -> LoggedEpisode:
    """A trajectory of the real environment as a recording of the gym: actions in canonical text, one reply each."""
    actions: list[Action] = []
    replies: list[str] = []
    turns = trajectory.turns
    for i, turn in enumerate(turns):
        parts = gym.domain.parse(turn.text)
        if i + 1 < len(turns):
            said = [m.text for m in turns[i + 1].context if m.role not in ("assistant", "system")]
        else:
            said = [str(trajectory.info.get("last_reply", ""))]
        if len(said) != len(parts):  # one text for all of them: it belongs to the last
            said = [""] * (len(parts) - 1) + ["\n".join(said)]
        actions += parts
        replies += said
    failed = tuple(i for i, reply in enumerate(replies) if looks_failed(reply))
    first = turns[0].context if turns else trajectory.task.prompt
    instruction = "\n".join(m.text for m in first if m.role not in ("assistant", "system"))
    return LoggedEpisode(
        task_id=str(trajectory.task.data.get("task_id", trajectory.task.id)),
        instruction=instruction,
        actions=tuple(a.text for a in actions),
        replies=tuple(replies),
        success=trajectory.success,
        finished=not trajectory.truncated,
        source="real",
        seed=trajectory.seed,
        reward=None if math.isnan(trajectory.reward) else trajectory.reward,
        errors=failed,
    )


def _logged(gym: Gym, split: str) -> list[Task]:
    """The tasks of a split as the logs pose them, whoever judges dreams of them."""
    found = {e.task_id: e.instruction for e in gym.episodes(split) if e.instruction.strip()}
    return [gym.task(id, instruction) for id, instruction in found.items()]
