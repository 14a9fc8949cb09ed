"""Plain transitions: `state, action, next_state, reward, done`, one a record, or a record with the steps of an episode.

States become user messages, actions assistant messages; an action that is an object with a name and arguments is a tool
call, and the next state its result. Rows that name an episode belong to it wherever they stand; without a name, an
episode ends where `done` is set or where a state is not the next state of the row before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from rlready.experience.logs.chat import task_of
from rlready.experience.logs.facts import Facts, number
from rlready.experience.logs.forms import RunForm, text
from rlready.experience.logs.load import Record
from rlready.experience.logs.messages import Conversation, json_text, keys_of
from rlready.experience.logs.report import LogReport, UnreadableError
from rlready.experience.logs.values import first
from rlready.experience.recording import Recording
from rlready.types import Message

_STATE = ("state", "obs", "observation", "s")
_NEXT = ("next_state", "next_obs", "next_observation", "s_next", "s2")
_ACTION = ("action", "act", "a")
_EPISODE = ("episode_id", "trajectory_id", "episode", "traj_id", "run_id")
_STEPS = ("transitions", "steps", "rows", "trajectory")
_ENDS = ("done", "terminated", "terminal")


def fits(value: Any) -> bool:
    """Whether a record is a transition, or an episode of them."""
    if not isinstance(value, dict):
        return False
    if _is_row(value):
        return True
    return any(isinstance(value.get(k), list) and value[k] and _is_row(value[k][0]) for k in _STEPS)


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and any(k in value for k in _ACTION) and any(k in value for k in _NEXT)


@dataclass(slots=True)
class _Open:
    """An episode that is being read."""

    name: str
    place: str
    facts: Facts
    conversation: Conversation
    rewards: list[float | None] = field(default_factory=list)
    state: str = ""
    ended: bool = False


class TransitionReader:
    """Reads the rows of one file."""

    def __init__(self, report: LogReport) -> None:
        self.notes = report.notes
        self._open: dict[str, _Open] = {}

    def read(self, record: Record) -> Iterator[Recording]:
        """The episodes that this row ends.

        Raises:
            UnreadableError: it has no action or no next state.
        """
        value = record.value
        if not isinstance(value, dict):
            raise UnreadableError(f"a transition is {keys_of(value)}, not an object")
        steps = None if _is_row(value) else next((value[k] for k in _STEPS if isinstance(value.get(k), list)), None)
        if steps is not None:
            episode = self._begin(value, record)
            for step in steps:
                self._add(episode, step)
            yield self._close(episode)
            return
        if not _is_row(value):
            raise UnreadableError(
                f"a transition needs a state, an action and a next_state; the keys are {keys_of(value)}"
            )
        name = text(first(value, *_EPISODE))
        found = self._open.get(name)
        if found is not None and not name and _text(first(value, *_STATE)) != found.state:
            del self._open[name]
            yield self._close(found)
            found = None
        if found is None:
            found = self._open[name] = self._begin(value, record)
        self._add(found, value)
        if found.ended:
            del self._open[name]
            yield self._close(found)

    def finish(self) -> Iterator[Recording]:
        """The episodes that are still open."""
        for episode in self._open.values():
            yield self._close(episode)
        self._open.clear()

    def _begin(self, value: dict[str, Any], record: Record) -> _Open:
        facts = Facts()
        return _Open(text(first(value, *_EPISODE, "id")), record.place, facts, Conversation(self.notes))

    def _add(self, episode: _Open, row: Any) -> None:
        if not _is_row(row):
            raise UnreadableError(
                f"a transition needs a state, an action and a next_state; the keys are {keys_of(row)}"
            )
        about = {k: v for k, v in row.items() if k not in ("reward", *_ENDS)}
        episode.facts.read(about, self.notes, ids=False)
        conversation, messages = episode.conversation, episode.conversation.messages
        state, after = _text(first(row, *_STATE)), _text(first(row, *_NEXT))
        if not messages:
            messages.append(Message("user", state))
        elif state != episode.state:
            self.notes["states that are not the next state of the row before (the next state was kept)"] += 1
        action = first(row, *_ACTION)
        call = action if isinstance(action, dict) else {}
        if any(isinstance(call.get(k), str) for k in ("name", "tool", "tool_name")):
            named = {
                "name": first(call, "name", "tool", "tool_name"),
                "arguments": first(call, "arguments", "args", "input"),
            }
            conversation.add({"role": "assistant", "content": "", "tool_calls": [{"id": "", **named}]})
            conversation.add({"role": "tool", "content": after})
        else:
            conversation.add({"role": "assistant", "content": _text(action)})
            if after:
                messages.append(Message("user", after))
        episode.rewards.append(number(row.get("reward"), self.notes))
        episode.state = after
        if row.get("truncated") is True:
            episode.ended, episode.facts.done = True, False
        elif any(row.get(k) in (True, 1) for k in _ENDS):
            episode.ended, episode.facts.done = True, True
        elif episode.facts.done is None and any(row.get(k) in (False, 0) for k in _ENDS):
            episode.facts.done = False

    def _close(self, episode: _Open) -> Recording:
        facts = episode.facts
        messages, failed = episode.conversation.paired()
        rewards = [0.0 if r is None else r for r in episode.rewards]
        known = any(r is not None for r in episode.rewards)
        said = facts.value(self.notes)
        return Recording(
            id=episode.name,
            task_id=facts.task or task_of(messages),
            messages=messages,
            reward=said if said is not None else sum(rewards) if known else None,
            rewards=tuple(rewards) if known else (),
            done=facts.done,
            failed=failed,
            source=facts.source,
            model=facts.model,
            seed=facts.seed,
            place=episode.place,
            meta=facts.about,
        )


def _text(value: Any) -> str:
    """A state or an action as text; objects as JSON with sorted keys, so that equal states are equal texts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return json_text(value)


FORM = RunForm("transitions", fits, TransitionReader)
