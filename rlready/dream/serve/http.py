"""The HTTP side: sessions with ids of their own, what openenv-core asks over HTTP, and the server's state.

Sessions, plain JSON both ways:

    POST   /sessions            {task, seed, ...}                  201 {"session", and the first observation}
    POST   /sessions/ID/reset   {task, seed, ...}                  200 {"observation", "reward", "done", "request_id"}
    POST   /sessions/ID/step    {"action": {...}, "request_id"}    200 the same
    GET    /sessions/ID                                            200 state
    DELETE /sessions/ID                                            200 {"closed": true}

Give every request an id of its own and repeat it after a lost connection or a 504: it is carried out once. An error is
`{"error": {"message", "code", "request_id", "retry_after"}}` with the status in `limits.STATUS`; a server that is busy
answers 503 with a Retry-After header.

openenv-core's routes without a session (its own server makes an environment for each of these as well):

    POST /reset      the first observation of an episode that is not kept
    POST /step       {"action", and task, seed, history: [actions]}: the episode is replayed, then the action is taken.
                     The same (task, seed, actions) give the same episode, so this is exact, only slower
    GET  /state  /schema  /metadata  /health

`GET /metrics`: counts and the present state (`Sessions.metrics`). `/ws`: see `websocket`. `/mcp`: see `mcp_server`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from rlready.dream.serve.limits import Refusal
from rlready.dream.serve.sessions import Sessions
from rlready.dream.serve.wire import SCHEMA, Step, read_json, read_reset, read_step

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def build(
    book: Sessions,
    about: Mapping[str, Any],
    *,
    loopback: bool = True,
    mcp: App | None = None,
    mcp_lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """The application.

    Args:
        book: the sessions; started and closed with the application.
        about: what `/metadata` says.
        loopback: the server is only for this machine: refuse requests for other hosts' names (DNS rebinding).
        mcp: served at `/mcp`, with its lifespan.
        mcp_lifespan: see `mcp`.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        book.start()
        try:
            if mcp_lifespan is None:
                yield
            else:
                async with mcp_lifespan():
                    yield
        finally:
            await book.close()

    api = Api(book, about)
    routes = [
        Route("/sessions", api.create, methods=["POST"]),
        Route("/sessions/{id}/step", api.step, methods=["POST"]),
        Route("/sessions/{id}/reset", api.reset, methods=["POST"]),
        Route("/sessions/{id}", api.state, methods=["GET"]),
        Route("/sessions/{id}", api.delete, methods=["DELETE"]),
        Route("/reset", api.reset_once, methods=["POST"]),
        Route("/step", api.step_once, methods=["POST"]),
        Route("/state", api.blank_state, methods=["GET"]),
        Route("/schema", api.schema, methods=["GET"]),
        Route("/metadata", api.metadata, methods=["GET"]),
        Route("/health", api.health, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
    ]
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers={Refusal: _refused})
    inner.add_middleware(_Front, loopback=loopback, mcp=mcp)
    return inner


def foreign(headers: Iterable[tuple[bytes, bytes]], loopback: bool) -> bool:
    """Whether a request comes from a web page elsewhere, or for another host's name (DNS rebinding).

    Args:
        headers: names in lower case.
        loopback: the server is only for this machine.
    """
    found = dict(headers)
    host = _name(b"//" + found.get(b"host", b""))
    if loopback and host not in LOOPBACK:
        return True
    origin = found.get(b"origin")
    return origin is not None and _name(origin) not in ({host} | (LOOPBACK if loopback else set()))


class _Front:
    """Before any route: keeps foreign web pages out, and takes `/mcp`, which is no request of this API."""

    def __init__(self, app: App, loopback: bool, mcp: App | None) -> None:
        self.app, self.loopback, self.mcp = app, loopback, mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif foreign(scope["headers"], self.loopback):
            refusal = Refusal("FORBIDDEN", "This server answers this machine only, and no web pages of others.")
            await _error(refusal)(scope, receive, send)
        elif self.mcp is not None and scope["path"].rstrip("/") == "/mcp":
            await self.mcp(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _name(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return None


class Api:
    """The routes."""

    def __init__(self, book: Sessions, about: Mapping[str, Any]) -> None:
        """See `build`."""
        self.book, self.about = book, about

    async def create(self, request: Request) -> Response:
        """POST /sessions."""
        wanted = read_reset(await self._body(request))
        session = self.book.open(created_by=wanted.id)
        try:
            reply = await session.ask(wanted)
        except Refusal as refusal:
            if refusal.code != "TIMEOUT" or wanted.id is None:  # nobody knows the session's id
                await self.book.discard(session)
            raise
        return _json(b'{"session":' + orjson.dumps(session.id) + b"," + reply[1:], 201)

    async def step(self, request: Request) -> Response:
        """POST /sessions/ID/step."""
        session = self.book.find(request.path_params["id"])
        body = await self._body(request)
        wanted = read_step(_action(body), body)
        reply = await session.ask(wanted)
        if await request.is_disconnected():
            session.unsee(wanted, reply)
        return _json(reply)

    async def reset(self, request: Request) -> Response:
        """POST /sessions/ID/reset."""
        session = self.book.find(request.path_params["id"])
        return _json(await session.ask(read_reset(await self._body(request))))

    async def state(self, request: Request) -> Response:
        """GET /sessions/ID."""
        return _json(orjson.dumps(self.book.find(request.path_params["id"]).state()))

    async def delete(self, request: Request) -> Response:
        """DELETE /sessions/ID."""
        await self.book.discard(self.book.find(request.path_params["id"]))
        return _json(b'{"closed":true}')

    async def reset_once(self, request: Request) -> Response:
        """POST /reset."""
        return _json(await self._once(await self._body(request)))

    async def step_once(self, request: Request) -> Response:
        """POST /step."""
        body = await self._body(request)
        history = body.get("history", [])
        if not isinstance(history, list):
            raise Refusal("VALIDATION_ERROR", '"history" must be a list of actions.')
        steps = [read_step(a if isinstance(a, Mapping) else {"text": a}) for a in history]
        last = read_step(_action(body), body)
        return _json(await self._once(body, [*(replace(s, id=None) for s in steps), last]))

    async def _once(self, body: Mapping[str, Any], steps: list[Step] | None = None) -> bytes:
        known = {k: body[k] for k in ("task", "task_id", "seed", "episode_id", "timeout_s") if k in body}
        wanted = read_reset(known if steps else body)
        session = self.book.open()
        ends = self.book.loop.time() + min(self.book.limits.deadline, wanted.timeout or self.book.limits.deadline)
        try:
            reply = await session.ask(wanted)
            for step in steps or []:
                reply = await session.ask(replace(step, timeout=max(1e-3, ends - self.book.loop.time())))
            return reply
        finally:
            await self.book.discard(session)

    async def blank_state(self, request: Request) -> Response:
        """GET /state."""
        return _json(orjson.dumps({"episode_id": None, "step_count": 0, "session": "", "done": False}))

    async def schema(self, request: Request) -> Response:
        """GET /schema."""
        return _json(orjson.dumps(SCHEMA))

    async def metadata(self, request: Request) -> Response:
        """GET /metadata."""
        return _json(orjson.dumps(dict(self.about)))

    async def health(self, request: Request) -> Response:
        """GET /health."""
        return _json(orjson.dumps({"status": "unhealthy" if self.book.closing else "healthy"}))

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return _json(orjson.dumps(self.book.metrics()))

    async def _body(self, request: Request) -> dict[str, Any]:
        most = self.book.limits.max_bytes
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise Refusal("TOO_LARGE", f"The request is larger than {most} bytes.")
            parts.append(part)
        return read_json(b"".join(parts))


def _action(body: Mapping[str, Any]) -> Mapping[str, Any]:
    action = body.get("action", body)
    if isinstance(action, str):
        return {"text": action}
    if not isinstance(action, Mapping):
        raise Refusal("VALIDATION_ERROR", '"action" must be an object such as {"text": "..."}.')
    return action


def _json(body: bytes, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(body, status, media_type="application/json")


def _error(refusal: Refusal) -> Response:
    from starlette.responses import Response

    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    body = orjson.dumps({"error": refusal.to_json()})
    return Response(body, refusal.status, headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _error(error)
