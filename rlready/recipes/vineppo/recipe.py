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

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlready.aio import run_sync
from rlready.algorithms import GRPO, RLOO, SFT, Algorithm, RestEM, VinePPO
from rlready.checkpoint import Stateful
from rlready.curriculum.samplers import Uniform
from rlready.doctor import Setup
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.evaluate import Evaluation, evaluate, evaluate_sync
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams, require_learner
from rlready.policy.tiny import TinyPolicy, clone_policy
from rlready.recipes.study import Study
from rlready.recipes.vineppo import chain
from rlready.recipes.vineppo.config import SMOKE, Config
from rlready.recipes.vineppo.critic import CriticPPO
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
from rlready.rollout.collect import Collector
from rlready.run import Run
from rlready.run_report import Report, Table
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.train import train
from rlready.values import batches_of
from rlready.values.draw import draw as draw_values

VINE, PPOS, CRITIC = "VinePPO", ("PPO, lambda 1", "PPO, lambda 0.95"), "PPO, lambda 1"
PARAMS = SamplingParams(temperature=1.0, max_tokens=chain.MAX_TOKENS)


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
        study.arm(name, policy, _training(run, policy, splits, algorithm, config), parts)
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


def full(run: Run, plan: bool = False) -> Report:
    """The paper's own scale: what it needs, with `--plan`.

    Raises:
        UserError: it was asked to run; serving at that scale comes in a later release.
    """
    if plan:
        return plan_of(run)
    raise UserError(
        "vineppo, preset full, draws tens of thousands of samples per update from a 1.1B or 7B model, which needs "
        "vLLM serving, and this release does not have it yet. See what it will need: rlready run vineppo --preset full "
        "--plan."
    )


def setup(run: Run, config: Config | None = None) -> Setup:
    """What `rlready doctor vineppo` examines: the first batch of VinePPO from an SFT policy, at the sizes of smoke."""
    config = config or SMOKE
    splits = chain.chains(config.problems, run.seed, config.lengths)
    policy = _new_policy(run, config)
    warm_start(run, policy, splits, config)
    require_learner(policy).configure(OptimizerConfig(lr=config.lr.vine))
    algorithm, _ = arms(config, run.seed)[VINE]
    return Setup(
        policy, splits["train"], ChatEnv, algorithm, PARAMS, group_size=config.group_size, seed=run.seed,
        splits={name: splits[name] for name in ("dev", "test")}, name="vineppo",
    )  # fmt: skip


def arms(config: Config, seed: int) -> dict[str, tuple[Algorithm, float]]:
    """Every arm's algorithm and learning rate."""
    # The KL as published: k3, its own gradient alone, clamped, summed over an answer's tokens.
    shared: dict[str, Any] = {
        "epochs": config.epochs, "minibatches": config.minibatches, "trust": "clip", "clip_low": config.clip,
        "clip_high": config.clip, "kl": config.kl, "kl_gradient": "naive", "kl_average": "constant", "kl_clamp": 10.0,
        "truncated": "zero", "seed": seed,
    }  # fmt: skip
    if not config.kl:
        shared = {name: value for name, value in shared.items() if not name.startswith("kl")}
    lr = config.lr
    ppo = shared | {"value_clip": config.value_clip, "critic_epochs": config.critic_epochs}
    return {
        VINE: (VinePPO(k=config.k, steps=chain.STEPS, **shared), lr.vine),
        PPOS[0]: (CriticPPO(lam=1.0, **ppo), lr.ppo),
        PPOS[1]: (CriticPPO(lam=0.95, **ppo), lr.ppo),
        "GRPO": (GRPO(**shared), lr.grpo),
        "RLOO": (RLOO(**shared), lr.rloo),
        "RestEM": (RestEM(seed=seed), lr.restem),
    }


def warm_start(run: Run, policy: Policy, splits: dict[str, TaskSet], config: Config) -> str | None:
    """SFT on worked solutions until the accuracy at T=1 on dev tasks reaches `stop_at`; why it stopped short, if so."""
    dev = splits["dev"].head(config.check_tasks)
    rows = chain.demonstrations(splits["train"], policy.renderer)
    reached = 0.0
    with run.progress.track("SFT", 1) as bar:

        def on_step(step: int, total: int, metrics: dict[str, float]) -> bool:
            nonlocal reached
            bar.total = total
            bar.advance()
            if step % config.check_every:
                return False
            policy.sync()
            found = evaluate_sync(policy, dev, ChatEnv, params=PARAMS, seed=derive(run.seed, "sft check"))
            reached = found.success
            run.log(step, metrics | {"eval/success": reached})
            return reached >= config.stop_at

        SFT(seed=run.seed).fit_rows(
            policy, rows, epochs=config.sft_epochs, batch_tokens=config.sft_tokens, on_step=on_step
        )
    if reached < config.stop_at:
        return f"{config.sft_epochs} epochs brought {reached:.0%} at T=1, and {config.stop_at:.0%} were wanted"
    return None


def _training(
    run: Run, policy: TinyPolicy, splits: dict[str, TaskSet], algorithm: Algorithm, config: Config
) -> Callable[[], str | None]:
    """The work that trains an arm: the same prompts for all, RestEM's in a few large batches."""
    rounds = isinstance(algorithm, RestEM)
    steps = config.rounds if rounds else config.iterations
    groups = config.groups * config.iterations // steps
    tasks, dev = splits["train"], splits["dev"].shuffle(run.seed).head(config.eval_tasks)

    async def look(policy: Policy) -> Evaluation:
        return await evaluate(policy, dev, ChatEnv, params=PARAMS, seed=run.seed)

    def work() -> str | None:
        require_learner(policy).freeze_reference()
        collector = Collector(
            policy, ChatEnv, tasks, Uniform(tasks, derive(run.seed, "prompts")), group_size=config.group_size,
            params=PARAMS, seed=derive(run.seed, "rollouts"),
        )  # fmt: skip
        train(
            policy, collector, algorithm.bind(tasks, ChatEnv, PARAMS), run, steps=steps, groups_per_step=groups,
            evaluator=look, eval_every=1 if rounds else config.eval_every, save_every=config.eval_every,
        )  # fmt: skip
        return None

    return work


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
        return stage.result["metrics"], tables, stage.result.get("notes", [])


def _judged(curves: dict[str, Curve]) -> dict[str, float]:
    out = {f"best/{name}": c.best[0] for name, c in curves.items()}
    out |= {f"tokens/{name}": c.tokens[-1] for name, c in curves.items()}
    out["updates ratio"] = updates_ratio(curves[VINE], [curves[name] for name in PPOS])
    return out


def _new_policy(run: Run, config: Config) -> TinyPolicy:
    return TinyPolicy.create(chain.renderer(), config.model, run.seed, OptimizerConfig(lr=config.sft_lr, warmup=20))


def _head(tasks: TaskSet, n: int | None) -> TaskSet:
    return tasks if n is None else tasks.head(n)
