"""What a prompted simulator is told of a domain: the texts for the slots of its template, read off domain and logs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlready.dream.base import Action, Reply
from rlready.dream.domain import Domain
from rlready.dream.library import Library, Steps
from rlready.dream.simulators.layout import cut
from rlready.seeds import derive

NONE = "(nothing is known)"
_LOOKED_AT = 64
_KEYS = 12


def effects(domain: Domain, library: Library) -> str:
    """What each class of actions does to the world."""
    kinds = [kind for kind, _ in library.kinds().most_common()]
    reads = [k for k in kinds if k in library.state.reads]
    ends = list(domain.ending.tools)
    writes = [k for k in domain.tools if k not in library.state.reads and k not in ends]
    lines = []
    if reads:
        lines.append(f"- Only look, and change nothing: {', '.join(reads)}.")
    if writes:
        lines.append(f"- May change the world: {', '.join(writes)}.")
    if ends:
        lines.append(f"- End the episode: {', '.join(ends)}.")
    if domain.tools and domain.says:
        lines.append(
            "- Plain words are said to the user. You answer as the user: somebody who wants what is asked above, knows "
            "their own affairs, answers what is asked, and brings up nothing new."
        )
    if domain.ending.heads:
        lines.append(f"- Actions that begin so end the episode: {', '.join(domain.ending.heads)}.")
    if domain.actions is not None and not domain.tools:
        shown = list(domain.actions[:60])
        more = f" ... and {len(domain.actions) - 60} more" if len(domain.actions) > 60 else ""
        lines.append(f"- Recorded actions: {'; '.join(shown)}{more}.")
    return "\n".join(lines) or NONE


def states(domain: Domain, library: Library) -> str:
    """What kinds of things there are: the form of the recorded replies by kind of action."""
    replies: dict[str, list[str]] = defaultdict(list)
    for id in library:
        for action, reply in library.steps(id):
            if not reply.failed and len(replies[action.kind]) < _LOOKED_AT:
                replies[action.kind].append(reply.text)
    lines = [f"- {kind}: {_form(texts)}" for kind, texts in sorted(replies.items())]
    return "\n".join(lines) or NONE


def _form(texts: Sequence[str]) -> str:
    read = [_json(text) for text in texts]
    objects = [value for value in read if isinstance(value, dict)]
    lists = sum(isinstance(value, list) for value in read)
    length = sorted(len(text) for text in texts)[len(texts) // 2]
    if len(objects) > len(texts) / 2:
        counts = Counter(key for value in objects for key in value)
        keys = list(counts)  # in the order in which they were recorded
        if len(keys) > 2 * _KEYS and sum(counts.values()) < len(objects) * len(keys) / 2:
            return "a JSON object whose keys are ids or names"
        shown = ", ".join(k if counts[k] == len(objects) else f"{k} (sometimes)" for k in keys[:_KEYS])
        return f"a JSON object with {shown}{', ...' if len(keys) > _KEYS else ''}"
    if lists > len(texts) / 2:
        return "a JSON list"
    if len(set(texts)) == 1:
        return f'always "{cut(texts[0], 80)}"' if texts[0] else "nothing comes back"
    return f"text, about {length} characters"


def _json(text: str) -> Any:
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def errors(domain: Domain, library: Library, most: int = 12) -> str:
    """The error catalogue: how each kind is worded, then the commonest recorded errors by kind of action."""
    lines = [
        f"- {kind.replace('_', ' ')}: {form.text}"
        for kind, form in domain.errors.items()
        if form.recorded or kind != "inadmissible"
    ]
    counts: Counter[tuple[str, str]] = Counter()
    for id in library:
        counts.update((a.kind, cut(r.text, 200)) for a, r in library.steps(id) if r.failed and r.text)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"- {kind}, {n} times: {text}" for (kind, text), n in ordered[:most]]
    return "\n".join(lines) or NONE


def tools(domain: Domain) -> str:
    """The tools' schemas, one JSON object a line."""
    return (
        "\n".join(json.dumps(t.schema(), ensure_ascii=False) for t in domain.tools.values()) or "(there are no tools)"
    )


def samples(library: Library, write: Callable[[Reply], str], *, most: int = 12, chars: int = 600) -> str:
    """One recorded reply for each kind of action, the commonest kinds first; which one is decided by a hash."""
    chosen: dict[str, tuple[int, Action, Reply]] = {}
    for id in library:
        for step, (action, reply) in enumerate(library.steps(id)):
            rank = derive("sample", id, step)
            if not reply.failed and (action.kind not in chosen or rank < chosen[action.kind][0]):
                chosen[action.kind] = (rank, action, reply)
    kinds = [kind for kind, _ in library.kinds().most_common(most) if kind in chosen]
    return "\n\n".join(like(chosen[k][1].text, write(shortened(chosen[k][2], chars))) for k in kinds) or NONE


def like(action: str, written: str) -> str:
    """A demonstration."""
    return f"[like] {action}\n{written}"


def shortened(reply: Reply, chars: int) -> Reply:
    """A reply with its text cut."""
    return reply if len(reply.text) <= chars else Reply(cut(reply.text, chars), reply.failed, reply.done, reply.reward)


def facts(known: Steps, chars: int) -> str:
    """What is known of a world: questions and answers, as many as fit."""
    lines: list[str] = []
    left = chars
    for action, reply in known:
        line = f"{action.text}\n{reply.text}"
        if len(line) > left:
            lines.append("[...]")
            break
        lines.append(line)
        left -= len(line)
    return "\n\n".join(lines) or NONE


def output(tags: Sequence[str]) -> str:
    """The output rules of a simulator: its tags, in order."""
    means: Mapping[str, str] = {
        "reply": "exactly what the environment gives back, nothing added",
        "failed": "yes where the reply is an error message, else no",
        "done": "yes where the episode ends here, else no",
        "reward": "the reward of this step, a number",
        "confidence": "0 to 100: how likely the real environment would give back this very reply",
    }
    lines = "\n".join(f"<{tag}>{means[tag]}</{tag}>" for tag in tags)
    return f"Answer with these tags, in this order, once each, and nothing outside them:\n{lines}"
