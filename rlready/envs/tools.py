"""Multi-turn with tools: the model calls Python functions, reads their results, and answers.

The model writes calls as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (see `rlready.toolcalls`). A
completion without a call is the final answer and ends the episode. Each call gets one tool message back. A malformed
call, an unknown tool, wrong arguments and an exception in the tool all become error messages that the model can read
and are counted; nothing is executed on a guess.

`Step.info` holds running counts: `tool_calls` (executed), `tool_malformed`, `tool_unknown`, `tool_rejected` (wrong
arguments), `tool_raised`, `tool_timeouts`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlready.aio import call_in_thread
from rlready.envs.base import Env, Observation, Step
from rlready.envs.schema import Tool
from rlready.errors import EnvError, UserError
from rlready.toolcalls import Call, parse_calls
from rlready.types import Message, Task

Tools = Sequence[Callable[..., Any] | Tool] | Mapping[str, Callable[..., Any]]

SYSTEM = """You can call tools. To call one, write
<tool_call>{"name": "...", "arguments": {...}}</tool_call>
and wait for its result. When you are done, answer without a tool call. The tools:
{tools}"""

_COUNTS = ("tool_calls", "tool_malformed", "tool_unknown", "tool_rejected", "tool_raised", "tool_timeouts")


class ToolEnv(Env):
    """An episode with tools."""

    def __init__(
        self,
        tools: Tools | Callable[[Task, int], Tools],
        *,
        system: str | None = SYSTEM,
        max_turns: int = 16,
        max_calls: int = 8,
        max_chars: int = 4000,
        timeout: float | None = None,
    ) -> None:
        """Make an environment for one episode.

        Args:
            tools: functions (or `Tool`s, whose schema is read once and for all), {name: function}, or a function
                (task, seed) -> tools that makes fresh ones with a state of their own. Schemas come from type hints.
            system: system message; "{tools}" in it is replaced by the schemas, one a line. None: none.
            max_turns: after this many completions the episode is truncated.
            max_calls: calls executed per completion; further ones are answered with an error.
            max_chars: longer results are cut, and say so.
            timeout: seconds a tool may take; a sync tool then runs in a thread. None: no limit, no thread.

        Raises:
            UserError: a limit is not positive, or a tool cannot be described.
        """
        if max_turns < 1 or max_calls < 1 or max_chars < 1 or (timeout is not None and timeout <= 0):
            raise UserError("ToolEnv: max_turns, max_calls, max_chars and timeout must be positive.")
        self._make = tools if callable(tools) and not isinstance(tools, (Mapping, Sequence)) else None
        self._tools = {} if self._make else read_tools(tools)  # type: ignore[arg-type]
        self.system = system
        self.max_turns, self.max_calls, self.max_chars, self.timeout = max_turns, max_calls, max_chars, timeout
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._messages: list[Message] = []
        self._turns = 0
        self._open = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Pose the task with its tools.

        Raises:
            EnvError: the task has no prompt.
        """
        if not task.prompt:
            raise EnvError(f"task {task.id} has no prompt, so there is nothing to answer.")
        if self._make is not None:
            self._tools = read_tools(self._make(task, seed))
        self._messages = list(task.prompt)
        if self.system is not None:
            text = self.system.replace("{tools}", describe(self._tools.values()))
            if self._messages[0].role == "system":
                text = f"{self._messages.pop(0).text}\n\n{text}"
            self._messages.insert(0, Message("system", text))
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._turns = 0
        self._open = True
        return Observation(self._messages)

    async def step(self, action: str) -> Step:
        """Execute the calls in a completion, or take it as the answer.

        Raises:
            EnvError: the episode has not begun, or is over.
        """
        if not self._open:
            raise EnvError("step was called on an episode that has not begun or is over.")
        self._turns += 1
        self._messages.append(Message("assistant", action))
        calls = parse_calls(action)
        for i, call in enumerate(calls):
            if i < self.max_calls:
                reply = await self._execute(call)
            else:
                reply = f"Error: at most {self.max_calls} calls are executed per turn; this one was not."
            self._messages.append(Message("tool", reply, tool_call_id=f"call_{self._turns}_{i}"))
        terminated = not calls
        truncated = not terminated and self._turns >= self.max_turns
        self._open = not (terminated or truncated)
        return Step(Observation(self._messages), 0.0, terminated, truncated, dict(self.counts))

    async def _execute(self, call: Call) -> str:
        if call.arguments is None:
            self.counts["tool_malformed"] += 1
            return f"Error: {call.problem}"
        tool = self._tools.get(call.name)
        if tool is None:
            self.counts["tool_unknown"] += 1
            return f'Error: there is no tool "{call.name}". The tools are: {", ".join(self._tools)}.'
        try:
            arguments = tool.bind(call.arguments)
        except ValueError as error:
            self.counts["tool_rejected"] += 1
            return f"Error: {error}"
        self.counts["tool_calls"] += 1
        try:
            result = await self._call(tool, arguments)
        except TimeoutError:
            self.counts["tool_timeouts"] += 1
            return f"Error: {call.name} took longer than {self.timeout} seconds and was abandoned."
        except Exception as error:
            self.counts["tool_raised"] += 1
            return self._shorten(f"Error: {type(error).__name__}: {error}")
        return self._shorten(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str))

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        if self.timeout is None:
            result = tool.fn(**arguments)
            return await result if inspect.isawaitable(result) else result
        if inspect.iscoroutinefunction(tool.fn):
            return await asyncio.wait_for(tool.fn(**arguments), self.timeout)
        return await asyncio.wait_for(call_in_thread(lambda: tool.fn(**arguments)), self.timeout)

    def _shorten(self, text: str) -> str:
        if len(text) <= self.max_chars:
            return text
        return f"{text[: self.max_chars]}... [{len(text) - self.max_chars} more characters were cut]"


def read_tools(tools: Tools) -> dict[str, Tool]:
    """Tools by name.

    Raises:
        UserError: two have the same name, or one cannot be described.
    """
    if isinstance(tools, Mapping):
        made = [Tool(fn, name) for name, fn in tools.items()]
    else:
        made = [tool if isinstance(tool, Tool) else Tool(tool) for tool in tools]
    out: dict[str, Tool] = {}
    for tool in made:
        if tool.name in out:
            raise UserError(f"Two tools have the name {tool.name}. Pass them as {{name: function}}.")
        out[tool.name] = tool
    return out


def describe(tools: Sequence[Tool] | Any) -> str:
    """The schemas of tools as text, one JSON object a line."""
    return "\n".join(json.dumps(tool.schema(), ensure_ascii=False) for tool in tools)
