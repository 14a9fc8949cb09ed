"""Train an agent in a gym, and say honestly whether that worked.

    gate        determinism, format, invalid actions: training starts only when all pass (`force` is recorded)
    clone       filtered cloning on the recorded successes; where that alone is enough, no dream is needed
    check       the clone on the full held-out set of the real environment, and the same tasks in dream and reality
    dream       RL in groups under the curriculum; agreement is measured again as it goes, real rounds mix and repair
    check       the trained agent on the same held-out tasks: the paired difference is the result

Every real transition is counted. What the last check needs is kept back before anything else is paid for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from rlready.aio import run_sync
from rlready.algorithms import Algorithm
from rlready.checkpoint import Stateful
from rlready.dream.gate import GateReport, gate
from rlready.dream.gym import Gym
from rlready.dreaming.budget import RealBudget
from rlready.dreaming.clone import clone
from rlready.dreaming.outcome import Outcome, Sampled
from rlready.dreaming.rounds import GymCollector, RealSide, blaming
from rlready.errors import UserError, did_you_mean
from rlready.evaluate import Evaluation, evaluate, paired
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.tiny import TinyConfig
from rlready.run import Run
from rlready.seeds import derive
from rlready.stopping import EntropyFall, KLJump, NoAction
from rlready.tasks.base import TaskSet
from rlready.tasks.scoring import RewardFn
from rlready.train import train

GATE = 8
"""Real transitions that the gate takes at most: two actions in each of four tasks."""


@dataclass(frozen=True)
class DreamTrainConfig:
    """Settings of `rlready dream train`; the algorithm's own stand beside, under its name. The numbers are ours.

    Attributes:
        steps: RL iterations in the dream.
        groups: tasks per iteration.
        group_size: episodes per task; they share one hidden world.
        temperature: of sampling.
        max_tokens: longest action, in tokens.
        deadline: seconds per episode.
        max_failures: share of dreams that may fail or be masked before training stops.
        clone_epochs, clone_batch_tokens: of filtered cloning.
        clone_from: "successes" (filtered cloning), or "all" recordings of agents.
        enough: success of the clone from which on no dream is needed; above 1 always dreams.
        generated: greatest share of generated tasks in a batch; 0 turns the task generator off.
        check_every: iterations between two measurements of dream against reality; 0 measures before and after only.
        check_tasks: tasks played on both sides in such a measurement, once each.
        allowed: how much the dream's flattery may grow before training halts.
        real_rounds: iterations that are played in reality where the budget allows, spread evenly: they train the
            policy (mixing) and then the simulator (repair).
        save_every: iterations between checkpoints.
        tokenizer: of a new tiny policy: "words", "bpe" (can write anything), "auto" (words where they are few and the
            agent chooses its actions from a list).
        vocab_size: of "bpe".
        optimizer: learning rate and all that; cloning and RL start fresh ones.
        rl_lr: learning rate of RL.
        tiny: shape of a new tiny policy.
    """

    steps: int = 60
    groups: int = 16
    group_size: int = 8
    temperature: float = 1.0
    max_tokens: int = 64
    deadline: float = 120.0
    max_failures: float = 0.1
    clone_epochs: int = 10
    clone_batch_tokens: int = 4000
    clone_from: Literal["successes", "all"] = "successes"
    enough: float = 0.95
    generated: float = 0.25
    check_every: int = 10
    check_tasks: int = 64
    allowed: float = 0.15
    real_rounds: int = 3
    save_every: int = 10
    tokenizer: Literal["auto", "words", "bpe"] = "auto"
    vocab_size: int = 512
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-3))
    rl_lr: float = 3e-4
    tiny: TinyConfig = field(default_factory=lambda: TinyConfig(dim=96, layers=3, heads=4, kv_heads=1, max_len=1024))

    def __post_init__(self) -> None:
        """Check what cannot work.

        Raises:
            UserError: a number is out of range; names the key.
        """
        least = {"steps": 0, "groups": 1, "group_size": 2, "max_tokens": 1, "clone_epochs": 0, "check_every": 0,
                 "clone_batch_tokens": 1, "vocab_size": 259, "check_tasks": 1, "real_rounds": 0,
                 "save_every": 0}  # fmt: skip
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {bound}.")
        if not 0 < self.temperature < math.inf:
            raise UserError(f"temperature is {self.temperature:g}; it must be above 0.")
        for name in ("deadline", "rl_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name):g}; it must be above 0.")
        if math.isnan(self.enough):
            raise UserError("enough is nan; it is a share of successes, or above 1 to train all the same.")
        for name, choices in (("clone_from", ("successes", "all")), ("tokenizer", ("auto", "words", "bpe"))):
            if getattr(self, name) not in choices:
                raise did_you_mean(name, getattr(self, name), choices)
        for name in ("generated", "max_failures", "allowed"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name):g}; it is a share, between 0 and 1.")


def train_in_dream(
    gym: Gym,
    policy: Policy,
    algorithm: Algorithm,
    run: Run,
    config: DreamTrainConfig,
    *,
    real: RealSide | None = None,
    budget: int | None = None,
    verifier: RewardFn | None = None,
    force: bool = False,
    cloned: bool = False,
) -> Outcome:
    """Gate, clone, dream, check.

    Args:
        gym: where to train.
        policy: changed in place.
        algorithm: of RL.
        run: keeps stages, progress and ledgers; an interrupted run goes on where it stopped.
        config: settings.
        real: the real environment with its tasks; None: nothing is checked, and the result says so.
        budget: most real transitions; None for no limit.
        verifier: the user's score, where the gym's reward source wants one.
        force: train although the gate failed; recorded in the run.
        cloned: the policy was cloned elsewhere, so cloning is left out.

    Raises:
        UserError: the gate failed, the budget cannot pay for the last check, or there is nothing to learn from.
    """
    torch.manual_seed(derive(run.seed, "torch"))  # dropout and the like; checkpoints keep it from here on
    ledger = RealBudget(budget)
    tasks = gym.tasks("train", verifier=verifier)
    if not len(tasks):
        raise UserError(
            f"The gym has no tasks to train on with reward source {gym.reward_source}; choose another, or record more."
        )
    if real is not None:
        held = real.cost(len(real.held_out), gym)
        ledger.reserve(GATE + 4 * held, f"the gate and the paired checks on {len(real.held_out)} held-out tasks")
    report, forced = _pass_gate(gym, run, real, ledger, force)
    out = Outcome(report, forced)
    params = SamplingParams(
        temperature=config.temperature, max_tokens=config.max_tokens, stop_ids=policy.renderer.stop_ids
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=config.max_tokens, stop_ids=policy.renderer.stop_ids)
    if real is not None:
        ledger.reserved = 4 * held

    if not cloned:
        _clone_stage(gym, policy, run, config)
    seed = derive(run.seed, "real check")
    if real is not None:
        out.clone, took = _real_check(run, "check clone", policy, real, greedy, seed, ledger, config.deadline)
        sampled, more = _real_check(run, "check clone, sampled", policy, real, params, seed, ledger, config.deadline)
        out.sampled = Sampled(config.temperature, sampled)
        ledger.keep(took + more)  # the second check is of the same tasks, and takes about as much
    dreamt = _dreamable(gym, verifier)
    out.dream["clone"] = _dream_check(run, "dream clone", policy, gym, dreamt, greedy, config.deadline)

    start = out.clone.success if out.clone is not None else out.dream["clone"]
    if start >= config.enough or not config.steps:
        out.skipped = (
            f"Filtered cloning alone succeeds in {start:.0%} of the held-out tasks: the logs are better than what RL "
            "in a dream could add, and no dream is needed. (enough=1.1 trains all the same.)"
            if config.steps
            else "steps=0: no RL was asked for."
        )
        run.say(out.skipped)
        out.budget = str(ledger)
        return out

    with run.stage("dream RL") as stage:
        grown = _Grown(gym)
        parts: dict[str, Stateful] = {"policy": _Weights(policy), "ledger": ledger, "gym": grown}
        if stage.done:
            stage.load(parts)
            out.halted = stage.result.get("halted")
        else:
            out.halted, grown.added = _rl(gym, policy, algorithm, run, config, tasks, params, real, ledger)
            stage.result["halted"] = out.halted
            stage.save(parts)
    out.dream["trained"] = _dream_check(run, "dream trained", policy, gym, dreamt, greedy, config.deadline)
    if real is not None:
        out.trained, _ = _real_check(run, "check trained", policy, real, greedy, seed, ledger, config.deadline)
        assert out.clone is not None and out.sampled is not None
        out.difference = paired(out.trained, out.clone)
        name = "check trained, sampled"
        out.sampled.trained, _ = _real_check(run, name, policy, real, params, seed, ledger, config.deadline)
        out.sampled.difference = paired(out.sampled.trained, out.sampled.clone)
    out.budget = str(ledger)
    return out


# ---------------------------------------------------------------------- stages


class _Weights:
    """A policy's weights as a part to save. The optimizer is not kept: every stage starts a fresh one."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def state_dict(self) -> dict[str, Any]:
        """The learner's state."""
        assert self.policy.learner is not None
        return self.policy.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`; the sampler gets the weights, too."""
        assert self.policy.learner is not None
        self.policy.learner.load_state_dict(state)
        self.policy.sync()


class _Grown:
    """What a gym learned from real rounds, as a part to save."""

    def __init__(self, gym: Gym) -> None:
        self.gym = gym
        self.added: list[LoggedEpisode] = []

    def state_dict(self) -> dict[str, Any]:
        """The episodes that joined, and the simulator's state."""
        return {"added": [e.to_json() for e in self.added], "simulator": self.gym.learned()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`, for a gym that has not grown."""
        self.added = [LoggedEpisode.from_json(record) for record in state["added"]]
        self.gym.restore(self.added, state["simulator"])


def check_gate(
    gym: Gym, real: RealSide | None = None, *, fingerprint: str = "", seed: int = 0, scripts: int = 24
) -> tuple[GateReport, int]:
    """Put a gym through the gate.

    Args:
        gym: what is to be trained in; where it was loaded from a folder, fresh sessions are compared.
        real: the real environment, for the form of its observations and errors.
        fingerprint: of parser, template and flags, as an earlier part of the run was trained under.
        seed: of the worlds and of the choice of recordings.
        scripts: recordings that are played, failed ones among them.

    Returns:
        The report, and the real transitions that it cost.
    """
    known = {} if real is None else {t.id: t for t in real.practice}
    ids = sorted(gym.library, key=lambda id: derive(seed, "gate script", id))
    if known:  # the real environment may know no task but its own
        ids = [i for i in ids if gym.library.episodes[i].task_id in known] or ids
    lost = [i for i in ids if not gym.library.episodes[i].success][: scripts // 2]
    chosen = [*lost, *(i for i in ids if i not in set(lost))][:scripts]
    recorded = [gym.library.episodes[i] for i in chosen]
    posed = [known.get(e.task_id) or gym.task(e.task_id, e.instruction) for e in recorded]
    played = [(task, [a for a in e.actions if a]) for task, e in zip(posed, recorded, strict=True)]
    sessions = [type(gym).load(gym.folder).env_factory(evaluation=True)] if gym.folder is not None else []
    metered, count = real.metered() if real is not None else (None, {"steps": 0})
    loud = None if metered is None else blaming(metered)
    report = run_sync(
        gate(
            gym.env_factory(evaluation=True), gym.domain, played, real=loud, sessions=sessions, recorded=recorded,
            fingerprint=fingerprint, reads=gym.state.reads, seed=seed,
        )
    )  # fmt: skip
    return report, count["steps"]


def _pass_gate(
    gym: Gym, run: Run, real: RealSide | None, ledger: RealBudget, force: bool
) -> tuple[GateReport, list[str]]:
    """Run the gate once per run.

    Raises:
        UserError: a check failed and `force` is not set.
    """
    with run.stage("gate") as stage:
        path = stage.dir / "gate.json"
        if stage.done:
            report = GateReport.from_json(json.loads(path.read_text(encoding="utf-8")))
        else:
            report, spent = check_gate(gym, real, seed=derive(run.seed, "gate"))
            path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
            stage.result["real"] = spent
            run.spend(real=spent, gate=spent)
    ledger.spend("gate", int(stage.result["real"]))
    run.say(str(report))
    failed = [check.name for check in report.checks if not check.passed]
    run.note(gate={c.name: c.passed for c in report.checks}, fingerprint=gym.domain.fingerprint, forced=failed)
    if not force:
        report.raise_for_failure()
    if failed:
        run.say(f"Forced past the gate ({', '.join(failed)}); the run keeps a note of it.")
    return report, failed


def _clone_stage(gym: Gym, policy: Policy, run: Run, config: DreamTrainConfig) -> None:
    with run.stage("clone") as stage:
        if stage.done:
            stage.load({"policy": _Weights(policy)})
            return
        numbers = clone(
            gym, policy, run, successes=config.clone_from == "successes", epochs=config.clone_epochs,
            batch_tokens=config.clone_batch_tokens,
        )  # fmt: skip
        stage.result.update(numbers)
        stage.save({"policy": _Weights(policy)})
        run.say(
            f"Cloned {numbers['recordings']:.0f} recordings in {numbers['steps']:.0f} steps, loss {numbers['loss']:.3f}"
            + (f"; {numbers['too_long']:.0f} were too long" if numbers["too_long"] else "")
        )


def _dreamable(gym: Gym, verifier: RewardFn | None, most: int = 200) -> TaskSet:
    """Tasks to show the agent's success in the dream on: held-out ones where the reward source can judge them."""
    for split in ("test", "dev"):
        if split in gym.splits and len(found := gym.tasks(split, verifier=verifier)) >= 10:
            return found.head(most)
    return gym.tasks("train", verifier=verifier).head(most)


def _real_check(
    run: Run,
    name: str,
    policy: Policy,
    real: RealSide,
    params: SamplingParams,
    seed: int,
    ledger: RealBudget,
    deadline: float,
) -> tuple[Evaluation, int]:
    """Evaluate on the full held-out set of the real environment, once per run; returns the transitions, too.

    Raises:
        UserError: no episode could be played.
    """
    with run.stage(name) as stage:
        path = stage.dir / "evaluation.json"
        if stage.done:
            found = Evaluation.from_json(json.loads(path.read_text(encoding="utf-8")))
        else:
            metered, count = real.metered()
            with run.progress.track(f"{name}, real", len(real.held_out)) as bar:
                found = run_sync(
                    evaluate(
                        policy, real.held_out, metered, params=params, max_steps=real.max_steps, seed=seed,
                        deadline=deadline, on_progress=lambda _done, _all: bar.advance(),
                    )
                )  # fmt: skip
            if not found.n:
                reason, times = max(found.reasons.items(), key=lambda item: item[1])
                raise UserError(
                    f"No episode of the {len(real.held_out)} held-out tasks could be played in the real environment. "
                    f"Commonest reason ({times} times): {reason.rstrip('.')}."
                )
            stage.result["real"] = count["steps"]
            run.spend(real=count["steps"], check=count["steps"])
            path.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    took = int(stage.result["real"])
    ledger.spend("check", took, reserved=True)
    run.say(f"{name}, real: {found}")
    return found, took


def _dream_check(
    run: Run, name: str, policy: Policy, gym: Gym, tasks: TaskSet, params: SamplingParams, deadline: float
) -> float:
    """Success on tasks of the gym, in the dream: shown beside the real one, never in its place."""
    with run.stage(name) as stage:
        if not stage.done:
            found = run_sync(
                evaluate(
                    policy,
                    tasks,
                    lambda: gym.env(evaluation=True),
                    params=params,
                    seed=derive(run.seed, "dream check"),
                    deadline=deadline,
                )
            )
            run.spend(dream=found.env_steps)
            stage.result["success"] = None if math.isnan(found.success) else found.success
    value = stage.result["success"]
    return math.nan if value is None else float(value)


def _rl(
    gym: Gym,
    policy: Policy,
    algorithm: Algorithm,
    run: Run,
    config: DreamTrainConfig,
    tasks: TaskSet,
    params: SamplingParams,
    real: RealSide | None,
    ledger: RealBudget,
) -> tuple[str | None, list[LoggedEpisode]]:
    """RL in the dream with real rounds and checks; why it was halted, if it was, and what joined the gym."""
    assert policy.learner is not None
    policy.learner.configure(OptimizerConfig(lr=config.rl_lr))
    if algorithm.needs_reference:  # the clone; a resumed run has it from its checkpoint
        policy.learner.freeze_reference()
    collector = GymCollector(gym, policy, tasks, config, run, params, real, ledger)
    train(
        policy,
        collector,
        algorithm,
        run,
        steps=config.steps,
        groups_per_step=config.groups,
        evaluator=collector.check,
        eval_every=config.check_every,
        save_every=config.save_every,
        stop_rules=(KLJump(), EntropyFall(), NoAction(), collector.why_to_stop),
        ledger="dream",
    )
    halted = run.noted("halted")
    return str(halted["reason"]) if halted else None, collector.added
