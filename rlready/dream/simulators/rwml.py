"""RL of a simulator itself: each logged step is a task, and a reply that matches the recorded one is paid.

    tasks = simulator_tasks(library, domain, layout=model.layout)
    tasks = await without_easy(tasks, model.policy)             # what the model always gets right teaches nothing
    rl.fit(tasks, by="grpo", policy=model.policy)               # any policy, any algorithm

(RWML, arXiv 2602.05842: single turns, a binarised similarity, easy cases dropped.) A task shows what the model is shown
in a dream: the layout's conversation up to the action. The answer is the recorded reply in the layout's strict form;
the marks (`<failed>`, `<done>`, a reward) must be equal, and the text is judged by `rewards.match`.

Questions about the untouched world are left out unless asked for, and so are prompts that were recorded with several
answers: nothing that is shown decides those, and RL on what cannot be known teaches a simulator to imagine the
commonest world every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rlready.dream.format import Unparsable
from rlready.dream.library import Library
from rlready.dream.simulators.layout import Layout
from rlready.envs.chat import ChatEnv
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.retrieve import HashedEncoder
from rlready.policy.base import Policy, SamplingParams
from rlready.rewards.match import By, Encodes, verify_match
from rlready.rollout.actors import PolicyActor
from rlready.rollout.collect import play_many
from rlready.scoring import RewardFn, answer_text, declare
from rlready.seeds import hashed_uniform
from rlready.tasks.base import TaskSet
from rlready.types import Score, Task, Trajectory

if TYPE_CHECKING:
    from rlready.dream.domain import Domain


def simulator_tasks(
    recorded: Library | Iterable[LoggedEpisode],
    domain: Domain,
    *,
    layout: Layout | None = None,
    questions: bool = False,
    by: By = "cosine",
    threshold: float = 0.8,
    encoder: Encodes | None = None,
    name: str = "simulator",
) -> TaskSet:
    """Logged steps as single-turn tasks for a simulator.

    Args:
        recorded: a library, or episodes.
        domain: their form.
        layout: how episodes are written for the model; default: that of language models, without demonstrations.
        questions: whether reading calls made before anything was changed are tasks, too.
        by: the similarity of free text; see `rewards.match`.
        threshold: the least similarity that is paid.
        encoder: of "cosine"; default: `HashedEncoder`.
        name: of the task set.

    Returns:
        One task for each prompt that was always answered alike, in the library's order. `meta` names the (first)
        recording, the step and the kind of action.

    Raises:
        UserError: no step is left, or the layout shows demonstrations.
    """
    library = recorded if isinstance(recorded, Library) else _library(recorded, domain)
    layout = layout or Layout.of(domain)
    if layout.demos:
        raise UserError("simulator_tasks: a layout with demonstrations needs an index; give one with demos=0.")
    tasks: dict[tuple[str, ...], Task] = {}
    ambiguous: set[tuple[str, ...]] = set()
    for id in library:
        steps, asked = library.steps(id), {a.text for a, _ in library.facts(id)}
        moved = False
        for t, (action, reply) in enumerate(steps):
            fresh = not moved and action.text in asked
            moved = moved or bool(library.changing(steps[t : t + 1]))
            if fresh and not questions:
                continue
            messages = layout.episode(library.episodes[id].instruction, () if fresh else steps[:t], action)
            data = {"answer": layout.write(reply)}
            task = Task(tuple(messages), data, {"recording": id, "step": t, "kind": action.kind})
            shown = tuple(message.text for message in messages)
            if tasks.setdefault(shown, task) != task:
                ambiguous.add(shown)
    kept = [task for shown, task in tasks.items() if shown not in ambiguous]
    if not kept:
        raise UserError(
            "simulator_tasks: no recorded step is left to learn from; questions=True also takes what was asked of the "
            "untouched world."
        )
    return TaskSet(kept, reply_match(layout, by=by, threshold=threshold, encoder=encoder), name=name)


def reply_match(
    layout: Layout, *, by: By = "cosine", threshold: float = 0.8, encoder: Encodes | None = None
) -> RewardFn:
    """Reward a written reply that matches `task.data["answer"]`, both in the layout's strict form.

    Failure, end and reward marks must be equal; the text is judged by `rewards.verify_match`. What cannot be read is no
    answer.
    """
    encoder = encoder or HashedEncoder()

    def reply_match(task: Task, trajectory: Trajectory) -> Score:
        gold = layout.read(str(task.data["answer"]))
        try:
            given = layout.read(answer_text(trajectory))
        except Unparsable:
            return Score.no_answer(similarity=0.0, exact=0.0)
        if (given.failed, given.done, given.reward) != (gold.failed, gold.done, gold.reward):
            return Score.wrong(similarity=0.0, exact=0.0)
        return verify_match(given.text, gold.text, by=by, threshold=threshold, encoder=encoder)

    return declare(reply_match, name="reply_match", columns=["answer"])


async def without_easy(
    tasks: TaskSet, policy: Policy, *, samples: int = 4, keep: float = 0.0, max_tokens: int = 256, seed: int = 0
) -> TaskSet:
    """The tasks that a policy does not always get right.

    During RL `curriculum.gates.ZeroSignal` refuses groups that are all right or all wrong; this spares the sampling of
    cases that are known to be easy beforehand.

    Args:
        tasks: such as `simulator_tasks` makes.
        policy: the present simulator.
        samples: tries of each, at temperature 1.
        keep: share of the easy ones that stays, lest they be forgotten; chosen by hash.
        max_tokens: longest reply.
        seed: of the tries and of what stays.

    Raises:
        UserError: there are no samples, or every task is easy and none is kept.
    """
    if samples < 1:
        raise UserError(f"without_easy: samples={samples} must be at least 1.")
    tries: Sequence[Task] = [task for task in tasks for _ in range(samples)]
    actor = PolicyActor(policy, SamplingParams(max_tokens=max_tokens), seed)
    missed = {t.task.id for t in await play_many(tasks, ChatEnv, actor, tries, seed, max_steps=1) if not t.success}
    left = tasks.filter(lambda task: task.id in missed or hashed_uniform(seed, "easy", task.id) < keep)
    if not len(left):
        raise UserError(f"without_easy: the policy gets all {len(tasks)} tasks right; there is nothing left to learn.")
    return left


def _library(episodes: Iterable[LoggedEpisode], domain: Domain) -> Library:
    from rlready.dream.state import StateRules

    episodes = list(episodes)
    return Library(episodes, domain, StateRules.learn(episodes, domain))
