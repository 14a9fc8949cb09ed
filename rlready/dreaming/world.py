"""Training in a dream: what stands between the experience model and the ordinary training loop.

    dream = Dream.fit(run, world, episodes, annotator, config, options)
    halted = dream.train(policy, algorithm, tasks, steps=30, groups=16, group_size=8)

The trainer cannot tell a dream from reality: it gets a collector. This one also lets finished dreams join the memory,
asks the model for variations of the tasks whose outcome is uncertain (at most a share lambda of a batch), and every so
often plays the same tasks in reality, with the same policy. Those checks cost real transitions, which are counted;
where the dream flatters ever more, training stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlready.aio import run_sync
from rlready.algorithms.base import Algorithm
from rlready.dream.annotate import Annotator, paired
from rlready.dream.checks import Agreement, AgreementWatch, SameActions, agreement, same_actions
from rlready.dream.env import DreamEnv
from rlready.dream.format import Annotation, DreamFormat
from rlready.dream.model import DreamConfig, ExperienceModel, KindOf
from rlready.dream.taskgen import TaskGenerator
from rlready.dreaming.collect import TaskCollector
from rlready.errors import UserError
from rlready.evaluate import Evaluation, evaluate
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import Policy, SamplingParams
from rlready.run import Run
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.train import Evaluator, Measured, train
from rlready.types import Group, Message, Task
from rlready.worlds.base import World


@dataclass(frozen=True)
class DreamOptions:
    """How a dream is trained in; the numbers are ours.

    Attributes:
        demos: recorded replies shown before each answer.
        trace, card: reason before each answer; draw a hidden start once per world.
        generated: lambda, the greatest share of generated tasks in a batch; 0 turns the task generator off.
        seeds: m, how many of the most uncertain tasks are varied per iteration.
        proposals: variations asked for per iteration.
        explore: share of the original tasks drawn in epochs, whatever their variance.
        coevolve: finished dreams join the memory.
        check_every: iterations between two measurements of the agreement of dream and reality; 0 never checks.
        check_tasks: tasks played on both sides in a measurement, once each.
        allowed: how much the dream's flattery may grow before training stops.
        max_failures: share of dreams that may fail (unreadable answers) before training stops.
        replays: replays of the same actions in the determinism check before training.
    """

    demos: int = 1
    trace: bool = True
    card: bool = True
    generated: float = 0.5
    seeds: int = 8
    proposals: int = 16
    explore: float = 1.0
    coevolve: bool = True
    check_every: int = 10
    check_tasks: int = 64
    allowed: float = 0.15
    max_failures: float = 0.05
    replays: int = 8


class Dream:
    """A fitted experience model, ready to be trained in.

    Attributes:
        model: the simulator.
        world: the real domain behind it.
        watch: agreement of dream and reality so far.
    """

    def __init__(
        self,
        run: Run,
        world: World,
        model: ExperienceModel,
        episodes: Sequence[LoggedEpisode],
        annotations: Sequence[Annotation],
        options: DreamOptions,
    ) -> None:
        """Put the parts together; `fit` is the usual way here."""
        self.run, self.world, self.model, self.options = run, world, model, options
        self.episodes = list(episodes)
        self.known = [(e.instruction, a.card) for e, a in zip(episodes, annotations, strict=True)]
        self.watch = AgreementWatch(allowed=options.allowed)
        self.determinism: SameActions | None = None

    @classmethod
    def fit(
        cls,
        run: Run,
        world: World,
        episodes: Sequence[LoggedEpisode],
        annotator: Annotator,
        config: DreamConfig,
        options: DreamOptions,
        *,
        kind_of: KindOf | None = None,
        stage: str = "experience model",
    ) -> Dream:
        """Annotate the logs and train the experience model on them, in a stage of the run.

        Args:
            run: keeps the stage.
            world: where the logs come from.
            episodes: failures and random play belong to them.
            annotator: writes cards and traces; episodes without an acceptable one are left out.
            config: of the model.
            options: of the dream.
            kind_of: names an action's kind, so that held-out accuracy is reported by kind.
            stage: name of the stage.

        Raises:
            UserError: the logs hold nothing that could be learned from.
        """
        kept, annotations = paired(episodes, annotator.annotate(episodes))
        form = DreamFormat.build(
            world.actions,
            world.closing,
            world.vocabulary,
            kept,
            annotations,
            demos=options.demos,
            trace=options.trace,
            card=options.card,
        )
        with run.stage(stage) as phase:
            if phase.done:
                model = ExperienceModel.load(phase.dir / "dream", coevolve=options.coevolve)
            else:
                model = _fit(run, kept, annotations, form, replace(config, seed=run.seed), options, kind_of)
                model.save(phase.dir / "dream")
                phase.result.update(model.metrics)
        return cls(run, world, model, kept, annotations, options)

    def env(self) -> DreamEnv:
        """A dream of one episode."""
        return DreamEnv(self.model)

    def train(
        self,
        policy: Policy,
        algorithm: Algorithm,
        tasks: TaskSet,
        *,
        steps: int,
        groups: int,
        group_size: int,
        evaluator: Evaluator | None = None,
    ) -> str | None:
        """Train a policy in the dream, within a stage of the run; returns why it was halted, if it was.

        Args:
            policy: changed in place.
            algorithm: any.
            tasks: original tasks; only their instructions are used.
            steps: iterations.
            groups: tasks per iteration.
            group_size: rollouts per task.
            evaluator: a look at the real environment beside each check, for the curves; nothing is chosen by it.

        Raises:
            UserError: the dream is not deterministic.
        """
        options = self.options
        self._gate()
        collector = DreamCollector(self, policy, tasks, group_size=group_size)
        reasons: list[str] = []

        async def check(policy: Policy) -> _Look:
            step = min(len(self.watch.seen) * options.check_every, steps)  # the last look comes with the last step
            now, reason = await self._check(policy, tasks, step)
            if reason is not None:
                reasons.append(reason)
            beside = await evaluator(policy) if evaluator is not None else None
            return _Look(now, beside)

        train(
            policy,
            collector,
            algorithm,
            self.run,
            steps=steps,
            groups_per_step=groups,
            evaluator=check if options.check_every else None,
            eval_every=options.check_every,
            save_every=options.check_every or steps,
            stop_rules=(lambda _: reasons[-1] if reasons else None,),
            ledger="dream",
        )
        return reasons[-1] if reasons else None

    def metrics(self) -> dict[str, float]:
        """Held-out quality of the model, and agreement before and after RL."""
        out = {f"dream/{name}": value for name, value in self.model.metrics.items()}
        for (_, seen), when in zip(self.watch.seen[:1] + self.watch.seen[-1:], ("before", "after"), strict=False):
            out |= {f"dream/{name}, {when} RL": value for name, value in seen.metrics().items()}
        if self.determinism is not None:
            out["dream/different replays"] = float(self.determinism.different)
        return out

    def notes(self) -> list[str]:
        """What a reader should know of this dream, in sentences."""
        out = []
        if self.determinism is not None:
            d = self.determinism
            out.append(
                f"Same actions, same episode: {d.scripts} scripts replayed {d.replays} times, {d.different} differed."
            )
        for step, seen in self.watch.seen:
            out.append(
                f"Agreement at iteration {step}: the agent (T=1) succeeded in {seen.dream:.0%} of {seen.tasks} tasks "
                f"in the dream and {seen.real:.0%} of the same tasks in reality."
            )
        return out

    def state_dict(self) -> dict[str, Any]:
        """What `metrics` and `notes` tell of the training, JSON-ready; the model itself is saved when it is fitted."""
        return {"watch": self.watch.state_dict(), "determinism": self.determinism and asdict(self.determinism)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.watch.load_state_dict(state["watch"])
        self.determinism = SameActions(**state["determinism"]) if state["determinism"] else None

    # ------------------------------------------------------------------ within

    def _gate(self) -> None:
        """Refuse to train where the same actions give different episodes."""
        scripts = [(Task((Message.user(e.instruction),), id=e.task_id), e.actions) for e in self.episodes[:16]]
        seed = derive(self.run.seed, "gate")
        with self.model.memory.aside():
            self.determinism = run_sync(same_actions(self.env, scripts, replays=self.options.replays, seed=seed))
        if not self.determinism.passed:
            raise UserError(
                f"dream: the same actions gave different episodes ({self.determinism.example}). Training in it would "
                "reward luck. Decode greedily (model.greedy=true), or mend the simulator."
            )

    async def _check(self, policy: Policy, tasks: TaskSet, step: int) -> tuple[Agreement, str | None]:
        """Play the same tasks with the same policy in the dream and in reality; the second is why to stop, if so."""
        seed = derive(self.run.seed, "check", step)
        chosen = tasks.shuffle(seed).head(self.options.check_tasks)
        params = SamplingParams(temperature=1.0)
        sides: list[Evaluation] = []
        with self.model.memory.aside():
            for env, ledger in ((self.env, "dream"), (self.world.env, "check")):
                sides.append(await evaluate(policy, chosen, env, params=params, seed=seed))
                self.run.spend(**{ledger: sides[-1].env_steps})
        rates = [{task: sum(o) / len(o) for task, o in side.outcomes.items()} for side in sides]
        if not set(rates[0]) & set(rates[1]):
            why = next(iter(sides[0].reasons or sides[1].reasons), "no reason was given")
            raise UserError(
                f"dream: of {len(chosen)} tasks none could be played both in the dream and in reality ({why}). "
                "Fit the simulator on more logs."
            )
        now = agreement(*rates)
        return now, self.watch.observe(step, now, episodes=now.tasks)


def _fit(
    run: Run,
    episodes: Sequence[LoggedEpisode],
    annotations: Sequence[Annotation],
    form: DreamFormat,
    config: DreamConfig,
    options: DreamOptions,
    kind_of: KindOf | None,
) -> ExperienceModel:
    """Fit with progress and time left; every fiftieth part of the losses is logged."""
    with run.progress.track("fit experience model", 1) as bar:

        def progress(step: int, total: int, metrics: dict[str, float]) -> None:
            bar.total = total
            bar.show({"loss": metrics["nll"]})
            bar.advance()
            if step % max(1, total // 50) == 0:
                run.log(step, metrics)

        model = run_sync(
            ExperienceModel.fit(
                episodes, annotations, form,
                config=config, kind_of=kind_of, progress=progress, coevolve=options.coevolve,
            )
        )  # fmt: skip
    held = {k.removeprefix("heldout/"): v for k, v in model.metrics.items() if k.startswith("heldout/")}
    run.say("experience model, held-out exact: " + ", ".join(f"{k} {v:.3g}" for k, v in held.items()))
    return model


@dataclass(frozen=True)
class _Look:
    """A check, and what the evaluator saw beside it. The check's own real transitions are counted as "check"."""

    agreement: Agreement
    beside: Measured | None

    @property
    def env_steps(self) -> int:
        return self.beside.env_steps if self.beside is not None else 0

    def metrics(self) -> dict[str, float]:
        return (self.beside.metrics() if self.beside is not None else {}) | self.agreement.metrics()


class DreamCollector(TaskCollector):
    """A collector in the dream of a world, whose memory co-evolves with the agent."""

    def __init__(self, dream: Dream, policy: Policy, tasks: TaskSet, *, group_size: int) -> None:
        """Build curriculum, generator and rollouts."""
        options, seed = dream.options, dream.run.seed
        self.dream = dream
        generator = TaskGenerator(dream.model, dream.known, seed=derive(seed, "new tasks"))
        super().__init__(
            policy, dream.env, tasks, generator, seed=seed, group_size=group_size, generated=options.generated,
            seeds=options.seeds, proposals=options.proposals, explore=options.explore,
            max_failures=options.max_failures,
        )  # fmt: skip
        self._memory: dict[str, float] = {}

    async def collect(self, groups: int) -> list[Group]:
        """Let the finished dreams join the memory, then dream groups and propose new tasks."""
        self._memory = self.dream.model.memory.commit(self.inner.policy.version)
        return await super().collect(groups)

    def metrics(self) -> dict[str, float]:
        """Numbers of the last collection, of the memory and of the generator."""
        return super().metrics() | self._memory

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs, the co-evolved memory included."""
        return super().state_dict() | {
            "memory": self.dream.model.memory.state_dict(),
            "watch": self.dream.watch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.dream.model.memory.load_state_dict(state["memory"])
        self.dream.watch.load_state_dict(state["watch"])
