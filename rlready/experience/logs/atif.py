"""ATIF, the Agent Trajectory Interchange Format, versions 1.4 to 1.8; our own exports (`rlready.export`) too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlready.experience.logs.chat import schemas, task_of
from rlready.experience.logs.facts import Facts
from rlready.experience.logs.forms import RunForm
from rlready.experience.logs.load import Record
from rlready.experience.logs.messages import Conversation, keys_of, result_text
from rlready.experience.logs.report import LogReport, UnreadableError
from rlready.experience.logs.times import seconds_of
from rlready.experience.recording import Recording
from rlready.types import Message

_OURS = "rlready"
_SOURCES = ("system", "user", "agent")


def fits(value: Any) -> bool:
    """Whether a record is an ATIF document."""
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        return False
    version, steps = value.get("schema_version"), value["steps"]
    return (isinstance(version, str) and version.startswith("ATIF")) or (
        "agent" in value and bool(steps) and isinstance(steps[0], dict) and steps[0].get("source") in _SOURCES
    )


class AtifReader:
    """Reads the records of one file."""

    def __init__(self, report: LogReport) -> None:
        self.report, self.notes = report, report.notes

    def read(self, record: Record) -> Iterable[Recording]:
        """The document as one recording.

        Raises:
            UnreadableError: it has no steps, or one that cannot be read.
        """
        document = record.value
        if not fits(document) or not document["steps"]:
            raise UnreadableError(f"no ATIF document with steps; the keys are {keys_of(document)}")
        conversation = Conversation(self.notes)
        for step in document["steps"]:
            self._step(step, conversation)
        messages, failed = conversation.paired()
        if not messages:
            raise UnreadableError("no messages")
        if document.get("subagent_trajectories"):
            self.notes["trajectories of sub-agents (left out)"] += len(document["subagent_trajectories"])
        agent = document.get("agent") if isinstance(document.get("agent"), dict) else {}
        facts = self._facts(document)
        ident = document.get("trajectory_id") or ("" if self._ours(document) else document.get("session_id")) or ""
        yield Recording(
            id=str(ident) or (f"{facts.task}-{facts.trial}" if facts.task and facts.trial else ""),
            task_id=facts.task or task_of(messages),
            messages=messages,
            tools=schemas(agent.get("tool_definitions") or ()),
            reward=facts.value(self.notes),
            done=facts.done,
            failed=failed,
            source=facts.source,
            model=str(agent.get("model_name") or facts.model),
            seed=facts.seed,
            place=record.place,
            meta=facts.about,
        )

    def finish(self) -> Iterable[Recording]:
        """Nothing: a record is a run."""
        return ()

    def _ours(self, document: dict[str, Any]) -> dict[str, Any] | None:
        extra = document.get("extra")
        ours = extra.get(_OURS) if isinstance(extra, dict) else None
        return ours if isinstance(ours, dict) else None

    def _facts(self, document: dict[str, Any]) -> Facts:
        facts = Facts()
        ours = self._ours(document)
        if ours is not None:
            task = ours.get("task")
            if isinstance(task, dict):
                facts.task = str(task.get("id", ""))
            if isinstance(ours.get("verdict"), str):
                facts.success = ours["verdict"] == "right"
            if isinstance(ours.get("truncated"), bool):
                facts.done = not ours["truncated"] and ours.get("failure") is None
            facts.read(ours, self.notes, ids=False, deep=False)
        final = document.get("final_metrics")
        for holder in (document, document.get("extra"), final, final.get("extra") if isinstance(final, dict) else None):
            if isinstance(holder, dict):
                facts.read(holder, self.notes, ids=False)
        return facts

    def _step(self, step: Any, conversation: Conversation) -> None:
        if not isinstance(step, dict) or step.get("source") not in _SOURCES:
            raise UnreadableError(f"a step has no source of system, user or agent; its keys are {keys_of(step)}")
        self.report.saw_time(seconds_of(step.get("timestamp")))
        source, observation = step["source"], step.get("observation")
        ours = _extra(step)
        if step.get("is_copied_context"):
            self.notes["steps copied from another trajectory (left out)"] += 1
        elif "message" in ours:
            conversation.messages.append(Message.from_json(ours["message"]))
        elif source != "system" or step.get("message"):
            role = "assistant" if source == "agent" else source
            calls = step.get("tool_calls") or []
            raws = [{**c, **_arguments(c)} if isinstance(c, dict) else c for c in calls]
            conversation.add({"role": role, "content": step.get("message") or "", "tool_calls": raws})
        results = observation.get("results") if isinstance(observation, dict) else None
        for result in results or []:
            if isinstance(result, dict):
                self._result(
                    result,
                    bool(step.get("tool_calls"))
                    or bool(conversation.messages[-1:] and conversation.messages[-1].tool_calls),
                    conversation,
                )

    def _result(self, result: dict[str, Any], after_calls: bool, conversation: Conversation) -> None:
        ours = _extra(result)
        if "message" in ours:
            conversation.messages.append(Message.from_json(ours["message"]))
            return
        content = result.get("content")
        text = result_text(content) if content is not None else ""
        call = result.get("source_call_id")
        if (
            call is None
            and not after_calls
            and not (conversation.messages and conversation.messages[-1].role == "tool")
        ):
            conversation.messages.append(Message("user", text))  # what an environment without tools replied
            return
        extra = result.get("extra")
        if isinstance(extra, dict) and (extra.get("is_error") is True or extra.get("error")):
            conversation.failed.add(len(conversation.messages))
        conversation.messages.append(Message("tool", text, (), str(call) if call is not None else None))


def _extra(part: dict[str, Any]) -> dict[str, Any]:
    extra = part.get("extra")
    ours = extra.get(_OURS) if isinstance(extra, dict) else None
    return ours if isinstance(ours, dict) else {}


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Arguments that were no object stand as text under "_text" in our exports."""
    arguments = call.get("arguments")
    if isinstance(arguments, dict) and set(arguments) == {"_text"} and isinstance(arguments["_text"], str):
        return {"arguments": arguments["_text"]}
    return {}


FORM = RunForm("atif", fits, AtifReader)
