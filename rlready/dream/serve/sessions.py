"""All sessions of a server: who may come in, whose turn it is, who has left.

Everything here runs on one event loop. Steps are tasks of that loop, so that a simulator that batches sees all that
are under way at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from rlready.dream.serve.assembly import Assembly
from rlready.dream.serve.limits import Limits, Refusal
from rlready.dream.serve.session import Session
from rlready.dream.serve.wire import Reset
from rlready.envs.base import Env, EnvFactory
from rlready.errors import UserError
from rlready.seeds import derive
from rlready.tasks.base import TaskSet
from rlready.types import Task

log = logging.getLogger(__name__)

REMEMBERED = 10_000


class Gate:
    """Lets so many work at once; the others wait in a queue, first come first served, which has an end."""

    def __init__(self, at_once: int, queue: int) -> None:
        """See `Limits`."""
        self.at_once, self.queue = at_once, queue
        self.working = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.longest = 0

    def ticket(self) -> asyncio.Future[None] | None:
        """Take a place: None where work may begin at once, else what it has to wait for.

        Raises:
            Refusal: the queue is full.
        """
        if self.working < self.at_once:
            self.working += 1
            return None
        if len(self.waiting) >= self.queue:
            raise Refusal(
                "QUEUE_FULL",
                f"The server is busy: {self.working} requests are worked on and {len(self.waiting)} wait. Try again.",
                retry_after=1,
            )
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(ticket)
        self.longest = max(self.longest, len(self.waiting))
        ticket.add_done_callback(self._forget)
        return ticket

    def give_back(self, ticket: asyncio.Future[None] | None) -> None:
        """The work of this ticket is over, or never began."""
        if ticket is not None and not ticket.done():
            ticket.cancel()
        if ticket is None or not ticket.cancelled():
            self.leave()

    def leave(self) -> None:
        """Give the place to the next."""
        while self.waiting:
            ticket = self.waiting.popleft()
            if not ticket.done():
                ticket.set_result(None)
                return
        self.working -= 1

    def _forget(self, ticket: asyncio.Future[None]) -> None:
        if ticket.cancelled() and ticket in self.waiting:
            self.waiting.remove(ticket)


class Connection(Protocol):
    """What the reaper needs of a connection that may hold no session."""

    touched: float
    session: Session | None

    @property
    def end(self) -> Callable[[], None]:
        """Closes it."""
        ...


class Sessions:
    """The book of sessions.

    Attributes:
        limits: what is allowed.
        gate: whose turn it is.
        assembly: lets steps begin together.
        open_now: by id.
        connections: WebSockets.
    """

    def __init__(
        self, env_factory: EnvFactory, tasks: TaskSet | Sequence[Task], limits: Limits | None = None, *, seed: int = 0
    ) -> None:
        """Keep what episodes are made of.

        Args:
            env_factory: makes an environment for one episode.
            tasks: what can be played.
            limits: see there.
            seed: seeds of episodes that name none are hashed from it.

        Raises:
            UserError: there are no tasks.
        """
        if not len(tasks):
            raise UserError("serve needs at least one task.")
        self.tasks = tasks if isinstance(tasks, TaskSet) else TaskSet(tasks)
        self.limits = limits or Limits()
        self.seed = seed
        self.gate = Gate(self.limits.at_once, self.limits.queue)
        self.open_now: dict[str, Session] = {}
        self.connections: set[Connection] = set()
        self.seconds: deque[float] = deque(maxlen=1024)
        self.closing = False
        self._factory = env_factory
        self._by_id = {task.id: task for task in self.tasks}
        self._drawn = 0
        self._counts: Counter[str] = Counter()
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._created: OrderedDict[str, Session] = OrderedDict()
        self._running: set[asyncio.Task[Any]] = set()
        self._reaper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Bind to the running loop, and begin to look for idle sessions."""
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.assembly = Assembly(self.loop, self._all_in)
        self._reaper = self.loop.create_task(self._reap())

    async def close(self) -> None:
        """Refuse what comes, answer what waits, close every environment. May be called again."""
        self.closing = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
            self._reaper = None
        why = Refusal("CLOSING", "The server is shutting down.")
        await asyncio.gather(*(self._end(session, why, "closed") for session in list(self.open_now.values())))
        if self._running:  # answers on their way out, environments that are being closed
            _, slow = await asyncio.wait(list(self._running), timeout=2 * self.limits.grace)
            for task in slow:
                task.cancel()

    def open(self, created_by: str | None = None) -> Session:
        """A new session; with the id of an earlier creating request, the session that it made.

        Raises:
            Refusal: the server is full, or shutting down.
        """
        if self.closing:
            raise Refusal("CLOSING", "The server is shutting down.")
        if created_by is not None and (known := self._created.get(created_by)) is not None and known.over is None:
            return known
        if len(self.open_now) >= self.limits.max_sessions:
            self.count("refused")
            raise Refusal(
                "CAPACITY_REACHED",
                f"The server is busy: all {self.limits.max_sessions} sessions are open. Close one, or try again.",
                retry_after=self._until_free(),
            )
        session = Session(self, secrets.token_urlsafe(18))
        self.open_now[session.id] = session
        self.count("opened")
        if created_by is not None:
            self._created[created_by] = session
            if len(self._created) > REMEMBERED:
                self._created.popitem(last=False)
        return session

    def find(self, id: str) -> Session:
        """An open session.

        Raises:
            Refusal: there is none of this id, or it has been closed.
        """
        session = self.open_now.get(id)
        if session is not None:
            return session
        if (how := self._gone.get(id)) is not None:
            code = "SESSION_EXPIRED" if how == "reaped" else "SESSION_CLOSED"
            raise Refusal(code, f"The session has been {how}; open another.")
        raise Refusal("UNKNOWN_SESSION", "There is no such session; open one with POST /sessions.")

    async def discard(self, session: Session) -> None:
        """Close a session whose client has left or asks for it."""
        await self._end(session, Refusal("SESSION_CLOSED", "The session has been closed; open another."), "closed")

    def draw(self, request: Reset) -> tuple[Task, int]:
        """Task and seed of an episode.

        Raises:
            Refusal: there is no such task.
        """
        if request.seed is not None:
            seed, turn = request.seed, derive("serve", request.seed)
        else:
            seed, turn = derive("serve", self.seed, self._drawn), self._drawn
            self._drawn += 1
        wanted = request.task
        if wanted is None:
            return self.tasks[turn % len(self.tasks)], seed
        if isinstance(wanted, int) and 0 <= wanted < len(self.tasks):
            return self.tasks[wanted], seed
        if isinstance(wanted, str) and wanted in self._by_id:
            return self._by_id[wanted], seed
        raise Refusal(
            "VALIDATION_ERROR", f"There is no task {wanted!r}; give an id, or an index below {len(self.tasks)}."
        )

    def make(self) -> Env:
        """An environment.

        Raises:
            Refusal: the factory failed.
        """
        try:
            return self._factory()
        except Exception as error:
            self.count("errors")
            log.warning("The environment could not be made", exc_info=True)
            raise Refusal("FACTORY_ERROR", f"The environment could not be made: {error}") from error

    def count(self, what: str) -> None:
        """One more."""
        self._counts[what] += 1

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside; it is awaited at the end."""
        task = self.loop.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def metrics(self) -> dict[str, Any]:
        """Counts since the start and the present state, JSON-ready."""
        times = sorted(self.seconds)
        named = (
            "opened", "closed", "reaped", "refused", "resets", "steps", "episodes", "timeouts", "late", "duplicates",
            "still_working", "unseen", "errors", "stuck",
        )  # fmt: skip
        return {
            "sessions": {"open": len(self.open_now), "most": self.limits.max_sessions},
            "connections": len(self.connections),
            "working": self.gate.working,
            "queue": {"waiting": len(self.gate.waiting), "longest": self.gate.longest, "most": self.limits.queue},
            "counts": {name: self._counts[name] for name in named},
            "seconds": {
                "median": times[len(times) // 2] if times else None,
                "p95": times[min(len(times) - 1, math.ceil(len(times) * 0.95))] if times else None,
                "up": self.loop.time() - self.began,
            },
        }

    def _all_in(self) -> bool:
        return self.gate.working + len(self.gate.waiting) >= len(self.open_now)

    def _until_free(self) -> int:
        oldest = min((s.touched for s in self.open_now.values() if not s.awaited), default=None)
        if oldest is None:
            return 1
        return max(1, min(30, math.ceil(oldest + self.limits.idle_seconds - self.loop.time())))

    async def _end(self, session: Session, why: Refusal, how: str) -> None:
        if session.over is not None:
            return
        self.count(how)
        self._gone[session.id] = how
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        try:
            await session.close(why)
        finally:  # the place is taken until the environment has let go
            self.open_now.pop(session.id, None)

    async def _reap(self) -> None:
        idle = self.limits.idle_seconds
        why = Refusal("SESSION_EXPIRED", f"The session was idle for {idle:g} s and has been closed; reset for another.")
        while True:
            await asyncio.sleep(min(idle / 4, 5.0))
            late = self.loop.time() - idle
            for session in list(self.open_now.values()):
                if session.touched < late and not session.awaited:
                    self.spawn(self._end(session, why, "reaped"))
            for connection in list(self.connections):
                if connection.touched < late and (connection.session is None or connection.session.over is not None):
                    connection.end()
