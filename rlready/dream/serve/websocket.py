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

A message is dealt with where its bytes arrive, without a queue or a task between: every turn of the event loop that a
request takes to reach the simulator is a pass of the model in which its row is missing. So this is an
`asyncio.Protocol` that uvicorn hands the connection to (its `ws` setting), on the parser of `websockets`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from rlready.dream.serve.limits import Refusal
from rlready.dream.serve.session import Outcome, Request, Session, Waiter
from rlready.dream.serve.sessions import Sessions
from rlready.dream.serve.wire import Step, read_json, read_reset, read_step

if TYPE_CHECKING:
    from websockets.frames import Frame
    from websockets.http11 import Request as Handshake

CONNECTIONS_PER_SESSION = 4
PING = 30.0
DEAF = 90.0
"""Seconds between pings, and without a byte from the client until it counts as gone."""

Foreign = Callable[[Iterable[tuple[bytes, bytes]]], bool]


class Link:
    """One client and its session, if it has one yet: messages in, messages out."""

    def __init__(self, book: Sessions, send: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Of an accepted connection.

        Args:
            book: the sessions.
            send: writes a text message.
            end: closes the connection.
        """
        self.book = book
        self.session: Session | None = None
        self.touched = book.loop.time()
        self.end = end
        self._send = send
        self._waiter: Waiter | None = None

    def take(self, text: bytes) -> None:
        """Deal with a message."""
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
                self._write(b'{"type":"state"', id, orjson.dumps(self._state()))
                return
            elif kind == "close":
                self.end()
                return
            else:
                raise Refusal("UNKNOWN_TYPE", f"Unknown message type {kind!r}; it is reset, step, state or close.")
            id = request.id
            self._ask(request)
        except Refusal as refusal:
            self._refuse(refusal, id)

    def leave(self) -> None:
        """The client is gone: drop what is under way and close the session."""
        if self._waiter is not None:
            self._waiter.drop()
        if self.session is not None:
            self.book.spawn(self.book.discard(self.session))

    def _ask(self, request: Request) -> None:
        session = self.session
        if session is None or session.over is not None:
            if session is not None and session.over is not None and isinstance(request, Step):
                raise session.over
            if isinstance(request, Step):
                raise Refusal("NO_EPISODE", "There is no episode yet: reset first.", request_id=request.id)
            session = self.session = self.book.open()

        def answer(outcome: Outcome) -> None:
            if isinstance(outcome, Refusal):
                self._refuse(outcome, request.id)
            else:
                self._write(b'{"type":"observation"', request.id, outcome)

        got = session.submit(request, answer)
        if isinstance(got, bytes):
            answer(got)
        else:
            self._waiter = got

    def _state(self) -> dict[str, Any]:
        if self.session is None:
            raise Refusal("NO_EPISODE", "There is no episode yet: reset first.")
        if self.session.over is not None:
            raise self.session.over
        return self.session.state()

    def _refuse(self, refusal: Refusal, id: str | None) -> None:
        self._write(b'{"type":"error"', id or refusal.request_id, orjson.dumps(refusal.to_json()))

    def _write(self, head: bytes, id: Any, data: bytes) -> None:
        name = b"" if id is None else b',"request_id":' + orjson.dumps(id)
        self._send(b"".join((head, name, b',"data":', data, b"}")))


def protocol(book: Sessions, foreign: Foreign) -> type[asyncio.Protocol]:
    """The class that uvicorn makes one of for each WebSocket.

    Args:
        book: the sessions.
        foreign: whether a handshake's headers are those of a page or name that is to be kept out.
    """
    from websockets.exceptions import InvalidState
    from websockets.frames import Opcode
    from websockets.http11 import Request as Handshake
    from websockets.server import ServerProtocol

    class Socket(asyncio.Protocol):
        """One WebSocket."""

        def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
            self._connections = server_state.connections
            self._conn = ServerProtocol(max_size=book.limits.max_bytes)
            self._link: Link | None = None
            self._parts: list[bytes] = []
            self._heard = book.loop.time()
            self._timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._connections.add(self)
            self._transport: asyncio.Transport = transport  # type: ignore[assignment]

        def connection_lost(self, exc: Exception | None) -> None:
            self._connections.discard(self)
            if self._timer is not None:
                self._timer.cancel()
            link, self._link = self._link, None
            if link is not None:
                book.connections.discard(link)
                link.leave()

        def data_received(self, data: bytes) -> None:
            self._heard = book.loop.time()
            self._conn.receive_data(data)
            for event in self._conn.events_received():
                if isinstance(event, Handshake):
                    self._shake(event)
                elif self._link is not None:
                    self._frame(event)  # type: ignore[arg-type]
            self._flush()

        def eof_received(self) -> None:
            self._conn.receive_eof()
            self._flush()

        def pause_writing(self) -> None:
            self._transport.pause_reading()  # who does not read is not listened to

        def resume_writing(self) -> None:
            self._transport.resume_reading()

        def shutdown(self) -> None:
            """Uvicorn ends."""
            self._close(1012)

        def _shake(self, request: Handshake) -> None:
            path = request.path.partition("?")[0]
            headers = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in request.headers.raw_items()]
            if foreign(headers):
                response = self._conn.reject(403, "This server answers this machine only.\n")
            elif path != "/ws":
                response = self._conn.reject(404, "WebSockets are taken at /ws.\n")
            elif book.closing or len(book.connections) >= book.limits.max_sessions * CONNECTIONS_PER_SESSION:
                response = self._conn.reject(503, "The server is busy.\n")
                response.headers["Retry-After"] = "1"
            else:
                response = self._conn.accept(request)
            self._conn.send_response(response)
            if response.status_code == 101:
                self._link = Link(book, self._send, lambda: self._close(1000))
                book.connections.add(self._link)
                self._timer = book.loop.call_later(PING, self._ping)

        def _frame(self, frame: Frame) -> None:
            assert self._link is not None
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                if frame.fin and not self._parts:
                    self._link.take(bytes(frame.data))
                    return
                self._parts.append(bytes(frame.data))
                if sum(map(len, self._parts)) > book.limits.max_bytes:
                    self._close(1009)
                elif frame.fin:
                    whole, self._parts = b"".join(self._parts), []
                    self._link.take(whole)

        def _send(self, text: bytes) -> None:
            try:
                self._conn.send_text(text)
            except InvalidState:  # the client said goodbye meanwhile
                return
            self._flush()

        def _close(self, code: int) -> None:
            with contextlib.suppress(InvalidState):  # it is closing already
                self._conn.send_close(code)
            self._flush()
            self._transport.close()

        def _ping(self) -> None:
            if book.loop.time() - self._heard > DEAF:
                self._transport.abort()
                return
            self._conn.send_ping(b"")
            self._flush()
            self._timer = book.loop.call_later(PING, self._ping)

        def _flush(self) -> None:
            if self._transport.is_closing():
                return
            for data in self._conn.data_to_send():
                if data:
                    self._transport.write(data)
                else:  # the end of the stream
                    self._transport.close()
            if self._conn.close_expected():
                self._transport.close()

    return Socket
