"""Running a server: until interrupted, in a thread of its own, or on the loop that is running."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rlready.dream.serve.http import LOOPBACK, build, foreign
from rlready.dream.serve.limits import Limits
from rlready.dream.serve.sessions import Sessions
from rlready.dream.serve.websocket import protocol
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.tasks.base import TaskSet
from rlready.types import Task

if TYPE_CHECKING:
    import uvicorn

    from rlready.dream.domain import Domain

MISSING = 'Serving needs more packages: pip install "rlready[serve]".'


class Server:
    """A server of episodes.

    On the running loop, `async with Server(...) as server`; in a thread of its own, `with Server(...) as server`;
    until interrupted, `serve(...)`. `server.url` is what clients are given.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        tasks: TaskSet | Sequence[Task],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        seed: int = 0,
        domain: Domain | None = None,
        name: str = "rlready",
        expose: bool = False,
    ) -> None:
        """Prepare a server; nothing listens yet.

        Args:
            env_factory: makes an environment for one episode.
            tasks: what can be played, and how it is scored.
            host: where to listen.
            port: 0 takes a free one.
            limits: see there.
            seed: of episodes that name none.
            domain: its tools are then served at `/mcp` as well.
            name: for `/metadata`.
            expose: allow a host that others can reach. There is no password.

        Raises:
            UserError: a package is missing, there are no tasks, or the host is open to others without `expose`.
        """
        _need()
        if host not in LOOPBACK and not expose:
            raise UserError(
                f"serve: anybody who reaches {host} could play, there is no password; say expose=True (--expose) if "
                "that is meant, or leave the host at 127.0.0.1."
            )
        self.book = Sessions(env_factory, tasks, limits, seed=seed)
        about = {
            "name": name,
            "description": f"{len(self.book.tasks)} tasks of {self.book.tasks.name}, played as text episodes.",
            "version": _version(),
            "tasks": len(self.book.tasks),
        }
        mcp, lifespan = None, None
        if domain is not None:
            from rlready.dream.serve.mcp_server import http_app

            mcp, lifespan = http_app(self.book, domain, name=name, loopback=host in LOOPBACK)
        self.app = build(self.book, about, loopback=host in LOOPBACK, mcp=mcp, mcp_lifespan=lifespan)
        self.host, self.port = host, port
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Such as `http://127.0.0.1:8000`; known once it listens."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def run(self, *, ready: Callable[[str], None] | None = None, signals: bool = False) -> None:
        """Serve until `stop`.

        Args:
            ready: is told the address as soon as requests are taken.
            signals: SIGINT and SIGTERM stop it.

        Raises:
            UserError: the port is taken.
        """
        import uvicorn

        sock = self.listen()
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws=protocol(self.book, self._foreign),
            timeout_graceful_shutdown=max(1, round(self.book.limits.grace)),
            backlog=2048,
        )
        server = self._server = _quiet(uvicorn.Server(config))
        self._loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(server.serve(sockets=[sock]))
        with _stopping(self) if signals else contextlib.nullcontext():
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            if ready is not None and server.started:
                ready(self.url)
            try:
                await serving
            finally:
                sock.close()
                self._socket = None

    def _foreign(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        return foreign(headers, self.host in LOOPBACK)

    def listen(self) -> socket.socket:
        """Take the port; `run` does so too.

        Raises:
            UserError: it is taken, or the host is none of this machine.
        """
        if self._socket is None:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((self.host, self.port))
            except (OSError, OverflowError) as error:
                sock.close()
                raise UserError(
                    f"serve: cannot listen on {self.host} port {self.port} ({error}); choose another port, or 0 for a "
                    "free one."
                ) from error
            self.port = sock.getsockname()[1]
            self._socket = sock
        return self._socket

    async def stop(self) -> None:
        """Answer what waits (CLOSING), close all environments, then stop listening."""
        await self.book.close()
        if self._server is not None:
            self._server.should_exit = True

    async def __aenter__(self) -> Self:
        """Serve on the running loop."""
        up = asyncio.Event()
        self._task = asyncio.ensure_future(self.run(ready=lambda url: up.set()))
        first = asyncio.ensure_future(up.wait())
        await asyncio.wait({self._task, first}, return_when=asyncio.FIRST_COMPLETED)
        if not up.is_set():
            first.cancel()
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()
        if self._task is not None:
            await self._task

    def __enter__(self) -> Self:
        """Serve in a thread."""
        self.listen()
        up = threading.Event()
        failed: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(self.run(ready=lambda url: up.set()))
            except BaseException as error:
                failed.append(error)
            finally:
                up.set()

        self._thread = threading.Thread(target=work, name="rlready-serve", daemon=True)
        self._thread.start()
        up.wait()
        if failed:
            raise failed[0]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop, and wait for the thread."""
        if self._thread is not None and self._loop is not None and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result()
            self._thread.join()


def serve(
    env_factory: EnvFactory,
    tasks: TaskSet | Sequence[Task],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    max_sessions: int = 256,
    idle_seconds: float = 300.0,
    deadline: float = 50.0,
    queue: int = 256,
    at_once: int = 256,
    max_steps: int | None = None,
    seed: int = 0,
    domain: Domain | None = None,
    name: str = "rlready",
    expose: bool = False,
) -> None:
    """Serve episodes to other tools until interrupted (SIGINT, SIGTERM), then close everything.

    Args:
        env_factory: makes an environment for one episode.
        tasks: what can be played, and how it is scored.
        host: where to listen.
        port: 0 takes a free one.
        ready: is told the address once requests are taken.
        max_sessions: see `Limits`, as for the next five.
        idle_seconds: of a session.
        deadline: of a request.
        queue: requests that may wait.
        at_once: requests that are worked on.
        max_steps: of an episode.
        seed: of episodes that name none.
        domain: its tools are then served at `/mcp` as well.
        name: for `/metadata`.
        expose: allow a host that others can reach. There is no password.

    Raises:
        UserError: a package is missing, there are no tasks, a limit is wrong, or the port is taken.
    """
    limits = Limits(
        max_sessions=max_sessions,
        idle_seconds=idle_seconds,
        deadline=deadline,
        queue=queue,
        at_once=at_once,
        max_steps=max_steps,
    )
    server = Server(
        env_factory, tasks, host=host, port=port, limits=limits, seed=seed, domain=domain, name=name, expose=expose
    )
    gc.collect()
    gc.freeze()  # what was loaded stays; looking through it again and again would cost more than serving
    asyncio.run(server.run(ready=ready, signals=True))


def _need() -> None:
    try:
        import starlette
        import uvicorn
        import websockets
    except ImportError as error:
        raise UserError(f"{MISSING} ({error})") from error
    assert starlette and uvicorn and websockets


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rlready")
    except PackageNotFoundError:
        return "0"


def _quiet(server: uvicorn.Server) -> uvicorn.Server:
    """Leave signals alone: who they belong to is decided here."""
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return server


@contextlib.contextmanager
def _stopping(server: Server) -> Iterator[None]:
    """SIGINT and SIGTERM stop the server; a second one does not wait for anything."""
    loop = asyncio.get_running_loop()
    under_way: list[Any] = []

    def on_signal() -> None:
        if under_way and server._server is not None:
            server._server.force_exit = True
        under_way.append(asyncio.ensure_future(server.stop()))

    taken = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, on_signal)
            except NotImplementedError:  # Windows: KeyboardInterrupt ends asyncio.run
                break
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
