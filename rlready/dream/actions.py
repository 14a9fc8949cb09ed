"""Checks of actions in code: wrong ones get the recorded kind of error before any model is asked.

A model that answers a call of a tool that does not exist teaches an agent to call it. So syntax, names, arguments and,
where they are known, the admissible actions are checked here, and nothing is executed on a guess. What a wrong action
is told is worded as the logs word it (`Domain.errors`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.domain import DEFAULTS, Domain, ErrorForm, ToolSpec
from rlready.schemas import Violation, short, violation


def broken(tool: ToolSpec, action: Action) -> Violation | None:
    """How a well-formed call breaks its tool's schema; None where it keeps it.

    What recorded calls did without failing is right, whatever a given schema says (`ToolSpec.lenient`).
    """
    found = violation(tool.parameters, action.arguments, closed=not tool.open)
    if found is None or not tool.lenient or found.top not in tool.lenient:
        return found
    kept = {name: value for name, value in (action.arguments or {}).items() if name not in tool.lenient}
    required = [name for name in tool.parameters.get("required") or () if name not in tool.lenient]
    return violation({**tool.parameters, "required": required}, kept, closed=not tool.open)


@dataclass(frozen=True)
class ActionChecks:
    """The layer that answers wrong actions."""

    domain: Domain

    def __post_init__(self) -> None:
        """Prepare the set of known actions."""
        known = self.domain.actions if not self.domain.tools else None
        object.__setattr__(self, "_known", None if known is None else frozenset(known))

    def reply(self, moment: Moment, action: Action) -> Reply | None:
        """The error that a wrong action gets; None for a good one. It depends on the action alone."""
        found = self.kind_of(action)
        if found is None:
            return None
        kind, seen = found
        return Reply(self.word(kind, action, seen), failed=True, origin="check", note=kind)

    def kind_of(self, action: Action) -> tuple[str, Violation | None] | None:
        """What is wrong with an action: a kind of `domain.KINDS`, and the argument it lies in; None for a good one."""
        domain = self.domain
        if action.problem:
            return ("malformed", None)
        if action.tool:
            tool = domain.tools.get(action.tool)
            if tool is None:
                return ("unknown_tool", None)
            seen = broken(tool, action)
            return None if seen is None else (seen.kind, seen)
        if domain.tools:
            if domain.says or domain.ending.words_close:
                return None
            return ("malformed", Violation("malformed", "", None, "a tool call"))
        known: frozenset[str] | None = getattr(self, "_known", None)
        return None if known is None or action.text in known else ("inadmissible", None)

    def word(self, kind: str, action: Action, seen: Violation | None) -> str:
        """The error's text."""
        form = self.domain.errors.get(kind) or ErrorForm(DEFAULTS[kind])
        tool = self.domain.tools.get(action.tool)
        takes = (tool.parameters.get("properties") or {}) if tool else {}
        value = seen.value if seen is not None else action.text
        if not (form.recorded and isinstance(value, str)):  # logs show a text bare, our own sentences quote it
            value = short(value)
        return form.fill(
            tool=action.tool,
            tools=", ".join(self.domain.tools),
            argument=(seen.top if form.recorded else seen.argument) if seen else "",
            arguments=", ".join(takes) or "no arguments",
            value=value,
            wanted=seen.wanted if seen else "",
            problem=action.problem or "There is no tool call.",
        )
