"""The child's side of `ProcessSampler`: the engine, between two steps of which it listens.

Started as `python -m rlready.policy.process_host PARENT LINE MEMORY ACKNOWLEDGEMENTS`: a process id and three file
descriptors. It never blocks on what it has to say, so neither side can wait for the other for ever, and it ends when
the parent's end of the line closes, which the system does however the parent ends, or when it finds itself with another
parent.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from typing import Any

import torch

from rlready.policy.base import SampleRequest, SamplingParams
from rlready.policy.process_wire import COUNTERS, Shared, cut, frame, params_from, sample_to
from rlready.policy.tiny.engine import Engine, Row
from rlready.policy.tiny.model import TinyConfig

_LOOK_AROUND_S = 0.5


class Host:
    """The engine and its line to the parent."""

    def __init__(self, parent: int, line: socket.socket, memory: int, acknowledgements: int) -> None:
        self._parent, self._line, self._memory, self._acknowledgements = parent, line, memory, acknowledgements
        self._inbox, self._outbox = bytearray(), bytearray()
        self._engine: Engine | None = None
        self._shared: Shared | None = None
        self._params: dict[int, SamplingParams] = {}
        self._waiting: deque[Row] = deque()
        self._poller = select.poll()
        self._looked = time.perf_counter()

    def run(self) -> None:
        """Serve until the parent hangs up."""
        began = time.perf_counter()
        while True:
            engine = self._engine
            working = engine is not None and bool(self._waiting or engine.rows)
            before = time.perf_counter()
            if not self._exchange(0.0 if working else _LOOK_AROUND_S):
                return
            waited = 0.0 if working else time.perf_counter() - before
            for message in cut(self._inbox):
                self._take(message)
            if working:
                self._step()
            now = time.perf_counter()
            if engine is not None and engine.stats.requests:
                engine.stats.idle += waited
                engine.stats.busy += now - began - waited
                self._count(engine)
            began = now

    def _exchange(self, seconds: float) -> bool:
        """Read and write what can be read and written; wait so long for something to read. False: the parent ended."""
        self._poller.register(self._line, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        events = dict(self._poller.poll(seconds * 1000)).get(self._line.fileno(), 0)
        now = time.perf_counter()
        if now - self._looked > _LOOK_AROUND_S:
            self._looked = now
            if os.getppid() != self._parent:  # somebody else holds a copy of its end of the line
                return False
        try:
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._line.recv(1 << 20)
                if not data:
                    return False
                self._inbox += data
            if self._outbox:
                del self._outbox[: self._line.send(self._outbox)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return False
        return True

    def _say(self, *message: Any) -> None:
        self._outbox += frame(message)

    def _take(self, message: list[Any]) -> None:
        match message:
            case ["hello", config, max_batch, slots, in_flight, threads]:
                torch.set_num_threads(threads)
                shape = TinyConfig(**config)
                self._shared = Shared(shape, self._memory)
                self._engine = Engine(shape, max_batch, slots, in_flight)
            case ["load", which, version]:
                assert self._engine is not None and self._shared is not None
                self._engine.load(self._shared.sets[which], version)
                os.write(self._acknowledgements, b".")
            case ["params", number, fields, completions]:
                self._params[number] = params_from(fields, completions)
            case ["forget"]:
                self._params.clear()
            case ["draw", requests]:
                for number, prompt, params, seed, session in requests:
                    request = SampleRequest(prompt, self._params[params], seed, session)
                    self._waiting.append(Row(request, index=number))
            case ["drop", numbers]:
                self._drop(set(numbers))
            case ["release", session]:
                assert self._engine is not None
                self._engine.release(session)
            case _:
                raise ValueError(f"The parent said {message!r:.100}.")

    def _drop(self, numbers: set[int]) -> None:
        assert self._engine is not None
        self._waiting = deque(row for row in self._waiting if row.index not in numbers)
        if gone := [row for row in self._engine.rows if row.index in numbers]:
            self._engine.drop(gone)

    def _step(self) -> None:
        engine = self._engine
        assert engine is not None
        try:
            with torch.inference_mode():
                engine.admit(self._waiting)
                finished = engine.step() if engine.rows else []
        except Exception as error:
            engine.reset()
            self._waiting.clear()
            self._say("failed", type(error).__name__, str(error))
            return
        if finished:
            samples = []
            for row in finished:
                assert row.result is not None
                samples.append(sample_to(row.index, row.result, row.request.params.choices))
            self._say("drawn", samples)

    def _count(self, engine: Engine) -> None:
        assert self._shared is not None
        self._shared.counters[:] = [getattr(engine.stats, name) for name in COUNTERS]


def main() -> None:
    """Serve the parent that started this process."""
    parent, line, memory, acknowledgements = map(int, sys.argv[1:5])
    for descriptor in (line, memory, acknowledgements):
        os.set_inheritable(descriptor, False)
    os.dup2(2, 1)  # what libraries print must not end up in the parent's output
    with socket.socket(fileno=line) as connection:
        connection.setblocking(False)
        Host(parent, connection, memory, acknowledgements).run()


if __name__ == "__main__":
    main()
