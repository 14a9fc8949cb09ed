"""Which tasks are worth training on: a filter in two passes that also finds wrong references (arXiv 2506.10910).

    1. a first policy answers every task n times; tasks that it never or nearly always solves are dropped;
    2. a better policy, trained by RL on what was left, answers *every* task again, dropped ones included; what it
       finds easy or never solves is dropped, and so is a task on which most of its answers agree with each other but
       not with the reference: then the reference is the likelier mistake.

The first pass alone would throw away what only the first policy cannot do, and could not tell a hard task from a wrong
one. Works with any task set and verifier; whether two answers are the same is decided by a function from a trajectory
to its answer in normal form.

    graded = await grade(policy, tasks, env, answer=lambda t: answer_of(form, t))
    first = first_pass(graded)                    # then train on tasks.filter(lambda t: t.id in first.kept)
    second = second_pass(await grade(better, tasks, env, answer=...))
    second.counts(), second.reasons
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import Policy, SamplingParams
from rlready.rollout.actors import Actor, PolicyActor
from rlready.rollout.collect import play_many
from rlready.rollout.gather import Progress
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Trajectory

KEPT = "kept"
NEVER = "never solved"
EASY = "nearly always solved"
REFERENCE = "wrong reference"
UNJUDGED = "not judged"
REASONS = (KEPT, NEVER, EASY, REFERENCE, UNJUDGED)


@dataclass(frozen=True)
class Graded:
    """What a policy's samples of one task came to.

    Attributes:
        task: its id.
        samples: valid samples; failed ones (environment or grader) are left out.
        right: samples whose verdict was right.
        common: the commonest answer in normal form among all samples that gave one; empty where none did. Of equally
            common ones it is the one that came first.
        agreeing: samples with that answer.
        common_right: whether a sample with that answer was judged right.
    """

    task: str
    samples: int
    right: int
    common: str = ""
    agreeing: int = 0
    common_right: bool = False

    @classmethod
    def of(cls, task: str, trajectories: Sequence[Trajectory], answer: Callable[[Trajectory], str]) -> Graded:
        """Sum up the samples of one task."""
        valid = [t for t in trajectories if not t.excluded]
        answers = [answer(t) for t in valid]
        said = Counter(a for a in answers if a)
        common, agreeing = said.most_common(1)[0] if said else ("", 0)
        sure = any(t.success for t, a in zip(valid, answers, strict=True) if a == common and agreeing)
        return cls(task, len(valid), sum(t.success for t in valid), common, agreeing, sure)

    @property
    def rate(self) -> float:
        """Share of samples that were right; 0 where there is none."""
        return self.right / max(1, self.samples)


@dataclass
class Filtered:
    """What a pass kept and why it dropped the rest.

    Attributes:
        reasons: by task id, one of `REASONS`, in the order of the tasks.
        graded: by task id, what it was decided by.
        settings: the bounds.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    graded: dict[str, Graded] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> set[str]:
        """Ids of the tasks that stay."""
        return set(self.dropped_for(KEPT))

    def dropped_for(self, reason: str) -> list[str]:
        """Ids with a reason, in the order of the tasks."""
        return [task for task, why in self.reasons.items() if why == reason]

    def counts(self) -> dict[str, int]:
        """Number of tasks by reason; every reason is there."""
        found = Counter(self.reasons.values())
        return {reason: found[reason] for reason in REASONS}

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "counts": self.counts(),
            "settings": self.settings,
            "tasks": [asdict(self.graded[task]) | {"reason": why} for task, why in self.reasons.items()],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Filtered:
        """Inverse of `to_json`."""
        out = cls(settings=dict(record["settings"]))
        for line in record["tasks"]:
            kw = dict(line)
            out.reasons[kw["task"]] = kw.pop("reason")
            out.graded[kw["task"]] = Graded(**kw)
        return out


async def grade(
    who: Policy | Actor,
    tasks: TaskSet,
    env: EnvFactory,
    *,
    answer: Callable[[Trajectory], str],
    samples: int = 16,
    params: SamplingParams | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
    **options: Any,
) -> list[Graded]:
    """Answer every task `samples` times.

    Args:
        who: a policy, sampled at temperature 1 unless `params` say otherwise, or any actor.
        tasks: all of it; graded by its score.
        env: makes a fresh environment for each episode.
        answer: a trajectory's answer in normal form; empty where it gives none.
        samples: per task; 16 in the paper.
        params: decoding of a policy.
        seed: of worlds and sampling.
        on_progress: called with (episodes done, episodes asked for).
        options: further ones of `rollout.collect.play_many`, such as `max_steps` and `deadline`.

    Returns:
        One per task, in order.

    Raises:
        UserError: there are no tasks, or fewer than two samples, which say nothing about agreement.
    """
    if not len(tasks) or samples < 2:
        raise UserError(
            f"{tasks.name}: grading difficulty needs tasks and 2 samples each, not {len(tasks)}, {samples}."
        )
    actor: Actor = PolicyActor(who, params, derive(seed, "difficulty")) if isinstance(who, Policy) else who
    plays = [task for task in tasks for _ in range(samples)]
    played = await play_many(tasks, env, actor, plays, seed, on_progress=on_progress, **options)
    by_task: dict[str, list[Trajectory]] = {task.id: [] for task in tasks}
    for trajectory in played:
        by_task[trajectory.task.id].append(trajectory)
    return [Graded.of(task, each, answer) for task, each in by_task.items()]


def first_pass(graded: Sequence[Graded], *, easy: float = 0.9) -> Filtered:
    """Drop what was never solved, and what was solved at least as often as `easy`.

    Args:
        graded: by the first policy.
        easy: share of right samples from which a task is too easy (ours; the paper says "nearly always").

    Raises:
        UserError: a bound is no share.
    """
    return _decide(graded, easy, None)


def second_pass(graded: Sequence[Graded], *, easy: float = 0.9, majority: float = 0.5) -> Filtered:
    """Drop wrong references first, then what is still never solved, and what is easy by now.

    Args:
        graded: of *every* task, by the better policy.
        easy: as in `first_pass`.
        majority: a reference is wrong where more than this share of the samples agree on an answer that is not right
            ("most samples", so one half).

    Raises:
        UserError: a bound is no share.
    """
    return _decide(graded, easy, majority)


def _decide(graded: Sequence[Graded], easy: float, majority: float | None) -> Filtered:
    for name, bound in (("easy", easy), ("majority", majority)):
        if bound is not None and not 0 < bound <= 1:
            raise UserError(f"Difficulty filter: {name} is {bound}; it must be a share above 0 and at most 1.")
    settings = {"easy": easy} | ({} if majority is None else {"majority": majority})
    out = Filtered(settings=settings)
    for each in graded:
        out.graded[each.task] = each
        out.reasons[each.task] = _reason(each, easy, majority)
    return out


def _reason(each: Graded, easy: float, majority: float | None) -> str:
    if each.samples == 0:
        return UNJUDGED
    if majority is not None and not each.common_right and each.agreeing > majority * each.samples:
        return REFERENCE
    if each.right == 0:
        return NEVER
    return EASY if each.rate >= easy else KEPT
