"""The reward's self-test: what would answers earn that know nothing, and what does the grader do when it breaks?"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rlready.doctor.answers import GOLD, gold_key, gold_of, is_text, options_of
from rlready.findings import Findings, Where
from rlready.seeds import rng
from rlready.tasks.base import TaskSet, score_by_env
from rlready.tasks.check import check_taskset
from rlready.types import Message, Score, Task, Trajectory, Turn, Verdict

FORMS = (
    "{}", "\\boxed{{{}}}", "$\\boxed{{{}}}$", "<answer>{}</answer>", "<answer> {} </answer>",
    "<think>\na thought\n</think>\n<answer>\n{}\n</answer>", "<think>a thought</think><answer>{}</answer>",
    "<think>a thought</think> \\boxed{{{}}}", "#### {}", "The answer is {}", "The answer is {}.",
    "The answer is: {}", "({})",
    "```\n{}\n```", "Final Answer: {}", "Answer: {}",
)  # fmt: skip
_NONSENSE = "qwzx vrrp"
_BROKEN = ("", "???", "\\frac{{{", "n/a")
_MOST_OPTIONS = 60
_QUICK = 0.005  # seconds of a score beyond which fewer tasks are scored


@dataclass(frozen=True)
class Earned:
    """What one trivial policy would earn.

    Attributes:
        name: of the policy.
        right: share of right verdicts.
        mean: mean reward.
        first: a task in which it was right.
    """

    name: str
    right: float
    mean: float
    first: str | None


def check_rewards(
    tasks: TaskSet,
    found: Findings,
    *,
    n: int = 24,
    seed: int = 0,
    deadline: float = 30.0,
    gold: Callable[[Task], str] | None = None,
) -> None:
    """Score trivial and broken answers on some tasks.

    Args:
        tasks: with their scorer.
        found: where findings go.
        n: tasks that are scored; fewer where a score takes long.
        seed: of their choice.
        deadline: seconds that one score may take.
        gold: writes a right answer in the form that the reward wants; None: the usual forms are tried.
    """
    took = _seconds(tasks, deadline)
    if took > _QUICK:
        n = max(3, int(n * _QUICK / took))
    general = check_taskset(tasks, n=n, seed=seed, deadline=deadline)
    golden = any(gold_of(task, tasks.scorer) for task in tasks)
    for finding in general:
        if finding.check in ("trivial answers", "gold answers"):
            continue  # looked at more closely here
        if golden and finding.text.startswith("Every answer tried earned"):
            continue  # it may know no gold answer, or not its form
        if finding.level == "note":
            found.note("reward", finding.text)
        else:
            (found.error if finding.level == "error" else found.warning)("reward", f"{finding.check}: {finding.text}")
    if tasks.scorer is score_by_env or general.of("hang"):
        return
    sample = rng(seed, "doctor").sample(list(tasks), min(n, len(tasks)))
    test = _SelfTest(tasks, sample, found)
    test.writes = gold
    _watched(test, deadline)


def _seconds(tasks: TaskSet, deadline: float) -> float:
    """How long one score takes; the deadline where it does not return."""
    if tasks.scorer is score_by_env:
        return 0.0
    test = _SelfTest(tasks, [tasks[0]], Findings(""))
    test.quickest = deadline
    thread = threading.Thread(target=lambda: asyncio.run(test.pace()), daemon=True, name="doctor-pace")
    thread.start()
    thread.join(deadline)
    return test.quickest


def _watched(test: _SelfTest, deadline: float) -> None:
    """Run the test in a thread that is left behind where a score does not return."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(test.run())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="doctor-rewards")
    thread.start()
    while thread.is_alive():
        thread.join(0.02)
        task, since = test.doing
        if task and time.monotonic() - since > deadline and thread.is_alive():
            test.found.error("reward", f"A score has not returned after {deadline:g} seconds.", Where(task=task))
            return
    if failure:
        raise failure[0]


class _SelfTest:
    def __init__(self, tasks: TaskSet, sample: list[Task], found: Findings) -> None:
        self.tasks, self.sample, self.found = tasks, sample, found
        self.doing: tuple[str, float] = ("", 0.0)
        self.quickest = math.inf
        self.writes: Callable[[Task], str] | None = None
        self.golds = [g for g in (gold_of(task, self.tasks.scorer) for task in sample) if g]

    async def run(self) -> None:
        await self.trivial()
        await self.gold()
        await self.unparseable()
        await self.prompt()
        await self.swallowed()

    async def pace(self) -> None:
        """The quickest of three scores, in seconds."""
        for _ in range(3):
            began = time.perf_counter()
            await self.score(self.sample[0], _NONSENSE)
            self.quickest = min(self.quickest, time.perf_counter() - began)

    async def score(self, task: Task, text: str) -> Score:
        ids = list(text.encode())
        turn = Turn([0], ids, [-1.0] * len(ids), text=text, context=task.prompt)
        self.doing = (task.id, time.monotonic())
        try:
            return await self.tasks.score(task, Trajectory(task, [turn]))
        finally:
            self.doing = ("", 0.0)

    def policies(self) -> dict[str, Callable[[Task], str]]:
        """Policies that know nothing of the task."""
        options = list(dict.fromkeys(option for task in self.sample for option in options_of(task)))
        classes = options or list(dict.fromkeys(gold for _, gold in self.golds))
        draw = rng(0, "random answers")
        pool = [w for task in self.sample for m in task.prompt for w in m.text.split()] or ["word"]
        out: dict[str, Callable[[Task], str]] = {
            "an empty answer": lambda task: "",
            "a copy of the prompt": lambda task: "\n".join(m.text for m in task.prompt),
            "random words": lambda task: " ".join(draw.choices(pool, k=5)),
        }
        for constant in ("0", "1", "yes", "no", "A", "I do not know."):
            out[f'always "{constant}"'] = _always(constant)
        frequent = Counter(gold for _, gold in self.golds).most_common(1)
        if frequent and 2 <= len(classes) <= _MOST_OPTIONS:
            out[f'always "{frequent[0][0]}"'] = _always(frequent[0][0])
        if 2 <= len(classes) <= _MOST_OPTIONS:
            for form in ("{}", "<answer>{}</answer>", "\\boxed{{{}}}"):
                out[f"every option named, as {form.format('a, b, c')}"] = _always(form.format(", ".join(classes)))
        out["every choice at once"] = _always("A B C D, (A) (B) (C) (D), 0 1 2 3 4 5 6 7 8 9, yes no, true false")
        out["the usual tags, empty"] = _always("<think></think><answer></answer>")
        return out

    async def trivial(self) -> None:
        """What each would earn."""
        table: list[Earned] = []
        chance = self.chance()
        for name, answer in self.policies().items():
            scored = [(task, await self.score(task, answer(task))) for task in self.sample]
            scored = [(task, s) for task, s in scored if s.verdict is not Verdict.GRADER_FAILED]
            if not scored:
                continue
            right = [task.id for task, s in scored if s.verdict is Verdict.RIGHT]
            mean = math.fsum(s.value for _, s in scored) / len(scored)
            table.append(Earned(name, len(right) / len(scored), mean, right[0] if right else None))
            paid = [task.id for task, s in scored if s.value > 0]
            self.judge(table[-1], paid, len(scored), chance)
        if table:
            shown = "; ".join(f"{e.name} {e.mean:.3g}" for e in sorted(table, key=lambda e: -e.mean)[:6])
            self.found.note("trivial answers", f"What answers that know nothing would earn: {shown}.")

    def chance(self) -> float:
        """What guessing earns where options are few."""
        counts = [len(options_of(task)) for task in self.sample]
        named = Counter(gold for _, gold in self.golds)
        often = max(named.values()) / len(self.sample) if named else 0.0
        return max(often, max((1 / c for c in counts if c > 1), default=0.0))

    def judge(self, earned: Earned, paid: list[str], of: int, chance: float) -> None:
        where = Where(task=earned.first or (paid[0] if paid else None))
        said = f"{earned.name[0].upper()}{earned.name[1:]}"
        blank = earned.name in ("an empty answer", "the usual tags, empty")
        told = f"{said} would earn {earned.mean:.3g} on average, and is right in {earned.right:.0%} of {of} tasks."
        if earned.name == "an empty answer" and paid:
            self.found.error("trivial answers", told, where)
        elif earned.name.startswith("every ") and earned.right > 0.1:
            if any("named" in f.text or "at once" in f.text for f in self.found.of("trivial answers")):
                return  # told in another form
            self.found.error("trivial answers", told, where, mend="Pay an answer that commits to one option alone.")
        elif earned.right >= max(0.5, chance + 0.2) or (blank and earned.right > 0):
            self.found.error("trivial answers", told, where)
        elif earned.right > max(0.3, chance + 0.1) or (earned.name == "a copy of the prompt" and earned.right > 0):
            self.found.warning("trivial answers", told, where)

    async def gold(self) -> None:
        """The gold answer, in all usual forms, must be right in one of them; a written one must be right."""
        if self.writes is not None:
            await self.written(self.writes)
            return
        if not self.golds:
            return
        some = self.golds[:8]
        nonsense = await self._mean(some, lambda gold: _NONSENSE)
        best: tuple[int, float, str] = (0, 0.0, "")
        judged = False
        whole = [key for key in GOLD if all(is_text(task.data.get(key)) for task, _ in some)]  # a worked solution, say
        tried: list[tuple[str, Callable[[Task, str], str]]] = [
            *((form.format("gold"), _formed(form)) for form in FORMS),
            *((f"the data's {key}", _column(key)) for key in whole),
        ]
        for form, answer in tried:
            scores = [await self.score(task, answer(task, gold)) for task, gold in some]
            valid = [s.value for s in scores if s.verdict is not Verdict.GRADER_FAILED]
            if not valid:
                continue  # told as a failure of the score
            judged = True
            right = sum(s.verdict is Verdict.RIGHT for s in scores)
            best = max(best, (right, math.fsum(valid) / len(valid), form), key=lambda b: b[:2])
        if not judged:
            return
        right, mean, form = best
        if right == 0 and mean <= nonsense + 1e-9:
            self.found.error(
                "gold answers",
                f'The gold answer "{some[0][1][:40]}" is not paid in any of {len(FORMS)} usual forms, nor are those of '
                f"{len(some) - 1} other tasks.",
                Where(task=some[0][0].id),
            )
        elif 0 < right < len(some):
            self.found.warning(
                "gold answers",
                f"Written as {form}, {len(some) - right} of {len(some)} gold answers are not right.",
                Where(task=some[0][0].id),
            )

    async def written(self, writes: Callable[[Task], str]) -> None:
        """Right answers as the set-up writes them."""
        some = self.sample[:8]
        scores = [(task, await self.score(task, writes(task))) for task in some]
        wrong = [(task, s) for task, s in scores if s.verdict in (Verdict.WRONG, Verdict.NO_ANSWER)]
        if wrong:
            task, score = wrong[0]
            self.found.error(
                "gold answers",
                f'{len(wrong)} of {len(some)} right answers are not graded right; the first, "{writes(task)[:40]}", '
                f"earns {score.value:g}.",
                Where(task=task.id),
            )

    async def _mean(self, some: Sequence[tuple[Task, str]], answer: Callable[[str], str]) -> float:
        """Mean reward of answers, failures left out."""
        values = [s.value for task, gold in some if math.isfinite((s := await self.score(task, answer(gold))).value)]
        return math.fsum(values) / len(values) if values else 0.0

    async def unparseable(self) -> None:
        """A gold that cannot be read must not pay a wrong answer."""
        for task in self.sample[:4]:
            gold = gold_of(task, self.tasks.scorer)
            key = gold_key(task, self.tasks.scorer)
            if gold is None or key is None:
                continue
            for broken in _BROKEN:
                for form in ("{}", "\\boxed{{{}}}", "<think>a</think><answer>{}</answer>"):
                    score = await self.score(_with(task, {**task.data, key: broken}), form.format(_NONSENSE))
                    plain = await self.score(task, form.format(_NONSENSE))
                    if score.verdict is Verdict.RIGHT and plain.verdict is not Verdict.RIGHT:
                        self.found.error(
                            "unparseable gold", f'Where "{key}" is {broken!r}, the answer "{form.format(_NONSENSE)}" '
                            f"earns {score.value:g}.", Where(task=task.id),
                        )  # fmt: skip
                        return

    async def prompt(self) -> None:
        """A nonsense answer earns the same whatever the prompt says."""
        for task in self.sample[:6]:
            gold = gold_of(task, self.tasks.scorer)
            tags = "<think>a thought</think>\n<answer>{0}</answer> \\boxed{{{0}}}".format(gold[1] if gold else "x")
            if not task.prompt or not isinstance(task.prompt[-1].content, str):
                continue
            last = task.prompt[-1]
            variants = [task.prompt, (*task.prompt[:-1], Message(last.role, "?")),
                        (*task.prompt[:-1], Message(last.role, f"{last.text}\nFor example: {tags}"))]  # fmt: skip
            values = []
            for prompt in variants:
                score = await self.score(Task(prompt, task.data, task.meta, task.id), _NONSENSE)
                if score.verdict is not Verdict.GRADER_FAILED:
                    values.append(score.value)
            if len(values) > 1 and max(values) - min(values) > 1e-9:
                self.found.error(
                    "reads the prompt",
                    f'The answer "{_NONSENSE}" earns {min(values):g} or {max(values):g} by what the prompt says.',
                    Where(task=task.id),
                )  # fmt: skip
                return

    async def swallowed(self) -> None:
        """Where the grader's data break under its hands, it must not come back with a judgement."""
        for task in self.sample[:3]:
            if not task.data:
                continue
            bombs: list[str] = []
            broken = _with(task, {key: Bomb(key, bombs) for key in task.data})
            answers = [_NONSENSE, *(form.format("1") for form in FORMS[:4])]
            for answer in answers:
                bombs.clear()
                score = await self.score(broken, answer)
                if bombs and score.verdict is not Verdict.GRADER_FAILED:
                    self.found.error(
                        "swallowed failure", f'The grader failed on "{bombs[0]}" and still said '
                        f'"{score.verdict.value}", reward {score.value:g}.', Where(task=task.id),
                    )  # fmt: skip
                    return


class GraderBroke(RuntimeError):
    """What a value raises that the doctor planted in a task's data."""


class Bomb:
    """A value that raises whenever it is used, and remembers that it was."""

    __slots__ = ("_key", "_log")

    def __init__(self, key: str, log: list[str]) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_log", log)

    def _boom(self, *_: Any, **__: Any) -> NoReturn:
        log: list[str] = object.__getattribute__(self, "_log")
        key: str = object.__getattribute__(self, "_key")
        log.append(key)
        raise GraderBroke(f'the doctor broke "{key}" on purpose')

    __str__ = __repr__ = __format__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = _boom
    __float__ = __int__ = __index__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _boom
    __hash__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __call__ = _boom

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        self._boom()


def _with(task: Task, data: Mapping[str, Any]) -> Task:
    return Task(task.prompt, data, task.meta, task.id)


def _formed(form: str) -> Callable[[Task, str], str]:
    return lambda task, gold: form.format(gold)


def _column(key: str) -> Callable[[Task, str], str]:
    return lambda task, gold: str(task.data[key])


def _always(text: str) -> Callable[[Task], str]:
    return lambda task: text


def check_spread(rewards: Sequence[Sequence[float]], found: Findings) -> None:
    """Groups in which all rewards are alike.

    Args:
        rewards: of each group's valid episodes.
        found: where findings go.
    """
    groups = [list(r) for r in rewards if len(r) > 1]
    if not groups:
        return
    flat = [r for r in groups if max(r) - min(r) < 1e-9]
    every = [x for r in groups for x in r]
    mean = math.fsum(every) / len(every)
    best = max(every)
    wrong = sum(r[0] < best or best <= 0 for r in flat)
    told = f"{len(flat)} of {len(groups)} groups are uniform ({wrong} of them wrong); the mean reward is {mean:.3g}"
    if len(flat) == len(groups):
        found.warning("spread", f"{told}: there is nothing to learn from in this batch.", Where(place="first batch"))
    elif len(flat) > 0.7 * len(groups):
        found.warning("spread", f"{told}.", Where(place="first batch"))
    else:
        found.note("spread", f"{told}.")
