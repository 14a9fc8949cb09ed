"""`check_taskset`: is the set sound, is the reward sane, and what would trivial answers earn?

Answers that know nothing (empty, the prompt repeated, a constant, every choice at once) are scored on the set's own
tasks, and so is the gold answer where the reward says which column it is in. What they earn is the floor of every
curve that will be drawn, and where it is high, the reward will be hacked.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rlready.errors import UserError
from rlready.findings import Findings
from rlready.seeds import rng
from rlready.tasks.base import TaskSet, score_by_env
from rlready.types import Score, Task, Trajectory, Turn, Verdict

_CONSTANTS = ("0", "1", "yes", "A", "I do not know.")
_HEDGE = "A B C D, (A) (B) (C) (D), 0 1 2 3 4 5 6 7 8 9, yes no, true false"
_SLOW = 0.05  # seconds of a score that holds up the loop


def check_taskset(tasks: TaskSet, *, n: int = 64, seed: int = 0, deadline: float = 30.0) -> Findings:
    """Check a task set and its reward.

    Args:
        tasks: the set.
        n: how many tasks to score, drawn by the seed.
        seed: another seed draws other tasks.
        deadline: seconds that one score may take.

    Returns:
        The findings; print them, or call `raise_for_errors()`.

    Raises:
        UserError: n is below 1.
    """
    if n < 1:
        raise UserError(f"check_taskset needs n of at least 1, but got {n}.")
    found = Findings(f'check_taskset("{tasks.name}", {len(tasks)} tasks)')
    if not len(tasks):
        found.error("tasks", "The set is empty.")
        return found
    _check_tasks(tasks, found)
    sample = rng(seed, "check").sample(list(tasks), min(n, len(tasks)))
    if tasks.scorer is score_by_env:
        found.note("score", "Scored by the environment's rewards; check_env looks at those.")
    else:
        _watched(_Scores(tasks, sample, found), deadline)
    return found


def _watched(scores: _Scores, deadline: float) -> None:
    """Run the checks in a thread that is left behind where a score does not return."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(scores.run())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="check_taskset")
    thread.start()
    while thread.is_alive():
        thread.join(0.02)
        task, since = scores.doing
        if task and time.monotonic() - since > deadline and thread.is_alive():
            name = getattr(scores.tasks.scorer, "name", "score")
            scores.found.error(
                "hang",
                f'"{name}" has not returned after {deadline:g} seconds for task {task}; the check stopped there.',
            )
            return
    if failure:
        raise failure[0]


def _check_tasks(tasks: TaskSet, found: Findings) -> None:
    """Ids, prompts and data."""
    ids = Counter(task.id for task in tasks)
    repeated = [key for key, count in ids.items() if count > 1]
    if repeated:
        found.error("ids", f"{len(repeated)} ids stand more than once (first: {repeated[0]}).")
    empty = [
        task.id for task in tasks if not any(m.text.strip() or not isinstance(m.content, str) for m in task.prompt)
    ]
    if len(empty) == len(tasks):
        found.note("prompts", "No task has a prompt, so the environment must give the first observation.")
    elif empty:
        found.error("prompts", f"{len(empty)} of {len(tasks)} tasks have an empty prompt (first: {empty[0]}).")
    last = [task.id for task in tasks if task.prompt and task.prompt[-1].role == "assistant"]
    if last:
        found.warning("prompts", f"{len(last)} prompts end with what the assistant said (first: task {last[0]}).")
    twins = Counter(tuple(json.dumps(m.to_json(), sort_keys=True) for m in t.prompt) for t in tasks if t.prompt)
    same = sum(count - 1 for count in twins.values())
    if same:
        tell = found.note if tasks.scorer is score_by_env else found.warning  # an environment may hide the difference
        tell("prompts", f"{same} of {len(tasks)} tasks repeat the prompt of another with other data.")
    for task in tasks:
        try:
            json.dumps([dict(task.data), dict(task.meta)], allow_nan=False)
        except (TypeError, ValueError) as error:
            found.error(
                "data", f"The data of task {task.id} is not JSON ({error}), so runs cannot be logged or resumed."
            )
            break


def _say(task: Task, text: str) -> Trajectory:
    """A trajectory that answers with a text; its ids are the text's bytes, so that lengths mean something."""
    ids = list(text.encode())
    return Trajectory(task, [Turn([0], ids, [0.0] * len(ids), text=text, context=task.prompt)])


class _Scores:
    def __init__(self, tasks: TaskSet, sample: list[Task], found: Findings) -> None:
        self.tasks, self.sample, self.found = tasks, sample, found
        self.values: set[float] = set()
        self.failures: list[str] = []
        self.longest = 0.0
        self.doing: tuple[str, float] = ("", 0.0)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """A score under the watch of the main thread."""
        self.doing = (task.id, time.monotonic())
        try:
            return await self.tasks.score(task, trajectory)
        finally:
            self.doing = ("", 0.0)

    async def run(self) -> None:
        """All checks of the score."""
        trivial: dict[str, Callable[[Task], str]] = {
            "an empty answer": lambda task: "",
            "the prompt repeated": lambda task: "\n".join(m.text for m in task.prompt),
            "every choice at once": lambda task: _HEDGE,
            **{repr(text): _always(text) for text in _CONSTANTS},
        }
        if not any(m.text for task in self.sample for m in task.prompt):
            del trivial["the prompt repeated"]
        earned: list[tuple[float, float, str]] = []
        for name, answer in trivial.items():
            scores = await self.all(answer)
            if not scores:
                continue
            right = sum(s.verdict is Verdict.RIGHT for s in scores) / len(scores)
            mean = math.fsum(s.value for s in scores) / len(scores)
            earned.append((right, mean, name))
            self.judge(name, right, mean, scores)
        if earned:
            right, mean, name = max(earned)
            self.found.note(
                "trivial answers",
                f"The best of {len(trivial)} is {name}: {right:.0%} right, mean reward {mean:.3g}.",
            )
        await self.gold()
        await self.purity()
        self.sums()

    def judge(self, name: str, right: float, mean: float, scores: list[Score]) -> None:
        if name == "an empty answer":
            paid = [s for s in scores if s.value > 0 or s.verdict is Verdict.RIGHT]
            if paid:
                self.found.error(
                    "trivial answers",
                    f"An empty answer is paid in {len(paid)} of {len(scores)} tasks (mean reward {mean:.3g}).",
                )
        elif right >= 0.5:
            self.found.error("trivial answers", f"Answering {name} is right in {right:.0%} of tasks.")
        elif right > 0.3 or (right > 0 and name in ("the prompt repeated", "every choice at once")):
            self.found.warning("trivial answers", f"Answering {name} is right in {right:.0%} of tasks.")

    async def all(self, answer: Callable[[Task], str]) -> list[Score]:
        """Valid scores of an answer on all sampled tasks."""
        return [s for task in self.sample if (s := await self.one(task, answer(task))) is not None]

    async def one(self, task: Task, text: str) -> Score | None:
        began = time.perf_counter()
        score = await self.score(task, _say(task, text))
        took = time.perf_counter() - began
        if took > max(_SLOW, self.longest):  # the first call may load what the others have, and machines are busy
            began = time.perf_counter()
            await self.score(task, _say(task, text))
            took = min(took, time.perf_counter() - began)
        self.longest = max(self.longest, took)
        if score.verdict is Verdict.GRADER_FAILED:
            self.failures.append(score.note)
            return None
        self.values.add(round(score.value, 9))
        return score

    async def gold(self) -> None:
        """The gold answer must be right."""
        columns = [
            c for c in getattr(self.tasks.scorer, "columns", ()) if any(_is_gold(t.data.get(c)) for t in self.sample)
        ]
        if len(columns) != 1:
            return
        pairs = [(task, task.data.get(columns[0])) for task in self.sample]
        scores = [(task, await self.one(task, str(gold))) for task, gold in pairs if _is_gold(gold)]
        wrong = [task.id for task, score in scores if score is not None and score.verdict is not Verdict.RIGHT]
        if wrong:
            self.found.warning(
                "gold answers",
                f'The text of "{columns[0]}" itself is not graded right in {len(wrong)} of {len(scores)} tasks '
                f"(first: {wrong[0]}).",
            )

    async def purity(self) -> None:
        """The same trajectory twice, in another order: same score, nothing changed."""
        tried = [
            (task, text) for task in self.sample[:16] for text in ("1", str(next(iter(task.data.values()), "yes")))
        ]
        first: list[Score] = []
        state = random.getstate()
        for task, text in tried:
            trajectory = _say(task, text)
            before = trajectory.to_json()
            frozen = json.dumps(before, default=str, sort_keys=True)
            first.append(await self.score(task, trajectory))
            if json.dumps(trajectory.to_json(), default=str, sort_keys=True) != frozen:
                self.found.error("purity", f"The score changes the trajectory or the data of task {task.id}.")
                return
        again = [await self.score(task, _say(task, text)) for task, text in reversed(tried)]
        for (task, _), one, two in zip(tried, first, reversed(again), strict=True):
            if one.verdict != two.verdict or not (
                one.value == two.value or (math.isnan(one.value) and math.isnan(two.value))
            ):
                self.found.error(
                    "purity",
                    f"The same answer to task {task.id} scored {_shown(one)}, then {_shown(two)}.",
                )
                return
        if random.getstate() != state:
            self.found.warning("purity", "The score uses or seeds the global random generator.")

    def sums(self) -> None:
        """Failures, equal rewards, speed."""
        if self.failures:
            note, count = Counter(_without_ids(self.failures, self.sample)).most_common(1)[0]
            self.found.error(
                "score", f"The score failed on {len(self.failures)} of the answers tried ({count} times: {note})."
            )
        if len(self.values) == 1:
            (value,) = self.values
            self.found.warning(
                "score",
                f"Every answer tried earned {value:.6g}, the gold's too where it is known: nothing to learn from.",
            )
        if self.longest > _SLOW and not getattr(self.tasks.scorer, "waits", False):
            self.found.warning(
                "time",
                f"A score took {self.longest:.2f} s, in which no other episode moves; "
                "wrap the reward as rewards.as_scorer(fn, thread=True).",
            )


def _always(text: str) -> Callable[[Task], str]:
    return lambda task: text


def _is_gold(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and bool(str(value).strip())


def _shown(score: Score) -> str:
    return f"{score.value:.6g} ({score.verdict})"


def _without_ids(notes: Iterable[str], sample: list[Task]) -> list[str]:
    """Notes with the tasks' ids blotted out, so that equal causes count as one."""
    out = []
    for note in notes:
        for task in sample:
            note = note.replace(f" for task {task.id}", "").replace(task.id, "...")
        out.append(note.removesuffix("."))
    return out
