"""Tokens: do messages survive their way to ids and back, and does a context only ever grow at its end?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlready.doctor.answers import GOLD, is_text, options_of
from rlready.doctor.evidence import Evidence
from rlready.errors import UserError
from rlready.findings import Findings, Where
from rlready.policy.base import Renderer
from rlready.types import Message, Task

_THOUGHT = "<think>a thought</think>"


def check_template(
    tasks: Sequence[Task], renderer: Renderer, *, answers: Sequence[str] | None = None, room: int | None = None
) -> Findings:
    """Check that messages survive their way to token ids, and that the dialect only appends.

    Args:
        tasks: some tasks.
        renderer: the policy's.
        answers: texts that a policy could say; None: those that each task's data name.
        room: tokens that a prompt may have; None for no limit.
    """
    findings = Findings("template")
    found = _Kinds(findings, len(tasks))
    lengths: list[int] = []
    distinct: dict[tuple[int, ...], tuple[Message, ...]] = {}
    alike = 0
    for task in tasks:
        if not task.prompt:
            continue
        where = Where(task=task.id)
        try:
            prompt = renderer.render(task.prompt)
        except UserError as error:
            found.add("round trip", "rendered", f"The prompt cannot be rendered: {error}", where)
            continue
        lengths.append(len(prompt))
        alike += distinct.setdefault(tuple(prompt), task.prompt) != task.prompt
        if room is not None and len(prompt) > room:
            text = f"The prompt has {len(prompt)} tokens, and the model has room for {room}."
            found.add("prompts", "room", text, where)
            continue
        shown = renderer.decode(prompt)
        for message in task.prompt:
            if words(message.text) not in words(shown):
                found.add("round trip", "shown", f"The {message.role} message is not what the ids decode to.", where)
        for answer in likely_answers(task) if answers is None else answers:
            _check_answer(task, answer, prompt, renderer, found)
    found.tell()
    if alike:
        findings.warning("prompts", f"{alike} of {len(lengths)} prompts have the ids of a prompt with other words.")
    if lengths:
        findings.note(
            "prompts", f"Prompts have {min(lengths)} to {max(lengths)} tokens, {np.mean(lengths):.0f} on average."
        )
    for task in tasks[:1]:
        _check_thoughts(task, renderer, findings)
    return findings


class _Kinds:
    """Findings of many tasks: one of each kind, with the first place and a count."""

    def __init__(self, findings: Findings, tasks: int) -> None:
        self.findings, self.tasks = findings, tasks
        self.first: dict[tuple[str, str], tuple[str, Where]] = {}
        self.tasks_of: dict[tuple[str, str], set[str | None]] = {}

    def add(self, check: str, kind: str, text: str, where: Where) -> None:
        self.first.setdefault((check, kind), (text, where))
        self.tasks_of.setdefault((check, kind), set()).add(where.task)

    def tell(self) -> None:
        """Make the findings; other ids on rendering afresh are a warning, all else an error."""
        for (check, kind), (text, where) in self.first.items():
            n = len(self.tasks_of[check, kind])
            more = f" So in {n} of {self.tasks} tasks." if n > 1 else ""
            (self.findings.warning if check == "rendering" else self.findings.error)(check, text + more, where)


def _check_answer(task: Task, answer: str, prompt: list[int], renderer: Renderer, found: _Kinds) -> None:
    where = Where(task=task.id)
    try:
        said = renderer.encode_completion(answer)
    except UserError as error:
        found.add("round trip", "written", f'The answer "{_short(answer)}" cannot be written: {error}', where)
        return
    back = renderer.decode(said)
    if words(back) != words(answer):
        text = f'The answer "{_short(answer)}" becomes "{_short(back)}" on its way through the ids.'
        found.add("round trip", "decoded", text, where)
    if any(i in renderer.stop_ids for i in said[:-1]):
        text = f'The answer "{_short(answer)}" holds the end token, so it can never be said whole.'
        found.add("round trip", "end", text, where)
    extended = renderer.extend(prompt, said, task.prompt[:1])
    afresh = renderer.render((*task.prompt, Message("assistant", answer), *task.prompt[:1]))
    start = prompt + said
    if extended[: len(start)] != start:
        at = _differs(extended, start)
        name = "prefix" if at < len(prompt) else "re-encoded"
        text = "Extending the context changes what the model saw and said."
        found.add(name, "extend", text, Where(task=task.id, token=at))
    elif extended != afresh:
        at = _differs(extended, afresh)
        text = f'After "{_short(answer)}", extending and rendering afresh differ from token {at} on.'
        found.add("rendering", "afresh", text, Where(task=task.id, token=at))


def _check_thoughts(task: Task, renderer: Renderer, findings: Findings) -> None:
    """Whether thinking text is kept when a context is extended and when it is rendered afresh."""
    if not task.prompt:
        return
    try:
        said = renderer.encode_completion(f"{_THOUGHT} done")
        prompt = renderer.render(task.prompt)
        extended = renderer.decode(renderer.extend(prompt, said, task.prompt[:1]))
        afresh = renderer.decode(
            renderer.render((*task.prompt, Message("assistant", f"{_THOUGHT} done"), *task.prompt[:1]))
        )
    except UserError:
        return  # a vocabulary without such words cannot think aloud
    kept = ["a thought" in words(text) for text in (extended, afresh)]
    if kept[0] != kept[1]:
        ways = ("kept when a context is extended and stripped when it is rendered afresh",
                "stripped when a context is extended and kept when it is rendered afresh")  # fmt: skip
        findings.warning("thinking", f"Thinking text is {ways[kept[1]]}.", Where(task=task.id))


@dataclass
class _Seen:
    """First place and number of trajectories of each kind of fault."""

    first: dict[str, tuple[Where, str]] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, where: Where, detail: str) -> None:
        self.first.setdefault(kind, (where, detail))
        self.times[kind] += 1


def check_contexts(evidence: Evidence, found: Findings) -> None:
    """In the rolled-out batch: is each prompt what was seen and said before, with the whole reply behind it?"""
    renderer = evidence.policy.renderer
    seen = _Seen()
    continued = 0
    for i, trajectory, j, turn in evidence.turns():
        if turn.parent is None or not 0 <= turn.parent < j:
            continue
        continued += 1
        parent = trajectory.turns[turn.parent]
        before = parent.prompt_ids + parent.completion_ids
        prompt = turn.prompt_ids
        at = _differs(prompt, before)
        where = Where(task=trajectory.task.id, trajectory=i, turn=j, token=at)
        if at < len(before):
            inside = at >= len(parent.prompt_ids)
            seen.add("re-encoded" if inside else "prefix", where, _beside(renderer, before, prompt, at))
            continue
        rest = prompt[len(before) :]
        said = parent.completion_ids
        bare = said[:-1] if said and said[-1] in renderer.stop_ids else said
        if len(bare) >= 2 and _holds(rest, bare) and parent.text.strip() not in " ".join(m.text for m in turn.context):
            seen.add("duplicated", where, f'"{_short(parent.text)}"')
        shown = words(renderer.decode(rest))
        for message in turn.context:
            if message.role != "assistant" and words(message.text) and words(message.text) not in shown:
                seen.add("observation", where, f'of "{_short(message.text)}" the ids hold "{_short(shown)}"')
                break
    said_of = {
        "re-encoded": "The completion became other ids in the next prompt",
        "prefix": "The next prompt does not begin with the last one",
        "duplicated": "The completion stands in the next prompt twice",
        "observation": "The reply is not whole in the next prompt",
    }
    for kind, (where, detail) in seen.first.items():
        found.error(kind, f"{said_of[kind]}, in {seen.times[kind]} of {continued} turns; first: {detail}.", where)


def _beside(renderer: Renderer, old: list[int], new: list[int], at: int) -> str:
    was, now = old[at : at + 4], new[at : at + 4]
    return f'ids {was} ("{renderer.decode(was)}") became {now} ("{renderer.decode(now)}")'


def _differs(a: Sequence[int], b: Sequence[int]) -> int:
    """First index at which two lists differ; the shorter one's length where they do not."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids) - len(part) + 1))


def likely_answers(task: Task) -> list[str]:
    """Texts in a task's data that are named as answers or options."""
    texts = [str(task.data[key]) for key in GOLD if is_text(task.data.get(key))]
    return (texts[:1] or options_of(task))[:3]


def words(text: str) -> str:
    """A text with its blank space made uniform."""
    return " ".join(text.split())


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
