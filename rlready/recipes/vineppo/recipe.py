"""VinePPO on chains of arithmetic: PPO with tried-out values, against PPO with a critic and against methods without.

What this recipe leaves out of the paper, and why: a language model with prior knowledge (a transformer of 0.8M
parameters learns the task from worked solutions, as the paper's models start from SFT), nucleus sampling (temperature 1
without a cut, so that all arms see the same distribution), and claims about wall-clock time: on one CPU core probes
cost what they cost, and the seconds are shown.

All arms start from the same SFT policy and see the same prompts in the same order; epochs, minibatches, clip and KL are
one setting, so they differ in credit (GRPO also in its mean per answer; RestEM is no policy gradient). Learning rates
were tuned for each arm on a seed that is not recorded.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rlready.aio import run_sync
from rlready.algorithms import Algorithm, RestEM
from rlready.checkpoint import Stateful
from rlready.doctor import Setup
from rlready.envs.chat import ChatEnv
from rlready.policy.base import OptimizerConfig, Policy, require_learner
from rlready.policy.tiny import TinyPolicy, clone_policy
from rlready.recipes.study import Study
from rlready.recipes.vineppo import chain
from rlready.recipes.vineppo.arms import CRITIC, PARAMS, PPOS, VINE, arms, training, warm_start
from rlready.recipes.vineppo.config import DOCTOR, SMOKE, Config, Full
from rlready.recipes.vineppo.critic import CriticPPO
from rlready.recipes.vineppo.full import FULL, full_of
from rlready.recipes.vineppo.measure import (
    Curve,
    Values,
    add_batches,
    cost_table,
    curve_of,
    draw_curves,
    measure_values,
    updates_ratio,
)
from rlready.recipes.vineppo.plan import plan as plan_of
from rlready.run import Run
from rlready.run_report import Report, Table
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.values import batches_of
from rlready.values.draw import draw as draw_values

CONFIG = Config


def smoke(run: Run, config: Config = SMOKE) -> Report:
    """The whole path in seconds; its numbers mean nothing."""
    return small(run, config)


def small(run: Run, config: Config | None = None) -> Report:
    """The comparison that the claims are judged by, in minutes on one core."""
    config = config or Config()
    splits = chain.chains(config.problems, run.seed, config.lengths)
    study = Study(
        run, ChatEnv, _head(splits["dev"], config.dev_tasks), {"test": _head(splits["test"], config.test_tasks)}
    )
    start = _new_policy(run, config)
    study.arm("SFT", start, lambda: warm_start(run, start, splits, config))

    policies: dict[str, TinyPolicy] = {}
    critics: dict[str, TinyPolicy] = {}
    for name, (algorithm, lr) in arms(config, run.seed).items():
        policy = policies[name] = clone_policy(start, OptimizerConfig(lr=lr))
        parts: dict[str, Stateful] = {}
        if isinstance(algorithm, CriticPPO):
            critics[name] = clone_policy(start, OptimizerConfig(lr=config.lr.critic))
            algorithm = algorithm.with_critic(critics[name])
            parts["critic"] = require_learner(critics[name])
        study.arm(name, policy, training(run, policy, splits, algorithm, config), parts)
    curves = {name: curve_of(run.dir, name) for name in policies}

    numbers, tables, unmeasured = _values(run, policies[CRITIC], critics[CRITIC], splits["dev"], config)
    notes = [f"{VINE} against {name}, T=1: {study.difference(VINE, name, mode='sampled')}." for name in policies
             if name != VINE]  # fmt: skip
    return run.report(
        "VinePPO on chain arithmetic: accuracy on held-out problems",
        tables=[*study.tables(), cost_table(curves), *tables],
        metrics=study.metrics() | _judged(curves) | numbers,
        notes=notes + unmeasured,
        plot="eval/success",
        plots=[draw_curves(run.dir / "curves.png", curves), "values.png", study.draw(run.dir / "agents.png")],
    )


def full(run: Run, plan: bool = False, config: Full = FULL) -> Report:
    """The paper's settings on a local checkpoint and local problems; with `--plan`, what they need.

    Raises:
        UserError: no model or no data was given, or it is not there.
    """
    return plan_of(run, config) if plan else full_of(run, config)


def setup(run: Run, config: Config | None = None) -> Setup:
    """What `rlready doctor vineppo` examines: the first batch of VinePPO from an SFT policy that is sometimes right."""
    config = config or DOCTOR
    splits = chain.chains(config.problems, run.seed, config.lengths)
    policy = _new_policy(run, config)
    warm_start(run, policy, splits, config)
    require_learner(policy).configure(OptimizerConfig(lr=config.lr.vine))
    algorithm, _ = arms(config, run.seed)[VINE]
    return Setup(
        policy, splits["train"], ChatEnv, algorithm, PARAMS, group_size=config.group_size, seed=run.seed,
        splits={name: splits[name] for name in ("dev", "test")}, name="vineppo",
    )  # fmt: skip


def _values(
    run: Run, policy: Policy, value: Policy, tasks: TaskSet, config: Config
) -> tuple[dict[str, float], list[Table], list[str]]:
    """How good values by critic and by probes are, and what credit does to the gradient: numbers, tables, notes."""
    seed = derive(run.seed, "values")

    async def work() -> Values:
        values = await measure_values(policy, value, tasks, chain.STEPS, PARAMS, seed, config.values)
        batches = await batches_of(
            policy, tasks, ChatEnv, batches=config.batches, groups=config.groups, group_size=config.group_size,
            params=PARAMS, seed=seed,
        )  # fmt: skip
        compared: dict[str, Algorithm] = {}
        for name, (algorithm, _) in arms(config, run.seed).items():
            if isinstance(algorithm, CriticPPO):
                compared[name] = replace(algorithm, critic_epochs=0).with_critic(value)
            elif not isinstance(algorithm, RestEM):
                compared[name] = algorithm.bind(tasks, ChatEnv, PARAMS)
        await add_batches(values, policy, compared, batches)
        return values

    with run.stage("values") as stage:
        if not stage.done:
            run.say(f"Values at the end of {CRITIC}: the truth by rollouts")
            values = run_sync(work())
            draw_values(run.dir / "values.png", values.analysis, title=f"Values at the end of {CRITIC}")
            stage.result["metrics"] = values.metrics()
            stage.result["tables"] = [[t.title, t.columns, t.rows] for t in values.analysis.tables()]
            stage.result["notes"] = values.analysis.notes
        tables = [Table(*table) for table in stage.result["tables"]]
        kept = {name: math.nan if value is None else value for name, value in stage.result["metrics"].items()}
        return kept, tables, stage.result.get("notes", [])


def _judged(curves: dict[str, Curve]) -> dict[str, float]:
    out = {f"best/{name}": c.best[0] for name, c in curves.items()}
    out |= {f"tokens/{name}": c.tokens[-1] for name, c in curves.items()}
    out["updates ratio"] = updates_ratio(curves[VINE], [curves[name] for name in PPOS])
    return out


def _new_policy(run: Run, config: Config) -> TinyPolicy:
    return TinyPolicy.create(chain.renderer(), config.model, run.seed, OptimizerConfig(lr=config.sft_lr, warmup=20))


def _head(tasks: TaskSet, n: int | None) -> TaskSet:
    return tasks if n is None else tasks.head(n)
