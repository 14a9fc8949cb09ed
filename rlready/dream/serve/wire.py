"""What goes over the wire: requests read from JSON, observations written as JSON.

A reset is a mapping, all of it optional:

    task        id of a task, or its index; default: by the seed, or the next one in turn
    seed        of the hidden world; default: hashed from the server's seed and a count
    episode_id  a name for the episode, given back by `state`
    messages    "all" (default): each observation holds the whole context; "new": only what came since the last one
    request_id  see `sessions`
    timeout_s   a deadline shorter than the server's

An action is `{"text": "..."}`, what a policy would write, or `{"tool": "...", "arguments": {...}}`, and may hold
`request_id` and `timeout_s` as well (also inside "metadata", where openenv-core's typed actions have room for them).

What comes back is openenv-core's `{"observation", "reward", "done"}` and `request_id`, with these observations:

    text        what came back: text of the latest message; "" where the episode ended without a word
    messages    the context, messages as `Message.to_json`
    start       how many messages of the context were left out since the client has them (0 unless `messages="new"`)
    actions     the admissible actions, where they are known
    task, step, terminated, truncated, request_id
    metadata    the environment's facts for logs, never for the policy; at the end the verdict and its parts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rlready.dream.domain import call_text
from rlready.dream.serve.limits import Refusal
from rlready.types import Message

MAX_ID = 255


@dataclass(frozen=True, slots=True)
class Reset:
    """A request for an episode; fields as in the module's table."""

    task: str | int | None = None
    seed: int | None = None
    episode_id: str | None = None
    only_new: bool = False
    id: str | None = None
    timeout: float | None = None
    ignored: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What tells a repeated request from another one."""
        return f"reset {self.task!r} {self.seed!r} {self.episode_id!r} {self.only_new}"


@dataclass(frozen=True, slots=True)
class Step:
    """An action as text."""

    text: str
    id: str | None = None
    timeout: float | None = None

    @property
    def key(self) -> str:
        """What tells a repeated request from another one."""
        return f"step {self.text}"


def read_json(body: bytes | str) -> dict[str, Any]:
    """A JSON object; an empty body is an empty object.

    Raises:
        Refusal: it is none.
    """
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal("INVALID_JSON", f"The request is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Refusal("VALIDATION_ERROR", "The request is not a JSON object.")
    return value


_RESET = frozenset({"task", "task_id", "seed", "episode_id", "messages", "request_id", "timeout_s"})


def read_reset(data: Mapping[str, Any]) -> Reset:
    """A reset from its mapping. Keys that mean nothing here are ignored, and named in the first observation.

    Raises:
        Refusal: a value has the wrong type.
    """
    task = data.get("task", data.get("task_id"))
    if task is not None and (isinstance(task, bool) or not isinstance(task, (str, int))):
        raise _wrong("task", "the id of a task, or its index", task)
    seed = data.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise _wrong("seed", "a number from 0", seed)
    show = data.get("messages", "all")
    if show not in ("all", "new"):
        raise _wrong("messages", '"all" or "new"', show)
    episode = data.get("episode_id")
    if episode is not None and not (isinstance(episode, str) and len(episode) <= MAX_ID):
        raise _wrong("episode_id", f"a text of at most {MAX_ID} characters", episode)
    ignored = tuple(sorted(str(key) for key in data if key not in _RESET))
    return Reset(task, seed, episode, show == "new", _id(data), _timeout(data), ignored)


def read_step(data: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> Step:
    """A step from its action, and from the message around it, where that holds an id or deadline.

    Raises:
        Refusal: it is no action.
    """
    text = data.get("text")
    if text is None:
        tool, arguments = data.get("tool"), data.get("arguments", {})
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise Refusal(
                "VALIDATION_ERROR",
                'An action is {"text": "..."}, or {"tool": "...", "arguments": {...}}; '
                f"got the keys {sorted(map(str, data))}.",
                request_id=_id(outer or {}) or _id(data),
            )
        text = call_text(tool, arguments)
    elif not isinstance(text, str):
        raise _wrong("text", "a text", text)
    meta = data.get("metadata")
    places = [p for p in (outer, data, meta) if isinstance(p, Mapping)]
    ids = [name for place in places if (name := _id(place)) is not None]
    limits = [seconds for place in places if (seconds := _timeout(place)) is not None]
    return Step(text, ids[0] if ids else None, limits[0] if limits else None)


def _id(data: Mapping[str, Any]) -> str | None:
    value = data.get("request_id")
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and 0 < len(value) <= MAX_ID:
        return value
    raise _wrong("request_id", f"a number, or a text of at most {MAX_ID} characters", value)


def _timeout(data: Mapping[str, Any]) -> float | None:
    value = data.get("timeout_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise _wrong("timeout_s", "a positive number of seconds", value)
    return float(value)


def _wrong(key: str, wanted: str, value: Any) -> Refusal:
    return Refusal("VALIDATION_ERROR", f'"{key}" must be {wanted}, but is {str(value)[:80]!r}.')


class Writer:
    """Writes the observations of one episode. Messages are encoded once, however often the context is sent."""

    __slots__ = ("_known", "_sent", "only_new")

    def __init__(self, only_new: bool = False) -> None:
        """Choose whether only new messages are sent."""
        self.only_new = only_new
        self._known: list[tuple[Message, orjson.Fragment]] = []
        self._sent = 0

    def write(
        self,
        messages: Sequence[Message],
        actions: Sequence[str] | None,
        facts: Mapping[str, Any],
        metadata: Mapping[str, Any],
        reward: float | None,
        done: bool,
    ) -> bytes:
        """One reply: a JSON object with `observation`, `reward`, `done`. Values that JSON lacks are written as text."""
        known = self._known
        same = 0
        for (old, _), new in zip(known, messages, strict=False):
            if old is not new and old != new:
                break
            same += 1
        del known[same:]
        for message in messages[same:]:
            known.append((message, orjson.Fragment(orjson.dumps(message.to_json()))))
        start = min(same, self._sent) if self.only_new else 0
        self._sent = len(known)
        observation = {
            "text": messages[-1].text if messages and messages[-1].role != "assistant" else "",
            "messages": [encoded for _, encoded in known[start:]],
            "start": start,
            "actions": actions,
            **facts,
            "metadata": metadata,
        }
        body = {"observation": observation, "reward": reward, "done": done, "request_id": facts.get("request_id")}
        return orjson.dumps(body, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}

SCHEMA: Mapping[str, Any] = {
    "action": {
        "title": "Action",
        "type": "object",
        "properties": {
            "text": {**_TEXT, "description": "What the policy wrote."},
            "tool": {**_TEXT, "description": "Instead of text: the name of a tool."},
            "arguments": {"type": "object", "description": "Of the tool."},
            "request_id": {**_TEXT, "description": "Given back; a repeated one is answered as before."},
            "timeout_s": {"type": "number", "exclusiveMinimum": 0},
            "metadata": {"type": "object"},
        },
        "anyOf": [{"required": ["text"]}, {"required": ["tool"]}],
    },
    "observation": {
        "title": "Observation",
        "type": "object",
        "properties": {
            "text": _TEXT,
            "messages": {"type": "array", "items": {"type": "object"}},
            "start": {"type": "integer"},
            "actions": {"anyOf": [{"type": "array", "items": _TEXT}, {"type": "null"}]},
            "task": _TEXT,
            "step": {"type": "integer"},
            "terminated": _FLAG,
            "truncated": _FLAG,
            "request_id": _TEXT,
            "metadata": {"type": "object"},
        },
        "required": ["text", "messages", "task", "step"],
    },
    "state": {
        "title": "State",
        "type": "object",
        "properties": {
            "episode_id": {"anyOf": [_TEXT, {"type": "null"}]},
            "step_count": {"type": "integer", "minimum": 0},
            "session": _TEXT,
            "task": {"anyOf": [_TEXT, {"type": "null"}]},
            "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "done": _FLAG,
            "working_on": {"anyOf": [_TEXT, {"type": "null"}]},
        },
        "required": ["step_count", "session", "done"],
    },
}
"""JSON schemas of action, observation and state, as `/schema` gives them."""
