"""Chat messages, one run a record.

Read are `{"messages": [...]}`, tau-bench's `{"traj": [...], "reward", "task_id", "trial"}`, tau2-bench's simulations,
ShareGPT's conversations, and a bare list of messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from rlready.experience.logs.facts import Facts
from rlready.experience.logs.forms import RunForm
from rlready.experience.logs.load import Record, is_messages
from rlready.experience.logs.messages import Conversation, keys_of
from rlready.experience.logs.report import LogReport, UnreadableError
from rlready.experience.logs.values import jsonish
from rlready.experience.recording import Recording
from rlready.types import Message

KEYS = ("messages", "traj", "conversation", "conversations", "trajectory", "dialogue")


def fits(value: Any) -> bool:
    """Whether a record is a run in chat messages."""
    if isinstance(value, dict):
        return any(
            isinstance(value.get(key), list) and (not value[key] or isinstance(value[key][0], dict)) for key in KEYS
        )
    return is_messages(value)


class ChatReader:
    """Reads the records of one file."""

    def __init__(self, report: LogReport) -> None:
        self.notes = report.notes
        self._system = Message("system", "")  # the last one seen; runs share it, so they share the object

    def read(self, record: Record) -> Iterable[Recording]:
        """The record as one recording.

        Raises:
            UnreadableError: it holds no messages, or one that cannot be read.
        """
        value = record.value
        raws, facts = value, Facts()
        if isinstance(value, dict):
            raws = next((value[key] for key in KEYS if isinstance(value.get(key), list)), None)
            if raws is None:
                raise UnreadableError(f"no list of messages; the keys are {keys_of(value)}")
            facts.read(value, self.notes)
            raws = self._answered(value, raws)
        conversation = Conversation(self.notes)
        conversation.extend(raws)
        if not conversation.messages:
            raise UnreadableError("no messages")
        messages, failed = conversation.paired()
        if messages[0].role == "system":
            if messages[0] == self._system:
                messages = (self._system, *messages[1:])
            self._system = messages[0]
        yield Recording(
            id=facts.id or (f"{facts.task}-{facts.trial}" if facts.task and facts.trial else ""),
            task_id=facts.task or task_of(messages),
            messages=messages,
            tools=schemas(value["tools"] if isinstance(value, dict) and isinstance(value.get("tools"), list) else ()),
            reward=facts.value(self.notes),
            done=facts.done,
            failed=failed,
            source=facts.source,
            model=facts.model,
            seed=facts.seed,
            place=record.place,
            meta=facts.about,
        )

    def finish(self) -> Iterable[Recording]:
        """Nothing: a record is a run."""
        return ()

    def _answered(self, value: dict[str, Any], raws: list[Any]) -> list[Any]:
        """The messages, and the answer where the log keeps it beside the request."""
        for holder in (value, value.get("response")):
            if isinstance(holder, dict) and isinstance(holder.get("choices"), list) and holder["choices"]:
                return [*raws, holder["choices"][0]]
        if isinstance(value.get("system"), str) and value["system"] and not (raws and raws[0].get("role") == "system"):
            return [{"role": "system", "content": value["system"]}, *raws]  # Anthropic keeps it beside
        return raws


def task_of(messages: tuple[Message, ...]) -> str:
    """A task's id where the log names none: a hash of what was asked before the agent first spoke.

    Raises:
        UnreadableError: nothing was asked, and nobody spoke.
    """
    asked = []
    for message in messages:
        if message.role == "assistant":
            break
        if message.role != "system":
            asked.append(message.text)
    return hashlib.blake2b("\n".join(asked).encode("utf-8", "replace"), digest_size=8).hexdigest()


def schemas(raws: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Tools as `{"name", "description", "parameters"}`; those in no known form are left out."""
    out = []
    for raw in raws:
        inner = raw.get("function", raw) if isinstance(raw, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            given = next(
                (inner[k] for k in ("parameters", "input_schema", "inputSchema", "schema") if k in inner), None
            )
            given = jsonish(given)
            given = given if isinstance(given, dict) else {}
            about = inner.get("description")
            out.append(
                {"name": inner["name"], "description": about if isinstance(about, str) else "", "parameters": given}
            )
    return tuple(out)


FORM = RunForm("chat", fits, ChatReader)
