"""openenv-core's protocol over a WebSocket, at `/ws`: one connection, one session.

    {"type": "reset", "data": {...}}       ->  {"type": "observation", "data": {"observation", "reward", "done"}}
    {"type": "step", "data": {action}}     ->  the same
    {"type": "state"}                      ->  {"type": "state", "data": {...}}
    {"type": "close"}                      ->  the connection is closed
    anything that is refused               ->  {"type": "error", "data": {"message", "code", ...}}

Replies also hold `request_id`. openenv-core's client neither sends nor reads ids; it takes the next message for its
answer. So there is one reply to a message, and *a reply is only ever sent to the newest message*: when another arrives
while one is being worked on, the client has given up on that one (its own timeout, a cancelled call), and what would
come late is kept instead of sent (see `session`). A session is opened by the first reset, not by the connection, so a
full server can say so and be asked again.

This is plain ASGI: a step costs one task and no queue of ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from rlready.dream.serve.limits import Refusal
from rlready.dream.serve.session import Outcome, Request, Session, Waiter
from rlready.dream.serve.sessions import Sessions
from rlready.dream.serve.wire import Step, read_json, read_reset, read_step

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CONNECTIONS_PER_SESSION = 4


class Link:
    """One WebSocket and its session, if it has one yet."""

    def __init__(self, book: Sessions, send: Send) -> None:
        """Of an accepted connection."""
        self.book = book
        self.session: Session | None = None
        self.touched = book.loop.time()
        self._send = send
        self._waiter: Waiter | None = None

    async def take(self, text: str | bytes) -> bool:
        """Deal with a message; whether the connection goes on."""
        self.touched = self.book.loop.time()
        if self._waiter is not None:
            self._waiter.drop()
            self._waiter = None
        id = None
        try:
            message = read_json(text)
            kind, data = message.get("type"), message.get("data", {})
            if not isinstance(data, Mapping):
                raise Refusal("VALIDATION_ERROR", f'"data" must be an object, but is {str(data)[:80]!r}.')
            if kind == "step":
                request: Request = read_step(data, message)
            elif kind == "reset":
                request = read_reset({**data, **{k: message[k] for k in ("request_id", "timeout_s") if k in message}})
            elif kind == "state":
                id = message.get("request_id")
                await self._write(b'{"type":"state"', id, orjson.dumps(self._state()))
                return True
            elif kind == "close":
                return False
            else:
                raise Refusal("UNKNOWN_TYPE", f"Unknown message type {kind!r}; it is reset, step, state or close.")
            id = request.id
            await self._ask(request)
        except Refusal as refusal:
            await self._refuse(refusal, id)
        return True

    async def _ask(self, request: Request) -> None:
        session = self.session
        if session is None or session.over is not None:
            if session is not None and isinstance(request, Step):
                assert session.over is not None
                raise session.over
            if isinstance(request, Step):
                raise Refusal("NO_EPISODE", "There is no episode yet: reset first.", request_id=request.id)
            session = self.session = self.book.open()

        async def answer(outcome: Outcome) -> None:
            if isinstance(outcome, Refusal):
                await self._refuse(outcome, request.id)
            else:
                await self._write(b'{"type":"observation"', request.id, outcome)

        got = session.submit(request, answer)
        if isinstance(got, bytes):
            await self._write(b'{"type":"observation"', request.id, got)
        else:
            self._waiter = got

    def _state(self) -> dict[str, Any]:
        if self.session is None:
            raise Refusal("NO_EPISODE", "There is no episode yet: reset first.")
        if self.session.over is not None:
            raise self.session.over
        return self.session.state()

    async def _refuse(self, refusal: Refusal, id: str | None) -> None:
        await self._write(b'{"type":"error"', id or refusal.request_id, orjson.dumps(refusal.to_json()))

    async def _write(self, head: bytes, id: Any, data: bytes) -> None:
        name = b"" if id is None else b',"request_id":' + orjson.dumps(id)
        text = (head + name + b',"data":' + data + b"}").decode()
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError):  # the client left; the reader sees it too, and closes the session
            return

    async def end(self) -> None:
        """Close an idle connection."""
        await self._close(1001, "idle")

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):  # it is closed already
            return

    async def leave(self, *, say: bool) -> None:
        """Drop what is under way and close the session."""
        if self._waiter is not None:
            self._waiter.drop()
        if say:
            await self._close(1000, "")
        if self.session is not None:
            await self.book.discard(self.session)


async def serve_socket(book: Sessions, receive: Receive, send: Send) -> None:
    """Serve one connection until either side ends it."""
    await receive()  # websocket.connect
    if book.closing or len(book.connections) >= book.limits.max_sessions * CONNECTIONS_PER_SESSION:
        await send({"type": "websocket.close", "code": 1013, "reason": "busy"})
        return
    await send({"type": "websocket.accept"})
    link = Link(book, send)
    book.connections.add(link)
    say = False
    try:
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                break
            if not await link.take(message.get("text") or message.get("bytes") or ""):
                say = True
                break
    finally:
        book.connections.discard(link)
        await link.leave(say=say)
