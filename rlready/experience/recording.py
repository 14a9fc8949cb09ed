"""A recording: one run of an agent as some tool logged it, in the one form that every reader brings it to.

A recording is a conversation. The system and user messages are what the agent was told, assistant messages (with their
tool calls) are what it did, tool messages answer calls by `tool_call_id`. Plain transitions become a conversation too:
states are user messages, actions assistant messages.

`episode_of` reads a recording as actions and replies, the form that is stored, retrieved and dreamt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlready.types import Message


@dataclass(frozen=True, slots=True)
class Recording:
    """One logged run.

    Attributes:
        id: unique within the logs; readers derive one where the log has none.
        task_id: runs of the same task share it; readers hash the first user message where the log names no task.
        messages: the conversation, every tool call answered by a tool message where the log has its result.
        tools: the tools' schemas where the log holds them, each `{"name", "description", "parameters"}`.
        reward: the run's reward; None where the log does not say.
        rewards: one per assistant message, for logs of transitions; empty otherwise.
        done: whether the run came to its own end; False where it was cut, None where the log does not say.
        failed: ids of the tool calls that the log marks as errors.
        seconds: latency of replies by tool call id, where the log has times.
        source: who acted ("agent", "random", ...).
        model: the model's name, "" where unknown.
        seed: the environment's, where the log names one.
        place: file and line (or record) it was read from, for messages.
        meta: what else the log says of the run, JSON-ready.
    """

    id: str
    task_id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    reward: float | None = None
    rewards: tuple[float, ...] = ()
    done: bool | None = None
    failed: frozenset[str] = frozenset()
    seconds: Mapping[str, float] = field(default_factory=dict)
    source: str = "agent"
    model: str = ""
    seed: int = 0
    place: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
