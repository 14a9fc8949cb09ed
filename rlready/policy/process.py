"""A tiny policy that samples in a process of its own, so that it draws on while this process learns.

    with in_process(policy) as acting:
        train(acting, collector, algorithm, run, ...)

The child runs the engine of `policy.tiny`. Weights go through shared memory and are taken between two steps of the
engine, in the midst of what is being drawn; what is in flight goes on as `Engine` says, and its samples carry the
version of each token. Requests and results go over a socket that the event loop reads without blocking. The same
requests under the same weights give the same samples as `TinySampler`, to the last bit where they are drawn in the same
batches.

The child is started afresh, never forked from this process with its torch threads. It ends with `close`, with this
process however that ends (also by SIGKILL), and a child that dies is noticed at once: whoever waits gets a
`SamplerDied`. It needs POSIX.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlready.errors import UserError
from rlready.policy.base import Policy, Sample, SampleRequest, SamplingParams, require_learner
from rlready.policy.hf.sampler import HFSampler
from rlready.policy.process_wire import (
    COUNTERS,
    Shared,
    cut,
    frame,
    memory_for,
    params_to,
    request_to,
    sample_from,
)
from rlready.policy.queue import Callers
from rlready.policy.tiny.engine import InFlight, SamplerStats
from rlready.policy.tiny.model import TinyConfig, check_state
from rlready.policy.tiny.policy import TinyPolicy, tiny_of
from rlready.policy.tiny.sampler import TinySampler, check_requests, slots_for

_MOST_PARAMS = 4096
_ERRORS: dict[str, type[Exception]] = {e.__name__: e for e in (UserError, ValueError, FloatingPointError)}


class SamplerDied(UserError):
    """The process that samples ended; the message says how."""


@dataclass(slots=True, eq=False)
class _Row:
    """A request on its way; `number` is 0 until it is sent."""

    request: SampleRequest
    number: int = 0
    owner: Any = None
    result: Sample | None = None


class ChildStats(SamplerStats):
    """The child's counters, since the last `reset`; read from shared memory at every `look`."""

    __slots__ = ("_base", "_counters")

    def __init__(self, counters: NDArray[np.float64]) -> None:
        self._counters = counters
        self._base = np.zeros(len(COUNTERS))
        self.look()

    def look(self) -> ChildStats:
        """Bring the fields up to date."""
        for name, value in zip(COUNTERS, (self._counters - self._base).tolist(), strict=True):
            setattr(self, name, value if name in ("forward", "busy", "idle") else int(value))
        return self

    def reset(self) -> None:
        """Start counting anew."""
        self._base = self._counters.copy()
        self.look()


class ProcessSampler:
    """Samples from a tiny transformer in a child process; implements `policy.base.Sampler`.

    One sampler serves one event loop at a time. `load` may be called from any thread.

    Attributes:
        elsewhere: True: it draws on while this process does something else.
        config: shape of the model.
        max_batch: most rows computed in one step.
    """

    elsewhere = True

    def __init__(
        self,
        config: TinyConfig,
        state: Mapping[str, Any],
        *,
        version: int = 0,
        max_batch: int = 128,
        cache_bytes: int = 1 << 30,
        in_flight: InFlight = "recompute",
        threads: int = 1,
    ) -> None:
        """Start the process; it is ready some seconds later, and requests wait for it.

        Args:
            config: shape of the model.
            state: its weights, as `TinyLearner.weights()` gives them; they are copied.
            version: their version.
            max_batch: most rows computed in one step; more requests wait.
            cache_bytes: memory for keys and values, see `TinySampler`.
            in_flight: what becomes of requests in flight when new weights come, see `Engine`.
            threads: torch threads of the child.

        Raises:
            UserError: the system is not POSIX, or a setting makes no sense.
        """
        if os.name != "posix":
            raise UserError("A sampler in a process of its own needs Linux or macOS; use sampler=inline.")
        if in_flight not in ("recompute", "keep") or threads < 1:
            raise UserError(f'ProcessSampler: needs in_flight "recompute" or "keep", and threads of at least 1, not '
                            f'"{in_flight}" and {threads}.')  # fmt: skip
        self.config, self.max_batch = config, max_batch
        self.version = version
        check_state(config, state)
        memory = memory_for(config)
        self._shared = Shared(config, memory.fileno())
        self._stats = ChildStats(self._shared.counters)
        self._words: BinaryIO = tempfile.TemporaryFile("a+b")  # noqa: SIM115
        self._line, self._acknowledged, self._process = _start(memory, self._words)
        memory.close()
        self._release = weakref.finalize(self, _end, self._line, self._acknowledged, self._process)
        self._lock = threading.RLock()  # of the outbox and of how it ended
        self._loading = threading.Lock()
        self._inbox, self._outbox = bytearray(), bytearray()
        self._ended: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callers: Callers[_Row] = Callers(self._send, name=type(self).__name__, attached=self._attached)
        self._rows: dict[int, _Row] = {}
        self._number = 0
        self._params: dict[SamplingParams, int] = {}
        self._sessions: dict[Any, int] = {}
        self._loads = self._taken = 0
        self._post("hello", dataclasses.asdict(config), max_batch, slots_for(config, max_batch, cache_bytes),
                   in_flight, threads)  # fmt: skip
        self.load(state, version)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def stats(self) -> SamplerStats:
        """Counters of work and time, those of the child."""
        return self._stats.look()

    def load(self, state: Mapping[str, Any], version: int) -> None:
        """Hand over new weights; every request of later calls is drawn with them.

        It returns once they are copied, and waits for the child only where that has not taken the last but one yet.

        Raises:
            UserError: the weights belong to a model of another shape.
            SamplerDied: the child is no more.
        """
        check_state(self.config, state)
        with self._loading:
            self._await_free_set()
            which = self._loads % 2
            self._shared.write(which, state)
            self._post("load", which, version)
            self._loads += 1
            self.version = version

    def release(self, session: Any) -> None:
        """Forget a session's cache; unknown sessions are no error."""
        number = self._sessions.pop(session, None)
        if number is not None:
            with contextlib.suppress(SamplerDied):
                self._post("release", number)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Draw one completion per request, in order.

        Raises:
            UserError: a prompt is empty or leaves no room for a token.
            ValueError: a prompt or a choice holds an id outside the vocabulary, or parameters are out of range.
            FloatingPointError: the weights are not finite.
            SamplerDied: the child is no more.
        """
        if not requests:
            return []
        check_requests(self.config, requests)
        self._check_alive()
        rows = [_Row(request) for request in requests]
        try:
            return await self._callers.ask(rows)
        finally:
            self._drop([row.number for row in rows if row.result is None])

    def close(self) -> None:
        """End the child and wait until it is gone; who waits for a sample gets a `SamplerDied`. May be called again."""
        with self._lock:
            self._ended = self._ended or "The sampler was closed."
        loop = self._loop
        self._unwatch()
        self._release()
        if loop is not None and not loop.is_closed():
            self._callers.fail(SamplerDied(self._ended))
        self._words.close()

    # -- what is sent -------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Send what waits, all of one moment in one message; the child draws it in one batch."""
        callers = self._callers
        await callers.quiet()
        callers.drop_abandoned()
        if len(self._params) >= _MOST_PARAMS:
            self._params.clear()
            self._post("forget")
        requests = []
        while callers.waiting:
            row = callers.waiting.popleft()
            self._number += 1
            row.number = self._number
            self._rows[row.number] = row
            request = row.request
            session = None
            if request.session is not None:
                session = self._sessions.setdefault(request.session, self._number)
            requests.append(request_to(row.number, request, self._params_number(request.params), session))
        if requests:
            self._post("draw", requests)

    def _params_number(self, params: SamplingParams) -> int:
        known = self._params.get(params)
        if known is None:
            known = self._params[params] = len(self._params)
            self._post("params", known, *params_to(params))
        return known

    def _drop(self, numbers: Sequence[int]) -> None:
        """Have the child forget rows that it was given and nobody waits for."""
        known = [number for number in numbers if self._rows.pop(number, None) is not None]
        if known:
            with contextlib.suppress(SamplerDied):
                self._post("drop", known)

    def _post(self, *message: Any) -> None:
        """Send a message, from any thread; what the line does not take now, the event loop sends later."""
        with self._lock:
            self._check_alive()
            self._outbox += frame(message)
            self._flush()
            if self._outbox and self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._watch_out)

    def _flush(self) -> None:
        with self._lock:
            try:
                while self._outbox:
                    del self._outbox[: self._line.send(self._outbox)]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                raise SamplerDied(self._obituary()) from None

    def _watch_out(self) -> None:
        """In the event loop: send the rest as soon as the line takes it."""
        loop = self._loop
        if loop is None or self._ended is not None or not self._outbox:
            return

        def go_on() -> None:
            with contextlib.suppress(SamplerDied):  # the reader says so
                self._flush()
            if self._ended is not None or not self._outbox:
                loop.remove_writer(self._line)

        loop.add_writer(self._line, go_on)

    def _await_free_set(self) -> None:
        """Wait until the child has taken all sets of weights but the last."""
        poller = select.poll()
        poller.register(self._acknowledged, select.POLLIN | select.POLLHUP)
        while True:
            with contextlib.suppress(BlockingIOError):
                got = os.read(self._acknowledged, 64)
                if not got:
                    raise SamplerDied(self._obituary())
                self._taken += len(got)
            if self._loads - self._taken < 2:
                return
            self._check_alive()
            self._flush()
            poller.poll(50)

    # -- what comes back ----------------------------------------------------------------------------------------------

    def _attached(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen in another event loop; nobody waits for what an earlier one asked for."""
        self._unwatch()
        self._drop(list(self._rows))
        self._loop = loop
        loop.add_reader(self._line, self._read)
        self._watch_out()

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._line)
            loop.remove_writer(self._line)

    def _read(self) -> None:
        try:
            data = self._line.recv(1 << 20)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._unwatch()
            self._rows.clear()
            self._callers.fail(SamplerDied(self._obituary()))
            return
        self._inbox += data
        for message in cut(self._inbox):
            match message:
                case ["drawn", samples]:
                    self._drawn(samples)
                case ["failed", kind, text]:
                    known = _ERRORS.get(kind)
                    self._rows.clear()
                    self._callers.fail(known(text) if known else RuntimeError(f"{kind} while sampling: {text}"))

    def _drawn(self, samples: list[Any]) -> None:
        done = []
        for message in samples:
            row = self._rows.pop(message[0], None)
            if row is not None:
                row.result = sample_from(message, row.request.params.choices)
                done.append(row)
        self._callers.finished(done)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise SamplerDied(self._ended)

    def _obituary(self) -> str:
        """How the child ended, in a sentence."""
        with self._lock:
            if self._ended is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
                code = self._process.poll()
                if code is None:
                    self._process.kill()
                    how = "hung up"
                elif code < 0:
                    how = f"was killed by {signal.Signals(-code).name}"
                else:
                    how = f"ended with code {code}"
                said = _last_words(self._words)
                self._ended = (
                    f"The sampler's process (pid {self.pid}) {how}, so nothing can be drawn any more; go on from the "
                    f"last checkpoint with --resume{f', or mend what it said last: {said}' if said else ''}."
                )
            return self._ended


def _start(memory: BinaryIO, words: BinaryIO) -> tuple[socket.socket, int, subprocess.Popen[bytes]]:
    """Start the child; its line, the pipe of its acknowledgements, and the process."""
    line, theirs = socket.socketpair()
    acknowledged, acknowledge = os.pipe()
    given = (theirs.fileno(), memory.fileno(), acknowledge)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    variables.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlready.policy.process_host", str(os.getpid()), *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            pass_fds=given,
            env=variables,
            start_new_session=True,  # Ctrl-C is for the parent, which ends in good order
        )
    except BaseException:
        line.close()
        os.close(acknowledged)
        raise
    finally:
        theirs.close()
        os.close(acknowledge)
    line.setblocking(False)
    os.set_blocking(acknowledged, False)
    return line, acknowledged, process


def _end(line: socket.socket, acknowledged: int, process: subprocess.Popen[bytes]) -> None:
    """End the child, which keeps nothing that is worth a farewell."""
    line.close()
    process.kill()
    process.wait()
    os.close(acknowledged)


def _last_words(words: BinaryIO) -> str:
    try:
        size = os.fstat(words.fileno()).st_size
        text = os.pread(words.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    return " | ".join(line.strip() for line in text.splitlines()[-2:] if line.strip())


@contextlib.contextmanager
def in_process(policy: Policy, *, in_flight: InFlight = "recompute", threads: int = 1) -> Iterator[TinyPolicy]:
    """The same policy, which samples in a process of its own while the block runs.

    Renderer and learner are those of the policy given; its own sampler gets what was learned when the block ends well.

    Args:
        policy: a tiny policy with a learner.
        in_flight: what becomes of requests in flight when new weights come, see `Engine`.
        threads: torch threads of the child.

    Raises:
        UserError: it is another kind of policy, or the system is not POSIX.
    """
    if isinstance(policy.sampler, HFSampler):
        raise UserError(
            "A Hugging Face model samples in this process and takes new weights between batches, not in flight: leave "
            "it there (sampler=inline, max_lag=0); a process of its own is for tiny policies."
        )
    own = tiny_of(policy)
    learner, sampler = require_learner(own), own.sampler
    if not isinstance(sampler, TinySampler):
        raise UserError(
            f"in_process takes a policy that samples in this process, not one with a {type(sampler).__name__}."
        )
    process = ProcessSampler(
        own.config, learner.weights(), version=learner.version, max_batch=sampler.max_batch, in_flight=in_flight,
        threads=threads,
    )  # fmt: skip
    try:
        yield dataclasses.replace(own, sampler=process)
    finally:
        process.close()
    policy.sync()
