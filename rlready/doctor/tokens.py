"""Tokens: do messages survive their way to ids and back, and does a context only ever grow at its end?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlready.doctor.evidence import Evidence
from rlready.errors import UserError
from rlready.findings import Findings, Where
from rlready.policy.base import Renderer
from rlready.types import Message, Task

_THOUGHT = "<think>a thought</think>"


def check_template(
    tasks: Sequence[Task], renderer: Renderer, *, answers: Sequence[str] = (), room: int | None = None
) -> Findings:
    """Check that messages survive their way to token ids, and that the dialect only appends.

    Args:
        tasks: some tasks.
        renderer: the policy's.
        answers: texts that a policy could say; by default strings of the tasks' data.
        room: tokens that a prompt may have; None for no limit.
    """
    findings = Findings("template")
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
            findings.error("round trip", f"task {task.id} cannot be rendered: {error}", where)
            continue
        lengths.append(len(prompt))
        alike += distinct.setdefault(tuple(prompt), task.prompt) != task.prompt
        if room is not None and len(prompt) > room:
            findings.error(
                "prompts", f"task {task.id}: the prompt has {len(prompt)} tokens, and the model has room for {room}.",
                where, mend="Raise the model's length (tiny.max_len), or leave the task out.",
            )  # fmt: skip
            continue
        shown = renderer.decode(prompt)
        for message in task.prompt:
            if words(message.text) not in words(shown):
                findings.error(
                    "round trip", f"task {task.id}: the {message.role} message is not what the ids decode to.", where
                )
        for answer in answers or likely_answers(task):
            _check_answer(task, answer, prompt, renderer, findings)
    if alike:
        findings.warning("prompts", f"{alike} of {len(lengths)} prompts have the ids of a prompt with other words.")
    if lengths:
        findings.note(
            "prompts", f"Prompts have {min(lengths)} to {max(lengths)} tokens, {np.mean(lengths):.0f} on average."
        )
    for task in tasks[:1]:
        _check_thoughts(task, renderer, findings)
    return findings


def _check_answer(task: Task, answer: str, prompt: list[int], renderer: Renderer, findings: Findings) -> None:
    where = Where(task=task.id)
    try:
        said = renderer.encode_completion(answer)
    except UserError as error:
        findings.error("round trip", f'task {task.id}: the answer "{answer}" cannot be written: {error}', where)
        return
    if words(renderer.decode(said)) != words(answer):
        findings.error(
            "round trip",
            f'task {task.id}: "{answer}" becomes "{renderer.decode(said)}" on its way through the ids.', where,
        )  # fmt: skip
    if any(i in renderer.stop_ids for i in said[:-1]):
        findings.error(
            "round trip",
            f'task {task.id}: the answer "{answer}" holds the end token, so it can never be said whole.', where,
        )  # fmt: skip
    extended = renderer.extend(prompt, said, task.prompt[:1])
    afresh = renderer.render((*task.prompt, Message("assistant", answer), *task.prompt[:1]))
    start = prompt + said
    if extended[: len(start)] != start:
        at = _differs(extended, start)
        name = "prefix" if at < len(prompt) else "re-encoded"
        findings.error(
            name, "Extending the context changes what the model saw and said.", Where(task=task.id, token=at)
        )
    elif extended != afresh:
        findings.warning(
            "rendering",
            f'After "{answer}", extending and rendering afresh differ from token {_differs(extended, afresh)} on.',
            Where(task=task.id, token=_differs(extended, afresh)),
        )


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
    """Texts in a task's data that look like what a policy would say."""
    named = [task.data[k] for k in ("answer", "gold", "target", "solution") if k in task.data]
    found = named or list(task.data.values())
    texts = [str(v) for v in found if isinstance(v, (str, int, float)) and not isinstance(v, bool)]
    return [t for t in texts if t.strip()][:3]


def words(text: str) -> str:
    """A text with its blank space made uniform."""
    return " ".join(text.split())


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
