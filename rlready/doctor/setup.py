"""What the doctor examines: everything that decides a first update, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlready.algorithms import Algorithm, algorithm
from rlready.envs.base import Env, EnvFactory
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.tasks.base import TaskSet
from rlready.types import Group, Task

Collect = Callable[[], "Sequence[Group] | Awaitable[Sequence[Group]]"]


@dataclass(frozen=True)
class Setup:
    """A training set-up, as `train` would start it.

    Attributes:
        policy: sampler, renderer and learner.
        tasks: what is trained on.
        env: makes environments; None: a question and its answer.
        algorithm: or its name.
        params: decoding.
        group_size: episodes per task.
        groups: tasks in the batch that is looked at. Four are enough for nearly everything.
        max_steps: most actions per episode.
        deadline: seconds per episode, and per score.
        seed: of the batch.
        splits: held-out task sets by name, which must not leak; the tasks themselves are "train".
        max_lag: updates by which rollouts may be older than the policy they train.
        closing: the environment's action that ends an episode, if there is one.
        gold: writes a right answer to a task in the form that the reward wants; None: the usual forms are tried.
        collect: brings the groups in place of our own collector, for whoever has one.
        name: shown in the report.
    """

    policy: Policy
    tasks: TaskSet
    env: EnvFactory | None = None
    algorithm: Algorithm | str = "grpo"
    params: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=32))
    group_size: int = 8
    groups: int = 4
    max_steps: int | None = 50
    deadline: float = 30.0
    seed: int = 0
    splits: Mapping[str, TaskSet] = field(default_factory=dict)
    max_lag: int = 0
    closing: str | None = None
    gold: Callable[[Task], str] | None = None
    collect: Collect | None = None
    name: str = ""

    def __post_init__(self) -> None:
        """Check what cannot work.

        Raises:
            UserError: there are no tasks, or a number is out of range.
        """
        if not len(self.tasks):
            raise UserError(f"The set-up has no tasks: {self.tasks.name} is empty.")
        for key, least in (("group_size", 1), ("groups", 1), ("max_lag", 0)):
            if getattr(self, key) < least:
                raise UserError(f"The set-up's {key} is {getattr(self, key)}; it must be at least {least}.")

    def completed(self) -> tuple[Setup, Algorithm, EnvFactory]:
        """With the algorithm as an object bound to tasks and environment, an environment, and stop ids."""
        made = algorithm(self.algorithm) if isinstance(self.algorithm, str) else self.algorithm
        env = self.env or _chat(self.tasks)
        params = self.params if self.params.stop_ids else replace(self.params, stop_ids=self.policy.renderer.stop_ids)
        made = made.bind(self.tasks, env, params)
        name = self.name or self.tasks.name
        return replace(self, algorithm=made, env=env, params=params, name=name), made, env


def is_chat(env: EnvFactory) -> bool:
    """Whether a factory makes single questions and answers; a factory that fails makes something else."""
    try:
        made: Env = env()
    except Exception:
        return False
    return isinstance(made, ChatEnv)


def _chat(tasks: TaskSet) -> EnvFactory:
    limited = all(isinstance(t.data.get("choices"), (list, tuple)) and t.data["choices"] for t in tasks)
    return lambda: ChatEnv(choices="choices" if limited else None)
