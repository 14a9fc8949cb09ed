"""The arms: their algorithms, the SFT that they start from, and how each is trained. Small and full share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlready.algorithms import GRPO, RLOO, SFT, Algorithm, RestEM, VinePPO
from rlready.curriculum.samplers import Uniform
from rlready.envs.chat import ChatEnv
from rlready.evaluate import Evaluation, evaluate, evaluate_sync
from rlready.policy.base import Policy, SamplingParams, require_learner
from rlready.recipes.vineppo import chain
from rlready.recipes.vineppo.config import Arms
from rlready.recipes.vineppo.critic import CriticPPO
from rlready.rollout.collect import Collector
from rlready.rollout.steps import StepRule
from rlready.run import Run
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.train import train

VINE, PPOS, CRITIC = "VinePPO", ("PPO, lambda 1", "PPO, lambda 0.95"), "PPO, lambda 1"
PARAMS = SamplingParams(temperature=1.0, max_tokens=chain.MAX_TOKENS)


def arms(config: Arms, seed: int, steps: StepRule = chain.STEPS) -> dict[str, tuple[Algorithm, float]]:
    """Every arm's algorithm and learning rate.

    Args:
        config: sizes and settings.
        seed: of the algorithms' own draws.
        steps: how VinePPO cuts answers.
    """
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
        VINE: (VinePPO(k=config.k, max_states=config.max_states, steps=steps, **shared), lr.vine),
        PPOS[0]: (CriticPPO(lam=1.0, **ppo), lr.ppo),
        PPOS[1]: (CriticPPO(lam=0.95, **ppo), lr.ppo),
        "GRPO": (GRPO(**shared), lr.grpo),
        "RLOO": (RLOO(**shared), lr.rloo),
        "RestEM": (RestEM(minibatches=config.restem_minibatches, seed=seed), lr.restem),
    }


def warm_start(
    run: Run, policy: Policy, splits: Mapping[str, TaskSet], config: Arms, params: SamplingParams = PARAMS,
    deadline: float = 60.0, column: str = "solution",
) -> str | None:  # fmt: skip
    """SFT on worked solutions until the accuracy on dev tasks, as RL samples, is `stop_at`.

    Returns:
        Why it fell short, if it did.
    """
    dev = splits["dev"].head(config.check_tasks)
    rows = chain.demonstrations(splits["train"], policy.renderer, column)
    reached = 0.0
    with run.progress.track("SFT", 1) as bar:

        def on_step(step: int, total: int, metrics: dict[str, float]) -> bool:
            nonlocal reached
            bar.total = total
            bar.advance()
            if step % config.check_every:
                return False
            policy.sync()
            found = evaluate_sync(
                policy, dev, ChatEnv, params=params, seed=derive(run.seed, "sft check"), deadline=deadline
            )
            reached = found.success
            run.log(step, metrics | {"eval/success": reached})
            return config.stop_at is not None and reached >= config.stop_at

        SFT(seed=run.seed).fit_rows(
            policy, rows, epochs=config.sft_epochs, batch_tokens=config.sft_tokens, on_step=on_step
        )
    if config.stop_at is not None and reached < config.stop_at:
        return f"{config.sft_epochs} epochs brought {reached:.0%} at T=1, and {config.stop_at:.0%} were wanted"
    return None


def training(
    run: Run, policy: Policy, splits: Mapping[str, TaskSet], algorithm: Algorithm, config: Arms,
    params: SamplingParams = PARAMS, deadline: float = 60.0,
) -> Callable[[], str | None]:  # fmt: skip
    """The work that trains an arm: the same prompts for all, RestEM's in a few large batches.

    Args:
        run: keeps it.
        policy: learns.
        splits: "train" and "dev".
        algorithm: of the arm.
        config: sizes and settings.
        params: of the rollouts.
        deadline: seconds per answer.
    """
    rounds = isinstance(algorithm, RestEM)
    steps = config.rounds if rounds else config.iterations
    groups = config.groups * config.iterations // steps
    tasks, dev = splits["train"], splits["dev"].shuffle(run.seed).head(config.eval_tasks)

    async def look(policy: Policy) -> Evaluation:
        return await evaluate(policy, dev, ChatEnv, params=params, seed=run.seed, deadline=deadline)

    def work() -> str | None:
        require_learner(policy).freeze_reference()
        collector = Collector(
            policy, ChatEnv, tasks, Uniform(tasks, derive(run.seed, "prompts")), group_size=config.group_size,
            params=params, seed=derive(run.seed, "rollouts"), deadline=deadline,
        )  # fmt: skip
        train(
            policy, collector, algorithm.bind(tasks, ChatEnv, params), run, steps=steps, groups_per_step=groups,
            evaluator=look, eval_every=1 if rounds else config.eval_every, save_every=config.eval_every,
        )  # fmt: skip
        return None

    return work
