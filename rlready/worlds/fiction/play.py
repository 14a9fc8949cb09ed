"""Scripted play of a fictional world as logs, in the form that users have: OpenAI chat messages with tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from rlready.aio import run_sync
from rlready.envs.schema import Tool
from rlready.errors import UserError, did_you_mean
from rlready.experience.recording import Recording
from rlready.seeds import derive, rng
from rlready.toolcalls import parse_calls
from rlready.types import Message, Task, ToolCall
from rlready.worlds.fiction.world import MIXED, FictionWorld

Form = Literal["chat"]


def play_logs(
    world: FictionWorld,
    script_mix: Mapping[str, float] = MIXED,
    episodes: int = 3600,
    seed: int = 0,
    *,
    split: str = "train",
) -> list[Recording]:
    """Play episodes with scripted players; a function of the arguments.

    Args:
        world: whose tickets are played, one after another, round and round.
        script_mix: relative weight of each script.
        episodes: how many.
        seed: of the players' chance.
        split: which tickets.

    Returns:
        One recording an episode. `source` is "random" for random play and "agent" otherwise; `meta["script"]` names
        the player.

    Raises:
        UserError: a script or split is unknown, or a number is not positive.
    """
    scripts = world.scripts
    for name, weight in script_mix.items():
        if name not in scripts:
            raise did_you_mean("script", name, scripts)
        if not weight > 0:
            raise UserError(f'The weight of script "{name}" is {weight}; it must be a positive number.')
    if split not in world.splits:
        raise did_you_mean("split", split, world.splits)
    if episodes < 1 or not script_mix:
        raise UserError("play_logs needs at least one episode and one script.")
    tasks = world.splits[split]

    async def all_of_them() -> list[Recording]:
        return [await _play(world, tasks[i % len(tasks)], i, script_mix, seed) for i in range(episodes)]

    return run_sync(all_of_them())


async def _play(world: FictionWorld, task: Task, number: int, mix: Mapping[str, float], seed: int) -> Recording:
    chance = rng(seed, "fiction", "play", task.id, number)
    script = chance.choices(list(mix), list(mix.values()))[0]
    env = world.env()
    env_seed = derive(seed, "env", task.id, number)
    seen = await env.reset(task, env_seed)
    moves = world.scripts[script](task, chance)
    messages = list(task.prompt)
    failed: set[str] = set()
    reply: str | None = None
    while True:
        try:
            action = next(moves) if reply is None else moves.send(reply)
        except StopIteration:
            action = world.closing
        before = len(seen.messages)
        step = await env.step(action)
        seen = step.observation
        answers = seen.messages[before + 1 :]
        messages.append(_said(action, answers))
        messages += answers
        failed |= {m.tool_call_id or "" for m in answers if _is_error(m.text)}
        reply = "\n".join(m.text for m in answers)
        if step.terminated or step.truncated:
            break
    moves.close()
    return Recording(
        id=f"{world.name}-{seed}-{number:05d}",
        task_id=task.id,
        messages=tuple(messages),
        tools=tuple(Tool(fn).schema() for fn in world.setting.tools({})),
        reward=step.reward,
        done=step.terminated,
        failed=frozenset(failed),
        source="random" if script == "random" else "agent",
        model=f"script:{script}",
        seed=env_seed,
        meta={"script": script},
    )


def _said(action: str, answers: tuple[Message, ...]) -> Message:
    calls = parse_calls(action)
    if not calls:
        return Message("assistant", action)
    ids = [m.tool_call_id or "" for m in answers]
    made = [ToolCall(c.name, json.dumps(c.arguments), i) for c, i in zip(calls, ids, strict=True)]
    return Message("assistant", "", tuple(made))


def _is_error(text: str) -> bool:
    return text.startswith("Error") or text.startswith('{"error"')


def write_logs(recordings: Iterable[Recording], path: str | Path, form: Form = "chat") -> int:
    """Write recordings, one JSON object a line.

    Each line has `id`, `task_id`, `messages` (OpenAI form: `tool_calls` with ids and arguments as JSON text, `tool`
    messages with `tool_call_id`), `tools` (OpenAI form), `reward`, `done`, `source`, `model`, `seed`.

    Args:
        recordings: what to write.
        path: the file; its folder is made.
        form: "chat", the only one.

    Returns:
        The number of lines.

    Raises:
        UserError: there is no such form.
    """
    if form != "chat":
        raise did_you_mean("form of logs", form, ["chat"])
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for recording in recordings:
            file.write(json.dumps(_line(recording), ensure_ascii=False) + "\n")
            count += 1
    return count


def _line(recording: Recording) -> dict[str, Any]:
    return {
        "id": recording.id,
        "task_id": recording.task_id,
        "messages": [_message(m) for m in recording.messages],
        "tools": [{"type": "function", "function": dict(tool)} for tool in recording.tools],
        "reward": recording.reward,
        "done": recording.done,
        "source": recording.source,
        "model": recording.model,
        "seed": recording.seed,
    }


def _message(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        out["content"] = message.text or None
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    return out
