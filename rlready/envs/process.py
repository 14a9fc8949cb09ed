"""Environments in a process of their own: for those that are costly to boot, may hang, or must not share our memory.

Every call has a deadline. A call that outlasts it, or that is cancelled, costs the process its life, since what it
would do next is unknown; the caller gets an `EnvError`. Replies carry the number of their request, so a late one can
never be taken for the next. However the parent ends, also by `kill -9`, the child and everything it started end too
(see `envs._host`).

    env = ProcessEnv("my_env.py:Game", deadline=20)           one process for one episode
    pool = ProcessPool("my_env.py:Game", size=8)              pool() is an environment; processes are used again

Children are started afresh (never forked from this process, which may hold torch and threads). They need POSIX.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rlready.envs import wire
from rlready.envs.base import Env, Observation, Step
from rlready.errors import EnvError, UserError
from rlready.types import Task

_CHATTER = 1 << 20  # bytes of the child's output that are kept at most
_dying: list[subprocess.Popen[bytes]] = []


def _reap() -> None:
    """Collect the exit codes of children that were told to end."""
    _dying[:] = [process for process in _dying if process.poll() is None]


def _hang_up(life: socket.socket, line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close both lines, on which the guard kills everything; the exit code is collected later."""
    life.close()
    line.close()
    if process.poll() is None:
        _dying.append(process)


class Worker:
    """One child process and the line to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the process; nothing is imported in it yet.

        Raises:
            UserError: the system is not POSIX.
            EnvError: the process cannot be started.
        """
        if os.name != "posix":
            raise UserError("ProcessEnv needs Linux or macOS.")
        _reap()
        line, rpc = socket.socketpair()
        life, watched = socket.socketpair()
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        variables.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        variables.update(environment)
        self._words = tempfile.TemporaryFile("a+b")  # noqa: SIM115  (lives as long as the worker)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "rlready.envs._host", str(rpc.fileno()), str(watched.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                pass_fds=(rpc.fileno(), watched.fileno()),
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            life.close()
            line.close()
            self._words.close()
            raise EnvError(f"the environment's process cannot be started: {error}.") from error
        finally:
            rpc.close()
            watched.close()
        line.setblocking(False)
        self._line, self._process = line, process
        self._buffer = bytearray()
        self._number = 0
        self._handle = 0
        self.pid = process.pid
        self.episodes = 0
        self.open = 0  # environments that live in it
        self.lock = asyncio.Lock()
        self.ended: str | None = None
        self._release = weakref.finalize(self, _hang_up, life, line, process)

    @property
    def alive(self) -> bool:
        """Whether the process can take a call."""
        return self.ended is None and self._process.poll() is None

    def handle(self) -> int:
        """A fresh handle for an environment in the child."""
        self._handle += 1
        return self._handle

    async def call(self, method: str, handle: int, *arguments: Any, deadline: float) -> Any:
        """Send a request and wait for its reply.

        Raises:
            EnvError: it raised in the child, outlasted the deadline (seconds), or the process died.
            NotImplementedError: the environment cannot fork.
        """
        async with self.lock:
            if self.ended is not None:
                raise EnvError(self.ended)
            self._number += 1
            try:
                request = wire.dump((self._number, method, handle, arguments))
            except Exception as error:  # whatever the pickling of foreign objects raises
                raise EnvError(f"{method} cannot be sent to the environment's process: {error}") from error
            try:
                async with asyncio.timeout(deadline):
                    kind, value = await self._exchange(request)
            except TimeoutError:
                await self.end(
                    f"{method} took longer than {deadline:g} seconds, so the environment's process was killed."
                )
                raise EnvError(str(self.ended)) from None
            except (ConnectionError, EOFError):
                raise EnvError(await self._obituary(method)) from None
            except EnvError as error:
                await self.end(str(error))
                raise
            except BaseException:  # cancelled: the reply is still to come, and must never be read
                self.end_now(f"{method} was cancelled, so the environment's process was killed.")
                raise
        if kind == "cannot fork":
            raise NotImplementedError(value)
        if kind != "ok":
            raise EnvError(f"{method} raised {value}")
        return value

    async def _exchange(self, request: bytes) -> tuple[str, Any]:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            if os.fstat(self._words.fileno()).st_size > _CHATTER:
                os.ftruncate(self._words.fileno(), 0)
        await loop.sock_sendall(self._line, request)
        while True:
            payload = wire.cut(self._buffer)
            if payload is None:
                data = await loop.sock_recv(self._line, 1 << 16)
                if not data:
                    raise EOFError
                self._buffer += data
                continue
            number, kind, value = wire.load_reply(payload)
            if number == self._number:
                return kind, value
            if number > self._number:
                raise EnvError("the environment's process answered a question that was not asked.")

    def end_now(self, reason: str) -> None:
        """Have the process and all it started killed, without waiting for it."""
        if self.ended is None:
            self.ended = reason
        self._release()
        with contextlib.suppress(OSError):
            self._words.close()

    async def end(self, reason: str) -> None:
        """Have the process and all it started killed, and wait until they are gone."""
        self.end_now(reason)
        give_up = time.monotonic() + 5
        pause = 0.001
        while self._process.poll() is None:
            if time.monotonic() > give_up:  # the guard itself is stuck; its death takes the host along
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        _reap()

    async def _obituary(self, method: str) -> str:
        """Why the process died, in words."""
        give_up = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < give_up:
            await asyncio.sleep(0.005)
        code = self._process.poll()
        how = "hung up" if code is None else f"ended with code {code}"
        if code is not None and code > 128:
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(code - 128).name}"
        words = self._last_words()
        await self.end(
            f"the environment's process {how} during {method}.{f' Its last words: {words}' if words else ''}"
        )
        return str(self.ended)

    def _last_words(self) -> str:
        try:
            size = os.fstat(self._words.fileno()).st_size
            text = os.pread(self._words.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""
        return " | ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())


class ProcessEnv(Env):
    """An environment hosted in a child process; see the module."""

    def __init__(
        self,
        factory: wire.Factory,
        *,
        deadline: float = 60.0,
        boot_deadline: float = 180.0,
        environment: Mapping[str, str] | None = None,
        pool: ProcessPool | None = None,
    ) -> None:
        """Prepare; the process starts at `reset`.

        Args:
            factory: a class or function of a module (or a `functools.partial` of one), or "module:name",
                "file.py:name".
            deadline: seconds that a reset, step, fork or close may take.
            boot_deadline: seconds from the start of the process until the environment object is made.
            environment: further environment variables of the child.
            pool: where the process comes from and goes back to.

        Raises:
            UserError: the factory cannot be sent to another process.
        """
        self._factory = wire.portable(factory) if pool is None else pool.portable
        self.deadline, self.boot_deadline = deadline, boot_deadline
        self._environment = dict(environment or {})
        self._pool = pool
        self._worker: Worker | None = None
        self._env = 0

    @property
    def pid(self) -> int | None:
        """The guard's process id; None before reset and after close."""
        return None if self._worker is None else self._worker.pid

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the process (or take one from the pool), make the environment and begin the episode.

        Raises:
            EnvError: a deadline passed, the process died, or the environment raised.
        """
        await self.close()
        self._worker = worker = await self._boot()
        observation = await worker.call("reset", self._env, task, seed, deadline=self.deadline)
        if not isinstance(observation, Observation):
            raise EnvError(f"reset gave a {type(observation).__name__}, not an Observation.")
        return observation

    async def step(self, action: str) -> Step:
        """Apply an action.

        Raises:
            EnvError: as in `reset`, or the episode has not begun.
        """
        step = await self._begun().call("step", self._env, action, deadline=self.deadline)
        if not isinstance(step, Step):
            raise EnvError(f"step gave a {type(step).__name__}, not a Step.")
        return step

    async def fork(self) -> Env:
        """A second environment in the same process. Both end where the process does.

        Raises:
            NotImplementedError: the environment cannot fork.
            EnvError: as in `step`.
        """
        worker = self._begun()
        handle = worker.handle()
        await worker.call("fork", self._env, handle, deadline=self.deadline)
        worker.open += 1
        return _Fork(self, worker, handle)

    async def close(self) -> None:
        """Close the environment and end its process, or give it back to the pool. May be called again.

        Raises:
            EnvError: closing raised or outlasted the deadline (the process is gone then).
        """
        worker, self._worker = self._worker, None
        if worker is None or worker.ended is not None:
            return
        try:
            await worker.call("close", self._env, deadline=self.deadline)
        except BaseException:
            worker.end_now("closing failed, so the environment's process was killed.")
            raise
        worker.open -= 1
        if worker.open == 0 and (self._pool is None or not self._pool.take_back(worker)):
            await worker.end("the episode is over")

    async def _boot(self) -> Worker:
        worker = None if self._pool is None else self._pool.take()
        fresh = worker is None
        if worker is None:
            worker = Worker(self._environment)
        worker.lock = asyncio.Lock()  # bound to the loop of this episode
        worker.episodes += 1
        worker.open = 1
        self._env = worker.handle()
        arguments = self._factory if fresh else ()
        try:
            await worker.call("boot" if fresh else "new", self._env, *arguments, deadline=self.boot_deadline)
        except BaseException:
            if worker.ended is None:
                worker.end_now("the environment could not be made")
            raise
        return worker

    def _begun(self) -> Worker:
        if self._worker is None:
            raise EnvError("step was called on an episode that has not begun or is over.")
        return self._worker


class _Fork(ProcessEnv):
    """A forked environment: the same process, another handle."""

    def __init__(self, origin: ProcessEnv, worker: Worker, handle: int) -> None:
        self.deadline, self.boot_deadline = origin.deadline, origin.boot_deadline
        self._pool = origin._pool
        self._worker, self._env = worker, handle

    async def reset(self, task: Task, seed: int) -> Observation:
        raise EnvError("a forked environment goes on from where it was forked; it cannot be reset.")


class ProcessPool:
    """A factory of `ProcessEnv` whose processes are used again: booting is paid once per process.

    There are as many processes as episodes at a time; at most `size` wait idle. The environment *object* is made anew
    for every episode; what its module keeps in globals lives on in the process (`check_env` looks for such leaks).
    """

    def __init__(
        self,
        factory: wire.Factory,
        *,
        size: int = 16,
        max_episodes: int | None = None,
        deadline: float = 60.0,
        boot_deadline: float = 180.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; processes start with the first episodes.

        Args:
            factory: see `ProcessEnv`.
            size: idle processes to keep.
            max_episodes: end a process after this many episodes (environments that leak memory); None: never.
            deadline: seconds per call.
            boot_deadline: seconds for the boot.
            environment: further environment variables of the children.

        Raises:
            UserError: the factory cannot be sent, or a limit is not positive.
        """
        if size < 1 or (max_episodes is not None and max_episodes < 1):
            raise UserError("ProcessPool: size and max_episodes must be at least 1.")
        self.factory = factory
        self.portable = wire.portable(factory)
        self.size, self.max_episodes = size, max_episodes
        self._options: dict[str, Any] = {
            "deadline": deadline,
            "boot_deadline": boot_deadline,
            "environment": environment,
        }
        self._idle: list[Worker] = []
        self._closed = False

    def __call__(self) -> ProcessEnv:
        """An environment for one episode."""
        return ProcessEnv(self.factory, pool=self, **self._options)

    def take(self) -> Worker | None:
        """An idle, living process, or None."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.end_now("it died while idle")
        return None

    def take_back(self, worker: Worker) -> bool:
        """Keep a process for later; False where it is not wanted."""
        spent = self.max_episodes is not None and worker.episodes >= self.max_episodes
        if self._closed or spent or len(self._idle) >= self.size or not worker.alive:
            return False
        self._idle.append(worker)
        return True

    @property
    def idle(self) -> int:
        """Processes that wait for an episode."""
        return len(self._idle)

    def close(self) -> None:
        """End the idle processes, and those in use when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().end_now("the pool was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
