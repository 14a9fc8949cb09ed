"""A recording as an episode: what was asked, what was done, what came back.

Every tool call is an action in its canonical text, and its result the reply. A message of the agent without a call is
an action of plain words; its reply is what the user says next. Calls made at once are read one after another. Words
beside a call are no action; they are counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import orjson

from rlready.experience.episode import LoggedEpisode
from rlready.experience.recording import Recording
from rlready.toolcalls import CLOSE, OPEN, parse_calls, without_thoughts
from rlready.types import Message, ToolCall

THRESHOLD = 1.0
"""A reward from here on is a success, where the log does not say otherwise; rewards lie in {0, 1} or [0, 1]."""

_plain = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode


def episode_of(
    recording: Recording, *, rules: str = "", threshold: float = THRESHOLD
) -> tuple[LoggedEpisode, Counter[str]]:
    """Read a recording as actions and replies.

    Args:
        recording: as `read_logs` gives it.
        rules: the system prompt that the runs share (`common_rules`); another one is put before the instruction, so
            that nothing the agent was told is lost.
        threshold: least reward of a success.

    Returns:
        The episode, and how often something was met that is worth knowing.
    """
    notes: Counter[str] = Counter()
    messages = recording.messages
    begin = next((i for i, m in enumerate(messages) if m.role == "assistant"), len(messages))
    results = {m.tool_call_id: m.text for m in messages if m.role == "tool" and m.tool_call_id is not None}
    owned = {call.id for m in messages for call in m.tool_calls}
    actions: list[str] = []
    replies: list[str] = []
    errors: list[int] = []
    ends: list[int] = []  # number of actions after each assistant message
    for message in messages[begin:]:
        if message.role == "assistant":
            if message.tool_calls and message.text.strip():
                notes["thoughts beside calls"] += 1
            if len(message.tool_calls) > 1:
                notes["calls made at once (read one after another)"] += len(message.tool_calls)
            for call in message.tool_calls:
                reply = results.get(call.id)
                if reply is None:
                    notes["calls without a result"] += 1
                elif call.id in recording.failed or is_error(reply):
                    errors.append(len(actions))
                text, good = _action(call)
                notes["malformed calls"] += not good
                actions.append(text)
                replies.append(reply or "")
            if not message.tool_calls:
                actions.append(without_thoughts(message.text).strip())
                notes["empty messages of the agent"] += not actions[-1]
                replies.append("")
            ends.append(len(actions))
        elif message.role == "user" or (message.role == "tool" and message.tool_call_id not in owned):
            if message.role == "user" and messages[begin:] and replies[-1] and actions[-1].startswith(OPEN):
                notes["words of the user right after a result (put behind it)"] += 1
            replies[-1] = f"{replies[-1]}\n{message.text}" if replies[-1] else message.text
    success, judged = _judged(recording, threshold)
    episode = LoggedEpisode(
        task_id=recording.task_id,
        instruction=_instruction(recording, begin, rules),
        actions=tuple(actions),
        replies=tuple(replies),
        success=success,
        finished=_finished(recording),
        source=recording.source,
        seed=recording.seed,
        judged=judged,
        reward=recording.reward,
        rewards=_by_action(recording, ends, notes),
        errors=tuple(errors),
    )
    return episode, +notes


def instruction(recording: Recording) -> str:
    """What the agent was asked: the messages that are not the system's, before it first spoke."""
    return _instruction(
        recording, next((i for i, m in enumerate(recording.messages) if m.role == "assistant"), None), None
    )


def system_of(recording: Recording) -> str:
    """The system prompt: the system messages before the agent first spoke; "" where there is none."""
    texts = []
    for message in recording.messages:
        if message.role == "assistant":
            break
        if message.role == "system":
            texts.append(message.text)
    return "\n\n".join(texts)


def common_rules(recordings: Iterable[Recording]) -> str:
    """The commonest system prompt, the first one where several are equally common; "" where no run has one."""
    counts = Counter(system_of(recording) for recording in recordings)
    return counts.most_common(1)[0][0] if counts else ""


def success_of(reward: float | None, threshold: float = THRESHOLD) -> bool:
    """Whether a reward is a success; False where there is none."""
    return reward is not None and reward >= threshold - 1e-9


def is_error(text: str) -> bool:
    """Whether a result reads as an error: it begins with "Error", or is a JSON object with something under "error"."""
    if text[:5].lower() == "error":
        return True
    if '"error"' in text and text.lstrip().startswith("{"):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return False
        return isinstance(value, dict) and bool(value.get("error"))
    return False


def _action(call: ToolCall) -> tuple[str, bool]:
    """A call's canonical text (as `dream.domain.call_text`), or as it was written where it is malformed."""
    if not call.name:  # it stood in the text, and could not be read
        return call.arguments.strip(), False
    written = _escaped(f'{OPEN}{{"name": {_plain(call.name)}, "arguments": {_plain(call.arguments)}}}{CLOSE}')
    (read,) = parse_calls(written)
    if read.arguments is None:
        return written, False
    return _escaped(f'{OPEN}{{"name": {_plain(call.name)}, "arguments": {_plain(read.arguments)}}}{CLOSE}'), True


def _escaped(text: str) -> str:
    """Tags of thoughts inside an argument, written so that the parser does not take them for thoughts."""
    if "think>" in text:
        text = text.replace("<think>", "\\u003cthink>").replace("</think>", "\\u003c/think>")
    return text


def _instruction(recording: Recording, begin: int | None, rules: str | None) -> str:
    asked = "\n".join(m.text for m in recording.messages[:begin] if m.role not in ("system", "assistant"))
    system = system_of(recording)
    return asked if rules is None or system in ("", rules) else f"{system}\n\n{asked}"


def _judged(recording: Recording, threshold: float) -> tuple[bool, bool]:
    said: Any = recording.meta.get("success")
    if isinstance(said, bool):
        return said, True
    return success_of(recording.reward, threshold), recording.reward is not None


def _finished(recording: Recording) -> bool:
    if recording.done is not None:
        return recording.done
    last: Message | None = recording.messages[-1] if recording.messages else None
    return last is not None and (last.role == "user" or (last.role == "assistant" and not last.tool_calls))


def _by_action(recording: Recording, ends: list[int], notes: Counter[str]) -> tuple[float, ...]:
    """Rewards of assistant messages as rewards of actions: the last call of a message gets its reward."""
    if not recording.rewards:
        return ()
    if len(recording.rewards) != len(ends):
        notes["rewards that are not one for each message of the agent (left out)"] += 1
        return ()
    out = [0.0] * (ends[-1] if ends else 0)
    for end, reward in zip(ends, recording.rewards, strict=True):
        out[end - 1] += reward
    return tuple(out)
