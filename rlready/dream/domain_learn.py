"""Learn a `Domain` from logged episodes: tools, endings, known actions, and how errors are worded.

Every threshold here is ours. Episodes are read task by task, so that what all runs of one task repeat is not taken for
a law of the domain.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from rlready.dream.actions import broken
from rlready.dream.base import Action
from rlready.dream.domain import (
    DEFAULTS,
    Domain,
    Ending,
    ErrorForm,
    ToolSpec,
    cap_for,
    head_of,
    is_call,
    parse,
)
from rlready.dream.jsonschema import Shape
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.schemas import Violation, violation

NEARLY_ALL = 0.95
MARKED = 0.8
MAX_ACTIONS = 256
MIN_CUT = 3
_MAX_MARK = 40
_UNKNOWN = re.compile(
    r"unknown|no such|not (?:a )?(?:found|known|valid|exist|defined|available)|doesn't exist|no tool|invalid", re.I
)
_BLAMES = re.compile(r"argument|parameter|required|missing|schema|validation|invalid|expected|unexpected", re.I)


@dataclass(frozen=True, slots=True)
class Logged:
    """One recorded step, as the learners read it.

    Attributes:
        group: the task's number in the order of first appearance; the episode's where the logs have but few tasks.
        last: whether it is the last of its episode.
        finished: whether that episode came to its own end.
    """

    group: int
    action: Action
    reply: str
    failed: bool
    last: bool
    finished: bool


def read_steps(episodes: Sequence[LoggedEpisode]) -> list[Logged]:
    """All recorded steps, task by task, with their actions parsed."""
    tasks: dict[str, int] = {}
    for episode in episodes:
        tasks.setdefault(episode.task_id, len(tasks))
    by_task = len(tasks) >= 4
    groups = [tasks[e.task_id] if by_task else i for i, e in enumerate(episodes)]
    known: dict[str, Action] = {}
    out: list[Logged] = []
    for i in sorted(range(len(episodes)), key=groups.__getitem__):
        episode, errors = episodes[i], frozenset(episodes[i].errors)
        for t, (text, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
            action = known.get(text)
            if action is None:
                action = known[text] = parse(text)[0]
            last = t == len(episode.actions) - 1
            out.append(Logged(groups[i], action, reply, t in errors, last, episode.finished))
    return out


def learn(episodes: Sequence[LoggedEpisode], *, rules: str, tools: Sequence[Mapping[str, Any]]) -> Domain:
    """See `Domain.learn`."""
    if not episodes:
        raise UserError("There is no recording to learn a domain from. Give at least one log with one run.")
    given = _given(tools)
    steps = read_steps(episodes)
    specs = _tools(steps, given)
    words = [s for s in steps if not is_call(s.action)]
    close = bool(words) and sum(s.last for s in words) >= NEARLY_ALL * len(words)
    actions, good = _actions(steps)
    replies = [s.reply for s in steps if s.reply]
    return Domain(
        rules=rules,
        tools=specs,
        says=bool(words) and not close,
        actions=actions,
        ending=_ending(episodes, steps, close, specs),
        errors=_errors(steps, specs, good),
        step_rewards=any(e.rewards for e in episodes),
        structured=round(sum(map(is_json, replies)) / len(replies), 6) if replies else 0.0,
    )


def is_json(text: str) -> bool:
    """Whether a reply is a JSON object or list."""
    if text[:1] not in ("{", "["):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


# ---------------------------------------------------------------------- tools


def _given(tools: Sequence[Mapping[str, Any]]) -> dict[str, ToolSpec]:
    out: dict[str, ToolSpec] = {}
    for i, record in enumerate(tools):
        inner = record.get("function")
        tool: Mapping[str, Any] = inner if isinstance(inner, Mapping) else record
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise UserError(
                f'Tool schema {i} has no "name". Write {{"name": ..., "description": ..., "parameters": ...}}.'
            )
        parameters = tool.get("parameters") or tool.get("input_schema") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise UserError(f"The parameters of the tool {name} are not a JSON schema (an object).")
        out[name] = ToolSpec(name, dict(parameters), str(tool.get("description") or ""), given=True)
    return out


def _tools(steps: Sequence[Logged], given: Mapping[str, ToolSpec]) -> dict[str, ToolSpec]:
    shapes: dict[str, Shape] = {}
    calls: Counter[str] = Counter()
    failed: dict[str, list[Logged]] = {}
    well: dict[str, list[Action]] = {}
    for s in steps:
        name = s.action.tool
        if not name:
            continue
        calls[name] += 1
        if s.failed or s.action.arguments is None:
            failed.setdefault(name, []).append(s)
            continue
        well.setdefault(name, []).append(s.action)
        if name not in given:
            shapes.setdefault(name, Shape()).add(dict(s.action.arguments), s.group)
    out = {name: _with_calls(spec, calls[name], well.get(name, [])) for name, spec in given.items()}
    for name in calls:
        if name in given:
            continue
        if name in shapes:
            out[name] = _learned(name, shapes[name], calls[name])
        elif not given and not _seems_unknown(failed[name]):
            out[name] = ToolSpec(name, {"type": "object", "properties": {}}, calls=calls[name], open=True)
    for name in out.keys() & failed.keys():
        out[name] = _relaxed(out[name], failed[name])
    return out


def _learned(name: str, shape: Shape, calls: int) -> ToolSpec:
    fields = dict(sorted(shape.fields.items()))
    parameters = {
        "type": "object",
        "properties": {key: field.schema() for key, field in fields.items()},
        "required": [key for key, field in fields.items() if field.count == shape.count],
    }
    return ToolSpec(name, parameters, calls=calls, open=shape.count < 3)


def _with_calls(spec: ToolSpec, calls: int, well: Sequence[Action]) -> ToolSpec:
    """A given schema beside the calls that did not fail: where they break it, it is not what the tool checks."""
    unlisted, against = 0, Counter[str]()
    cache: dict[str, Violation | None] = {}
    for action in well:
        if action.text not in cache:
            cache[action.text] = violation(spec.parameters, action.arguments, closed=True)
        found = cache[action.text]
        if found is not None and found.kind == "unknown_argument" and "." not in found.argument:
            unlisted += 1
        elif found is not None:
            against[found.top] += 1
    enough = max(1.0, 0.02 * len(well))
    lenient = tuple(sorted(name for name, n in against.items() if name and n >= enough))
    return replace(spec, calls=calls, open=unlisted >= enough, lenient=lenient)


def _relaxed(spec: ToolSpec, failed: Sequence[Logged]) -> ToolSpec:
    """The schema beside calls that failed: an argument that breaks it, but that the error says nothing of, is not why.

    A call that failed for want of money does not tell that its cabin class is unknown.
    """
    blamed, cleared = Counter[str](), Counter[str]()
    for s in failed:
        found = None if s.action.arguments is None else broken(spec, s.action)
        if found is None or not found.top:
            continue
        told = found.top in s.reply or _BLAMES.search(s.reply) is not None
        value = found.value if isinstance(found.value, str) else json.dumps(found.value, ensure_ascii=False)
        told = told or (found.value is not None and len(value) > 1 and value in s.reply)
        (blamed if told else cleared)[found.top] += 1
    more = {name for name, n in cleared.items() if n > blamed[name]}
    return replace(spec, lenient=tuple(sorted({*spec.lenient, *more}))) if more else spec


def _seems_unknown(failed: Sequence[Logged]) -> bool:
    return all(_UNKNOWN.search(s.reply) for s in failed)


# ---------------------------------------------------------------------- endings


def _ending(
    episodes: Sequence[LoggedEpisode], steps: Sequence[Logged], words_close: bool, specs: Mapping[str, ToolSpec]
) -> Ending:
    uses, closing = Counter[str](), Counter[str]()
    heads, head_closing = Counter[str](), Counter[str]()
    ends = [s for s in steps if s.last and s.finished]
    for s in steps:
        if s.failed:
            continue
        if s.action.tool:  # also in runs that the log calls unfinished: one that a tool closes ends with a call
            uses[s.action.tool] += 1
            closing[s.action.tool] += s.last
        elif not s.action.problem and not words_close and (s.finished or not s.last):
            head = head_of(s.action.text)
            heads[head] += 1
            head_closing[head] += s.last
    tools = tuple(sorted(name for name, n in uses.items() if _closes(n, closing[name], len(ends))))
    plain = tuple(sorted(name for name, n in heads.items() if name and _closes(n, head_closing[name], len(ends))))
    if len(plain) > 8 or not all(n > 1 for n in (heads[p] for p in plain)):
        plain = ()
    open_ends = [
        s.reply
        for s in ends
        if s.action.tool not in tools
        and not (not is_call(s.action) and (words_close or head_of(s.action.text) in plain))
        and s.reply
    ]
    others = [s.reply for s in steps if not s.last and s.reply]
    ending = Ending(words_close, tools, find_marks(open_ends, others), plain)
    return replace(ending, cap=_cap(episodes, Domain(tools=specs, ending=ending)))


def _cap(episodes: Sequence[LoggedEpisode], domain: Domain) -> int:
    """The number of actions after which episodes are cut.

    The length of the longest recordings, where three of them or more do not come to an end; else from the longest
    that do (`cap_for`).
    """
    longest = max(len(e) for e in episodes)
    if longest and sum(len(e) == longest and not domain.finishes(e) for e in episodes) >= MIN_CUT:
        return longest
    return cap_for(max([len(e) for e in episodes if len(e) and domain.finishes(e)] or [longest]))


def _closes(uses: int, closing: int, ends: int) -> bool:
    """At least three uses, or all ends there are, and nearly all of the uses last."""
    return closing >= NEARLY_ALL * uses and (uses >= 3 or (closing == ends and closing > 0))


def find_marks(last: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Short texts that stand in nearly all last replies and in no other, longest first found; () where there are none.

    A mark is at most 40 characters long and stands in at least three last replies and a tenth of them; together the
    marks must cover at least four fifths.
    """
    left = list(last)
    if len(left) < 3:
        return ()
    elsewhere = "\x00".join(dict.fromkeys(others))
    marks: list[str] = []
    need = max(3, len(last) // 10)
    while len(left) >= need and len(marks) < 8:
        mark = _mark(left[:: 1 + len(left) // 60], elsewhere, need / len(left))
        if not mark:
            break
        marks.append(mark)
        left = [text for text in left if mark not in text]
    return tuple(marks) if len(left) <= (1 - MARKED) * len(last) else ()


def _mark(last: Sequence[str], elsewhere: str, share: float) -> str:
    """The text that most of these replies and no others hold, at least `share` of them; the longest such."""
    found: tuple[int, int, str] = (0, 0, "")
    for text in sorted(set(last), key=lambda t: (len(t), t))[:4]:
        seen: set[str] = set()
        for part in (text[:120], text[-120:]) if len(text) > 240 else (text,):
            for size in range(min(_MAX_MARK, len(part)), 2, -1):
                for at in range(len(part) - size + 1):
                    piece = part[at : at + size]
                    if piece in seen or piece != piece.strip():
                        continue
                    seen.add(piece)
                    count = sum(piece in other for other in last)
                    if count >= share * len(last) and (count, size) > found[:2] and piece not in elsewhere:
                        found = (count, size, piece)
        if found[0] == len(last):
            break
    return found[2]


# ---------------------------------------------------------------------- actions


def _actions(steps: Sequence[Logged]) -> tuple[tuple[str, ...] | None, frozenset[str]]:
    """The known actions (None where they are many or new ones still turn up), and the admissible ones among them."""
    uses: Counter[str] = Counter()
    fails: Counter[str] = Counter()
    for s in steps:
        uses[s.action.text] += 1
        fails[s.action.text] += s.failed
    if len(uses) > 16 * MAX_ACTIONS:
        return None, frozenset()
    refused = _refusal(steps, uses)
    bad = {text for text, n in uses.items() if fails[text] == n}
    if refused:
        answers: dict[str, set[str]] = {}
        for s in steps:
            answers.setdefault(s.action.text, set()).add(s.reply)
        bad |= {text for text, seen in answers.items() if seen == {refused} and uses[text] <= _rare(len(steps))}
    good = frozenset(uses.keys() - bad)
    kept = [s for s in steps if s.action.text in good]
    half = steps[len(steps) // 2].group
    early = {s.action.text for s in kept if s.group < half}
    late = [s for s in kept if s.group >= half]
    new = sum(s.action.text not in early for s in late)
    if not good or len(good) > MAX_ACTIONS or len(kept) < 4 * len(good) or not early or new > 0.01 * len(late):
        return None, frozenset()
    chosen = good | bad if len(good) + len(bad) <= MAX_ACTIONS else good
    return tuple(sorted(chosen)), good


def _rare(steps: int) -> int:
    """An action used no more often than this is rare: a hundredth of all steps, at least 2."""
    return max(2, steps // 100)


def _refusal(steps: Sequence[Logged], uses: Mapping[str, int]) -> str:
    """The reply that most rare plain actions share, where nothing marks errors: what a wrong command is told; or ""."""
    if any(s.failed for s in steps):
        return ""
    rare = _rare(len(steps))
    told: dict[str, set[str]] = {}
    texts: set[str] = set()
    for s in steps:
        if not is_call(s.action) and uses[s.action.text] <= rare and not s.last:
            texts.add(s.action.text)
            if s.reply:
                told.setdefault(s.reply, set()).add(s.action.text)
    if not told:
        return ""
    best = max(sorted(told), key=lambda reply: len(told[reply]))
    return best if len(told[best]) >= 3 and 2 * len(told[best]) > len(texts) else ""


# ---------------------------------------------------------------------- errors


def _errors(steps: Sequence[Logged], tools: Mapping[str, ToolSpec], good: frozenset[str]) -> dict[str, ErrorForm]:
    seen: dict[str, Counter[str]] = {kind: Counter() for kind in DEFAULTS}
    refused = "" if tools else _refusal(steps, Counter(s.action.text for s in steps))
    for s in steps:
        if not s.reply or not (s.failed or (refused and s.reply == refused)):
            continue
        kind, found = _kind(s, tools)
        if kind:
            seen[kind][template(s.reply, s.action, found)] += 1
    out = {}
    for kind, text in DEFAULTS.items():
        best = max(sorted(seen[kind]), key=seen[kind].__getitem__, default=None)
        out[kind] = ErrorForm(text) if best is None else ErrorForm(best, True, seen[kind][best])
    return out


def _kind(s: Logged, tools: Mapping[str, ToolSpec]) -> tuple[str, Violation | None]:
    """The kind of a recorded error, "" for one that has nothing to do with the form of the call."""
    action = s.action
    if action.problem:
        return "malformed", None
    if not action.tool:
        return ("malformed" if tools else "inadmissible"), None
    if action.tool not in tools:
        return "unknown_tool", None
    found = broken(tools[action.tool], action)
    if found is not None:
        return found.kind, found
    return "", None


def template(reply: str, action: Action, found: Violation | None) -> str:
    """A recorded error with the tool's name, the argument's and its value replaced by slots."""
    slots: dict[str, str] = {}
    if not action.tool and action.text:
        slots[action.text] = "$value"
    if found is not None and found.value is not None:
        value = found.value if isinstance(found.value, str) else json.dumps(found.value, ensure_ascii=False)
        if len(value) >= 2:
            slots[value] = "$value"
    if found is not None and found.top:
        slots[found.top] = "$argument"
    if action.tool:
        slots[action.tool] = "$tool"
    if not slots:
        return reply.replace("$", "$$")
    names = sorted(slots, key=lambda text: -len(text))
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, names)) + r")(?!\w)|\$")
    return pattern.sub(lambda m: slots.get(m.group(), "$$"), reply)
