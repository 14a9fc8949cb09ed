"""A domain's tools as an MCP server: an agent calls them as it would call the real ones, and the dream replies.

    tools/list     the tools of the logs, with their schemas; `say` for plain words, where the domain has them; and
                   `begin_task` where there are several tasks
    tools/call     a step of the episode. What the dream calls an error comes back as a result with `isError`

One MCP session is one episode at a time. `begin_task` (task, seed) answers with the rules and what the user wants;
where the task is fixed, the episode begins with the first call. Calls made at once are taken one after another. `_meta`
of a result holds `rlready/step`, `rlready/done` and `rlready/reward`: for the trainer, not for the agent.

What is no reply of the dream (a deadline, a busy server) is a JSON-RPC error with the refusal as its data. After a
deadline the same call may be made again to get its reply; another call is refused until then (see `session`).

Over HTTP a session is what the handshake of the protocol up to 2025-11-25 makes it; newer clients, which have no
sessions, are told to use the handshake (they do so by themselves), or name their session in the address:
`/mcp?session=NAME`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from rlready.dream.domain import Domain, call_text
from rlready.dream.serve.http import Receive, Scope, Send
from rlready.dream.serve.limits import Limits, Refusal
from rlready.dream.serve.session import Request, Session
from rlready.dream.serve.sessions import Sessions
from rlready.dream.serve.wire import Reset, Step
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.tasks.base import TaskSet
from rlready.types import Task

try:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.exceptions import MCPError
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
except ImportError as error:
    raise UserError(f'An MCP server needs more packages: pip install "rlready[serve]". ({error})') from error

if TYPE_CHECKING:
    from collections.abc import Sequence

App = Callable[[Scope, Receive, Send], Any]
REFUSED = -32001
"""Our JSON-RPC code for a refusal; its data says which."""

Plays = dict[str, "Play"]


class Play:
    """One MCP session: its episode, and whose call is next."""

    def __init__(self, tools: ToolServer, book: Sessions) -> None:
        self.tools, self.book = tools, book
        self.session: Session | None = None
        self.begun = False
        self._turn = asyncio.Lock()
        self._calls = 0

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Take a call, when its turn has come."""
        limit, began = self.book.limits.deadline, self.book.loop.time()
        self._calls += 1
        try:
            async with asyncio.timeout(limit):
                await self._turn.acquire()
        except TimeoutError:
            raise Refusal("TIMEOUT", f"Earlier calls took all of {limit:g} s; this one was not made.") from None
        finally:
            self._calls -= 1
        try:
            left = max(1e-3, began + limit - self.book.loop.time())
            if name == self.tools.begin and self.tools.fixed is None:
                return await self._begin(arguments, left)
            if not self.begun:
                if self.tools.fixed is None:
                    return _text(f"There is no task yet: call {self.tools.begin} first.", failed=True)
                await self._ask(replace(self.tools.fixed, timeout=left))
            if name == self.tools.say:
                words = arguments.get("text")
                if not isinstance(words, str):
                    return _text('Error: "text" must be a text.', failed=True)
            else:
                words = call_text(name, arguments)
            return self._result(await self._ask(Step(words, timeout=left)))
        except Refusal as refusal:
            if refusal.code in ("EPISODE_OVER", "NO_EPISODE"):
                return _text(refusal.message, failed=True)
            raise
        finally:
            self._turn.release()

    async def _begin(self, arguments: Mapping[str, Any], left: float) -> types.CallToolResult:
        task, seed = arguments.get("task"), arguments.get("seed")
        for key, value in (("task", task), ("seed", seed)):
            right = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
            if not right and not (key == "task" and isinstance(value, str)):
                return _text(f'Error: "{key}" must be a number from 0.', failed=True)
        try:
            reply = await self._ask(Reset(task, seed, timeout=left))
        except Refusal as refusal:
            if refusal.code == "VALIDATION_ERROR":
                return _text(f"Error: {refusal.message}", failed=True)
            raise
        observation = reply["observation"]
        parts = [self.tools.domain.rules, *(m["content"] for m in observation["messages"] if m["role"] == "user")]
        return _text("\n\n".join(p for p in parts if p and isinstance(p, str)), meta=_meta(reply))

    async def _ask(self, request: Request) -> dict[str, Any]:
        if self.session is None or (self.session.over is not None and isinstance(request, Reset)):
            self.session = self.book.open()
        if isinstance(request, Reset):
            request = replace(request, only_new=True)
        reply: dict[str, Any] = orjson.loads(await self.session.ask(request))
        self.begun = True
        return reply

    def _result(self, reply: dict[str, Any]) -> types.CallToolResult:
        observation = reply["observation"]
        shown = [_plain(m["content"]) for m in observation["messages"] if m["role"] != "assistant"]
        text = "\n".join(shown)
        failed = observation["metadata"].get("failed")
        return _text(text, failed=looks_failed(text) if failed is None else bool(failed), meta=_meta(reply))

    @property
    def gone(self) -> bool:
        """Whether nothing is lost when it is forgotten."""
        if self.session is None:
            return not self._turn.locked() and not self._calls
        return self.session.over is not None

    async def leave(self) -> None:
        """Close the episode."""
        if self.session is not None:
            await self.book.discard(self.session)


class ToolServer:
    """Makes the MCP server of a domain, and knows its sessions."""

    def __init__(
        self, domain: Domain, tasks: TaskSet, *, task: str | int | None = None, seed: int | None = None
    ) -> None:
        """Describe the tools once.

        Args:
            domain: its `tools`, `rules` and `says`.
            tasks: what can be played.
            task: id or index of the only task to play; None offers all of them.
            seed: of its hidden world.
        """
        self.domain, self.tasks = domain, tasks
        if task is None and len(tasks) == 1:
            task = 0
        self.fixed = None if task is None else Reset(task, seed)
        self.begin = _free("begin_task", domain)
        self.say = _free("say", domain)
        self.listed = self._list()

    def server(self, name: str, lifespan: Callable[[Any], AbstractAsyncContextManager[Any]]) -> Server[Any]:
        """The server; its lifespan yields (book, plays)."""

        async def list_tools(ctx: ServerRequestContext[Any], params: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=self.listed)

        async def call_tool(
            ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
        ) -> types.CallToolResult:
            book, plays = ctx.lifespan_context
            key = session_of(ctx)
            play: Play | None = plays.get(key)
            if play is None or (play.session is not None and play.session.over is not None and self.fixed is None):
                play = plays[key] = Play(self, book)
            try:
                return await play.call(params.name, params.arguments or {})
            except Refusal as refusal:
                raise MCPError(REFUSED, refusal.message, refusal.to_json()) from None

        return Server(
            name, instructions=self._instructions(), lifespan=lifespan, on_list_tools=list_tools, on_call_tool=call_tool
        )

    def _instructions(self) -> str:
        if self.fixed is None:
            return f"Call {self.begin} first; it says what the user wants."
        task = self.tasks[self.fixed.task] if isinstance(self.fixed.task, int) else None
        if task is None:
            task = next((t for t in self.tasks if t.id == self.fixed.task), None)
        if task is None:
            raise UserError(f'serve: there is no task "{self.fixed.task}"; give an id, or an index.')
        wanted = task.data.get("instruction") or "\n".join(m.text for m in task.prompt if m.role == "user")
        return "\n\n".join(part for part in (self.domain.rules, str(wanted)) if part)

    def _list(self) -> list[types.Tool]:
        tools = [
            types.Tool(name=tool.name, description=tool.description or None, input_schema=_schema(tool.parameters))
            for tool in self.domain.tools.values()
        ]
        closes = self.domain.ending.words_close
        if self.domain.says or closes:
            what = "Give the final answer; this ends the task." if closes else "Say something to the user."
            schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
            tools.append(types.Tool(name=self.say, description=what, input_schema=schema))
        if self.fixed is None:
            schema = {
                "type": "object",
                "properties": {
                    "task": {
                        "anyOf": [{"type": "string"}, {"type": "integer"}],
                        "description": f"Id of a task, or its number below {len(self.tasks)}; default: the next one.",
                    },
                    "seed": {"type": "integer", "minimum": 0, "description": "The same seed gives the same world."},
                },
            }
            about = "Begin a task, leaving the present one; answers with the rules and what the user wants."
            tools.append(types.Tool(name=self.begin, description=about, input_schema=schema))
        return tools


def mcp_server(
    env_factory: EnvFactory,
    tasks: TaskSet | Sequence[Task],
    domain: Domain,
    *,
    task: str | int | None = None,
    seed: int | None = None,
    limits: Limits | None = None,
    name: str = "rlready",
) -> Server[Any]:
    """An MCP server for any transport of the `mcp` package; each connection has its own episode.

    Args:
        env_factory: makes an environment for one episode.
        tasks: what can be played.
        domain: whose tools are offered.
        task: id or index of the only task; None offers `begin_task`.
        seed: of the only task's hidden world; of episodes that name none, where there are several tasks.
        limits: see there.
        name: of the server.

    Raises:
        UserError: there are no tasks, or not this one.
    """
    made = ToolServer(domain, Sessions(env_factory, tasks, limits).tasks, task=task, seed=seed)

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[tuple[Sessions, Plays]]:
        book = Sessions(env_factory, made.tasks, limits, seed=seed or 0)
        book.start()
        try:
            yield book, {}
        finally:
            await book.close()

    return made.server(name, lifespan)


def serve_stdio(env_factory: EnvFactory, tasks: TaskSet | Sequence[Task], domain: Domain, **options: Any) -> None:
    """Serve one MCP client over standard input and output until it leaves; takes what `mcp_server` takes.

    Raises:
        UserError: as `mcp_server`.
    """
    server = mcp_server(env_factory, tasks, domain, **options)

    async def run() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(run())


def http_app(
    book: Sessions, domain: Domain, *, name: str = "rlready", loopback: bool = True
) -> tuple[App, Callable[[], AbstractAsyncContextManager[None]]]:
    """The MCP server over streamable HTTP, sharing the sessions of `book`: the application and its lifespan."""
    plays: Plays = {}

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[tuple[Sessions, Plays]]:
        yield book, plays

    server = ToolServer(domain, book.tasks).server(name, lifespan)
    names = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
    manager = StreamableHTTPSessionManager(
        app=server,
        json_response=True,
        security_settings=TransportSecuritySettings(
            enable_dns_rebinding_protection=loopback,
            allowed_hosts=names,
            allowed_origins=[f"http://{host}" for host in names],
        ),
        session_idle_timeout=book.limits.idle_seconds,
        max_sessions=book.limits.max_sessions,
        max_request_body_size=book.limits.max_bytes,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        version = headers.get(b"mcp-protocol-version", LATEST_HANDSHAKE_VERSION.encode()).decode("latin-1")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS and _named(scope) is None:
            await _use_handshake(version, send)
            return
        await manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            play = plays.pop(headers.get(b"mcp-session-id", b"").decode("latin-1"), None)
            if play is not None:
                await play.leave()
        for key in [k for k, p in plays.items() if p.gone]:
            plays.pop(key, None)

    return app, manager.run


def session_of(ctx: ServerRequestContext[Any]) -> str:
    """What tells MCP sessions apart: nothing on stdio, where there is one; over HTTP the id, or the name given."""
    request = ctx.request
    if request is None:
        return ""
    named = _named(request.scope)
    return f"named {named}" if named is not None else str(request.headers.get("mcp-session-id", ""))


def looks_failed(text: str) -> bool:
    """Whether a reply reads as an error: it begins with "Error", or is an object whose "error" says something."""
    if text[:5].lower() == "error":
        return True
    if not text.lstrip().startswith("{"):
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and bool(value.get("error"))


def _named(scope: Mapping[str, Any]) -> str | None:
    found = parse_qs(scope["query_string"].decode("latin-1")).get("session")
    return found[0] if found else None


async def _use_handshake(version: str, send: Send) -> None:
    problem = {
        "code": types.UNSUPPORTED_PROTOCOL_VERSION,
        "message": "Episodes need sessions: use the handshake, or name a session in the address (/mcp?session=NAME).",
        "data": {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version},
    }
    body = orjson.dumps({"jsonrpc": "2.0", "id": None, "error": problem})
    await send({"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


def _free(name: str, domain: Domain) -> str:
    return name if name not in domain.tools else f"dream_{name}"


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **parameters}


def _meta(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rlready/step": reply["observation"]["step"],
        "rlready/done": reply["done"],
        "rlready/reward": reply["reward"],
    }


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _text(text: str, *, failed: bool = False, meta: dict[str, Any] | None = None) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, is_error=failed, _meta=meta)
