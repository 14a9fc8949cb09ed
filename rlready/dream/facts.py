"""What an agent could have looked up: the questions to ask a world before its episodes are judged.

Two members of a group may do the same, one after looking, one blindly. Whether it was right depends on the world, not
on whether it was looked at. So before an episode is judged, the world itself is asked what the logs' agents used to
look up in such a task, and the judge hears the answers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rlready.dream.base import Action
from rlready.dream.domain import call_text

_WORD = re.compile(r"[^\s,;:!?\"'(){}\[\]]+")
_LIMIT = 400


class Questions:
    """Reading calls whose arguments a text brings with it.

    Attributes:
        tools: for each reading tool, its argument names (at most two of them).
        known: for each (tool, argument), the values that were recorded.
        shapes: for each (tool, argument), the shapes of those values (letters and digits abstracted).
    """

    def __init__(
        self,
        tools: Mapping[str, tuple[str, ...]],
        known: Mapping[tuple[str, str], frozenset[str]],
        shapes: Mapping[tuple[str, str], frozenset[str]],
    ) -> None:
        """See `learn`."""
        self.tools, self.known, self.shapes = dict(tools), dict(known), dict(shapes)

    @classmethod
    def learn(cls, steps: Iterable[Action], reads: Iterable[str]) -> Questions:
        """From recorded calls of the reading tools. Calls with other than text arguments are not asked about."""
        readers = set(reads)
        names: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        values: dict[tuple[str, str], set[str]] = defaultdict(set)
        for action in steps:
            if action.tool not in readers or action.arguments is None:
                continue
            names[action.tool].add(tuple(sorted(action.arguments)))
            for name, value in action.arguments.items():
                if isinstance(value, str):
                    values[action.tool, name].add(value)
        tools: dict[str, tuple[str, ...]] = {}
        for tool, forms in sorted(names.items()):
            form = min(forms, key=lambda f: (len(f), f))
            if len(form) <= 1 and all((tool, name) in values for name in form):
                tools[tool] = form
        kept = {key: frozenset(v) for key, v in values.items() if key[0] in tools}
        shapes = {key: frozenset(shape(v) for v in found) for key, found in kept.items()}
        small = {key: found if len(found) <= _LIMIT else frozenset() for key, found in kept.items()}
        return cls(tools, small, shapes)

    def about(self, text: str) -> list[Action]:
        """The calls whose argument stands in a text as a word, in a fixed order."""
        words = sorted({w.strip(".") for w in _WORD.findall(text)})
        out: list[Action] = []
        for tool, form in self.tools.items():
            if not form:
                out.append(_call(tool, {}))
                continue
            key = (tool, form[0])
            shapes = {
                s for s in self.shapes[key] if any(c in s for c in "0_-")
            }  # plain words have no shape of their own
            out += [_call(tool, {form[0]: w}) for w in words if w in self.known[key] or shape(w) in shapes]
        return out

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "tools": {tool: list(form) for tool, form in self.tools.items()},
            "known": [[*key, sorted(v)] for key, v in sorted(self.known.items())],
            "shapes": [[*key, sorted(v)] for key, v in sorted(self.shapes.items())],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Questions:
        """Inverse of `to_json`."""
        return cls(
            {tool: tuple(form) for tool, form in record["tools"].items()},
            {(tool, name): frozenset(v) for tool, name, v in record["known"]},
            {(tool, name): frozenset(v) for tool, name, v in record["shapes"]},
        )


def shape(word: str) -> str:
    """A word with its letters and digits abstracted: "ZFA04Y" -> "AAA00A", "order_12" -> "aaaaa_00"."""
    return "".join("0" if c.isdigit() else "A" if c.isupper() else "a" if c.islower() else c for c in word)


def _call(tool: str, arguments: Mapping[str, Any]) -> Action:
    return Action(call_text(tool, arguments), tool, dict(arguments))
