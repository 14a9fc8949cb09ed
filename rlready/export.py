"""Trajectories as ATIF (Agent Trajectory Interchange Format 1.8) and back, token ids and log-probabilities included.

ATIF is a sequence of steps by system, user and agent; replies of an environment hang on the agent step before them.
Our turns become agent steps; what ATIF has no word for (tree structure, rewards, advantages, sampling temperature)
stands in the steps' `extra["rlready"]`, so that `from_atif(to_atif(t))` is `t` again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import atif

from rlready import __version__
from rlready.errors import UserError
from rlready.run_files import dump_json, write_atomic
from rlready.run_read import LoggedTrajectory
from rlready.types import Message, Part, ToolCall, Trajectory, Turn

SCHEMA = "ATIF-v1.8"
_OURS = "rlready"
_MEDIA: dict[str, atif.ImageMediaType] = {
    "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
}  # fmt: skip
_IN_METRICS = ("prompt_ids", "completion_ids", "logprobs", "text", "context")


def to_atif(trajectory: Trajectory, *, model: str = "", session: str = "", **facts: Any) -> atif.Trajectory:
    """One trajectory as an ATIF document.

    Args:
        trajectory: any, also a tree or one with rewritten contexts; every turn is one agent step.
        model: name of the model that acted.
        session: name of the run.
        facts: more to note at the root, such as step and stage.
    """
    steps: list[atif.Step] = []
    if not (trajectory.turns and trajectory.turns[0].context):
        for message in trajectory.task.prompt:
            _add_message(steps, message, {"prompt": True}, reply=False)
    for number, turn in enumerate(trajectory.turns):
        for message in turn.context:
            _add_message(steps, message, {"message": message.to_json()}, reply=turn.parent == number - 1)
        steps.append(_agent_step(len(steps) + 1, turn))
    outcome = trajectory.to_json()
    del outcome["turns"]
    return atif.Trajectory(
        schema_version=SCHEMA,
        session_id=session or None,
        agent=atif.Agent(name=_OURS, version=__version__, model_name=model or None),
        steps=steps,
        final_metrics=atif.FinalMetrics(
            total_prompt_tokens=sum(len(t.prompt_ids) for t in trajectory.turns),
            total_completion_tokens=trajectory.length,
            total_steps=len(steps),
            extra={"reward": outcome["reward"], "verdict": outcome["verdict"]},
        ),
        extra={_OURS: outcome | facts},
    )


def from_atif(document: atif.Trajectory) -> Trajectory:
    """Inverse of `to_atif`.

    Raises:
        UserError: the document was not written by `to_atif`; other tools' traces are read by `experience.logs`.
    """
    ours = (document.extra or {}).get(_OURS)
    if ours is None:
        raise UserError("This ATIF document was not exported by rlready, so its rewards and turns cannot be restored.")
    turns: list[Turn] = []
    context: list[Message] = []
    for step in document.steps:
        extra = (step.extra or {}).get(_OURS, {})
        if "message" in extra:
            context.append(Message.from_json(extra["message"]))
        elif "turn" in extra:
            assert step.metrics is not None
            turns.append(
                Turn.from_json(
                    extra["turn"]
                    | {
                        "prompt_ids": step.metrics.prompt_token_ids or [],
                        "completion_ids": step.metrics.completion_token_ids or [],
                        "logprobs": step.metrics.logprobs or [],
                        "text": _text(step.message),
                        "context": [m.to_json() for m in context],
                    }
                )
            )
            context = []
            results = step.observation.results if step.observation else []
            context += [Message.from_json((r.extra or {})[_OURS]["message"]) for r in results]
    fields = ("task", "reward", "scores", "verdict", "failure", "seed", "truncated", "env_steps", "info", "timings")
    record = {k: ours[k] for k in fields}
    back = Trajectory.from_json(record | {"turns": []})
    back.turns = turns
    return back


def export_atif(trajectories: Iterable[LoggedTrajectory], folder: Path, *, run: str) -> list[Path]:
    """Write one ATIF file per trajectory into a folder; returns the files.

    Raises:
        UserError: the folder holds other files of that name already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for item in trajectories:
        stage = item.stage.replace("/", "--").replace(" ", "-")
        path = folder / f"{stage + '-' if stage else ''}step{item.step:06d}-g{item.group}-{item.index}.json"
        document = to_atif(item.trajectory, session=run, step=item.step, stage=item.stage)
        write_atomic(path, dump_json(document.to_json_dict(), indent=1))
        out.append(path)
    return out


def _agent_step(number: int, turn: Turn) -> atif.Step:
    extra = {k: v for k, v in turn.to_json().items() if k not in _IN_METRICS}
    return atif.Step(
        step_id=number,
        source="agent",
        message=turn.text,
        metrics=atif.Metrics(
            prompt_tokens=len(turn.prompt_ids),
            completion_tokens=turn.length,
            prompt_token_ids=turn.prompt_ids,
            completion_token_ids=turn.completion_ids,
            logprobs=turn.logprobs or None,
        ),
        llm_call_count=1,
        extra={_OURS: {"turn": extra}},
    )


def _add_message(steps: list[atif.Step], message: Message, ours: dict[str, Any], *, reply: bool) -> None:
    """Append a message of the context: a reply to the agent step before it where it is one, or a step of its own."""
    extra = {_OURS: ours}
    after_agent = reply and bool(steps) and steps[-1].source == "agent" and steps[-1].is_copied_context is None
    if message.role == "tool" or (message.role == "user" and after_agent):
        if after_agent:
            result = atif.ObservationResult(content=_content(message), extra=extra)
            before = steps[-1].observation
            steps[-1].observation = atif.Observation(results=[*(before.results if before else []), result])
            return
        steps.append(atif.Step(step_id=len(steps) + 1, source="user", message=_content(message), extra=extra))
    elif message.role == "assistant":  # an example in the prompt, not something this policy said
        steps.append(
            atif.Step(
                step_id=len(steps) + 1,
                source="agent",
                message=_content(message),
                is_copied_context=True,
                tool_calls=[_call(c, i) for i, c in enumerate(message.tool_calls)] or None,
                extra=extra,
            )
        )
    else:
        steps.append(atif.Step(step_id=len(steps) + 1, source=message.role, message=_content(message), extra=extra))


def _call(call: ToolCall, index: int) -> atif.ToolCall:
    try:
        arguments = json.loads(call.arguments)
    except json.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):  # malformed calls happen; the text is kept as it was written
        arguments = {"_text": call.arguments}
    return atif.ToolCall(tool_call_id=call.id or f"call_{index}", function_name=call.name, arguments=arguments)


def _content(message: Message) -> str | list[atif.ContentPart]:
    if isinstance(message.content, str):
        return message.content
    return [_part(p) for p in message.content]


def _part(part: Part) -> atif.ContentPart:
    if part.kind == "image" and isinstance(part.image, str):
        suffix = part.image.lower().rpartition(".")[2]
        kind = _MEDIA.get(suffix, "image/png")
        return atif.ContentPart(type="image", source=atif.ImageSource(media_type=kind, path=part.image))
    return atif.ContentPart(type="text", text=part.text if part.kind == "text" else "[image]")


def _text(message: str | list[atif.ContentPart]) -> str:
    return message if isinstance(message, str) else "".join(p.text or "" for p in message)
