"""From tasks, and an environment if there is one, to a trained tiny policy in one call.

    policy = rl.fit(tasks, Thermostat, "grpo", steps=50, max_steps=12)

`rlready train` does the same from the command line. Whoever wants other parts (a curriculum, a recipe's stages, a
policy of another kind) puts them together: `Collector`, `train`, `evaluate`.

A tiny policy's vocabulary comes from text. Tasks bring theirs; what an environment says is heard by playing a few
episodes at random before training, and since it may say other things later, the tokenizer is then a byte-level one
that can read and write anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rlready.aio import run_sync
from rlready.algorithms import Algorithm, algorithm
from rlready.curriculum.samplers import Uniform
from rlready.envs.base import EnvFactory, Observation
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.evaluate import evaluate
from rlready.policy.base import OptimizerConfig, Policy, SamplingParams
from rlready.policy.process import in_process
from rlready.policy.render import ChatRenderer
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import TextTokenizer, bpe_tokenizer, word_tokenizer
from rlready.rollout.collect import Collector, play_many
from rlready.run import Run
from rlready.seeds import rng
from rlready.tasks.base import TaskSet, score_by_env
from rlready.train import train
from rlready.types import Task, Trajectory, Turn

Kind = Literal["auto", "words", "bpe"]
Where = Literal["inline", "process"]
SHAPE = TinyConfig(dim=64, layers=2, heads=4, kv_heads=1)
_MOST_WORDS = 2000


def fit(
    tasks: TaskSet,
    env: EnvFactory | None = None,
    by: str | Algorithm = "grpo",
    *,
    policy: Policy | None = None,
    dev: TaskSet | None = None,
    run: Run | None = None,
    root: str | Path = "runs",
    seed: int = 0,
    steps: int = 100,
    groups: int = 16,
    group_size: int = 8,
    temperature: float = 1.0,
    max_tokens: int = 32,
    max_steps: int = 50,
    deadline: float = 60.0,
    max_failures: float = 0.05,
    eval_every: int = 0,
    save_every: int = 20,
    max_lag: int = 0,
    sampler: Where = "inline",
) -> Policy:
    """Train a policy on tasks; a run folder keeps everything.

    Args:
        tasks: what to learn.
        env: an Env class, or anything that makes an environment; None: a question and its answer.
        by: the algorithm, or its name.
        policy: what is trained; None: `tiny_policy(tasks, env)`.
        dev: tasks to evaluate on, greedily.
        run: where it is written; None: a new folder below `root`, closed at the end.
        root: the folder that holds the runs.
        seed: of everything random; a given run has its own.
        steps: updates.
        groups: tasks per update.
        group_size: episodes per task.
        temperature: of sampling.
        max_tokens: longest answer, in tokens.
        max_steps: most actions per episode.
        deadline: seconds per episode: boot, steps and grading.
        max_failures: share of episodes whose environment or grader may fail before training stops.
        eval_every: steps between evaluations; 0 evaluates before the first step and after the last.
        save_every: steps between checkpoints.
        max_lag: updates by which a group may be older than the policy it trains: so far ahead rollouts may run while
            the policy learns. 0: in turns.
        sampler: "inline", or "process": the policy samples in a process of its own, so that both go on at once.

    Returns:
        The trained policy.

    Raises:
        UserError: nothing gives a reward, the settings cannot work, or what `train` and `Collector` raise.
    """
    rewarded(tasks, env)
    learning = algorithm(by) if isinstance(by, str) else by
    if run is None:
        with Run.create(tasks.name, seed=seed, root=root, algorithm=type(learning).__name__.lower()) as run:
            return fit(
                tasks, env, learning, policy=policy, dev=dev, run=run, steps=steps, groups=groups,
                group_size=group_size, temperature=temperature, max_tokens=max_tokens, max_steps=max_steps,
                deadline=deadline, max_failures=max_failures, eval_every=eval_every, save_every=save_every,
                max_lag=max_lag, sampler=sampler,
            )  # fmt: skip
    make = env or chat(tasks)
    policy = policy or tiny_policy(tasks, env, seed=run.seed)
    if learning.needs_reference and policy.learner is not None:
        policy.learner.freeze_reference()  # what training starts from; a resumed run has it from its checkpoint
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, stop_ids=policy.renderer.stop_ids)
    greedy = replace(params, temperature=0.0)
    with sampling(policy, sampler) as acting:
        collector = Collector(
            acting, make, tasks, Uniform(tasks, run.seed), group_size=group_size, params=params, max_steps=max_steps,
            deadline=deadline, max_failures=max_failures, seed=run.seed, max_lag=max_lag,
        )  # fmt: skip
        train(
            acting, collector, learning.bind(tasks, make, params), run, steps=steps, groups_per_step=groups,
            eval_every=eval_every, save_every=save_every,
            evaluator=None if dev is None else lambda p: evaluate(
                p, dev, make, params=greedy, max_steps=max_steps, deadline=deadline, seed=run.seed
            ),
        )  # fmt: skip
    for reason, times in collector.failures.most_common(3):
        run.say(f"{times} of {collector.episodes} episodes were left out: {reason}")
    return policy


def sampling(policy: Policy, where: Where) -> AbstractContextManager[Policy]:
    """The policy as it samples while a block runs: in this process, or in one of its own (`policy.process`).

    Raises:
        UserError: there is no such place, or the policy cannot sample there.
    """
    if where not in get_args(Where):
        raise UserError(f'sampler="{where}" is unknown; choose {" or ".join(get_args(Where))}.')
    return nullcontext(policy) if where == "inline" else in_process(policy)


def tiny_policy(
    tasks: TaskSet | Sequence[Task],
    env: EnvFactory | None = None,
    *,
    tokenizer: Kind | TextTokenizer = "auto",
    vocab_size: int = 1024,
    shape: TinyConfig = SHAPE,
    optimizer: OptimizerConfig | None = None,
    seed: int = 0,
) -> TinyPolicy:
    """A tiny transformer from scratch, with a tokenizer of the tasks' and the environment's text.

    Args:
        tasks: their prompts, and all strings and numbers of their data, so that answers can be written.
        env: played at random for a few episodes, to hear what it says.
        tokenizer: "words" (every word is one token), "bpe" (can write anything), "auto" (words where there are at most
            2,000 and no environment), or a tokenizer with the tokens `<s>`, `<turn>` and `<end>`.
        vocab_size: of "bpe".
        shape: of the transformer; its `vocab_size` is the tokenizer's.
        optimizer: learning rate 1e-3 by default.
        seed: of the first weights and of the random play.

    Raises:
        UserError: the settings cannot work.
    """
    if not isinstance(tokenizer, TextTokenizer):
        heard = [] if env is None else listen(tasks, env, seed=seed)
        kind = "bpe" if tokenizer == "auto" and env is not None else tokenizer
        tokenizer = build_tokenizer([*texts_of(tasks), *heard], kind, vocab_size)
    return TinyPolicy.create(
        dialect(tokenizer),
        replace(shape, vocab_size=len(tokenizer)),
        seed=seed,
        optimizer=optimizer or OptimizerConfig(lr=1e-3),
    )


def dialect(tokenizer: TextTokenizer) -> ChatRenderer:
    """The compact dialect over a tokenizer of `build_tokenizer`, every turn closed by an end token."""
    return ChatRenderer(tokenizer, bos="<s>", turn="<turn>", end="<end>")


def build_tokenizer(texts: Sequence[str], kind: Kind = "auto", vocab_size: int = 1024) -> TextTokenizer:
    """A tokenizer of some texts; see `tiny_policy`."""
    if kind == "auto":
        kind = "words" if len({word for text in texts for word in text.split()}) <= _MOST_WORDS else "bpe"
    return word_tokenizer(texts, ("<s>", "<turn>", "<end>")) if kind == "words" else bpe_tokenizer(texts, vocab_size)


def texts_of(tasks: Iterable[Task]) -> list[str]:
    """Prompts, and all strings and numbers of the tasks' data."""
    return [text for task in tasks for text in _texts(task)]


def listen(
    tasks: TaskSet | Sequence[Task], env: EnvFactory, *, episodes: int = 32, steps: int = 16, seed: int = 0
) -> list[str]:
    """Every text that an environment says, and every action that it offers, in a few episodes of random play.

    Where it offers no actions, texts of the task are written. Episodes that fail are passed over: training counts them
    and says why.

    Raises:
        UserError: the environment blocks.
    """
    ears = _Ears()
    unscored = TaskSet(list(tasks)[:episodes])
    run_sync(_play(unscored, env, ears, min(episodes, 4 * len(unscored)), seed, steps))
    return list(ears.heard)


async def _play(tasks: TaskSet, env: EnvFactory, ears: _Ears, episodes: int, seed: int, steps: int) -> None:
    await play_many(tasks, env, ears, episodes, seed, max_steps=steps, deadline=30.0, watchdog=45.0)


class _Ears:
    """An actor that plays at random and remembers what it is shown."""

    def __init__(self) -> None:
        self.heard: dict[str, None] = {}

    def start(self, task: Task, seed: int, sample: int = 0) -> _Listener:
        return _Listener(self.heard, task, seed)


@dataclass
class _Listener:
    heard: dict[str, None]
    task: Task
    seed: int

    async def act(self, observation: Observation, trajectory: Trajectory) -> Turn:
        said = [m.text for m in observation.messages]
        actions = list(observation.actions or ())
        self.heard.update(dict.fromkeys(said + actions))
        choices = actions or _texts(self.task) or ["?"]
        return Turn([], [], text=rng(self.seed, "listen", len(trajectory.turns)).choice(choices))

    def close(self) -> None:
        pass


def chat(tasks: Iterable[Task]) -> EnvFactory:
    """A question and its answer; where every task has a list under "choices", answers are limited to it."""
    limited = all(isinstance(t.data.get("choices"), (list, tuple)) and t.data["choices"] for t in tasks)
    return lambda: ChatEnv(choices="choices" if limited else None)


def rewarded(tasks: TaskSet, env: EnvFactory | None) -> None:
    """Refuse tasks that nothing gives a reward for.

    Raises:
        UserError: there is no score and no environment.
    """
    if env is None and tasks.scorer is score_by_env:
        raise UserError(
            f"The tasks of {tasks.name} have no score, and without an environment nothing else gives a reward. "
            "Pass score=... to the task set (such as rl.rewards.math), or name an environment."
        )


def _texts(task: Task) -> list[str]:
    found = [message.text for message in task.prompt]
    stack: list[Any] = [task.data]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, (int, float)):
            found.append(str(value))
    return found
