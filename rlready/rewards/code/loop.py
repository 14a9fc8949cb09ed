"""Running programs in the cells of a box: one thread, one poll, any number of cells at a time.

What a program prints comes straight from the program; the cell says only how it ended. A deadline, too much output or
too much memory ends the whole cell.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rlready.rewards.code.backends import BoxBroken
from rlready.rewards.code.boxes import Box, memory_file
from rlready.rewards.code.limits import Limits

_BLOCK = 1 << 16
_USES = 500
"""Tests after which a cell is given up, before the time of its own processor adds up."""
_TICK = 0.1
_MOST_KEPT = 8
How = Literal["ended", "time", "output", "memory", "died"]


@dataclass(frozen=True)
class Job:
    """A program as cells run it.

    Attributes:
        argv: the command.
        role: "execute", or "python" for a Python program that is run without a new interpreter.
        file: name of the program's file.
        image: descriptor of the image of its files.
        seconds: wall-clock limit of a test.
        limits: its bounds.
    """

    argv: tuple[str, ...]
    role: str
    file: str
    image: int
    seconds: float
    limits: Limits

    def cell_limits(self, box: Box) -> dict[str, int]:
        """The limits that a cell for it sets in this box."""
        return self.limits.of_cell(self.argv[0], self.seconds, box.alone)


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        how: by itself, or what ended it; "died" is the whole cell, by the kernel's hand.
        code: exit code, minus the signal's number where a signal ended it; None where it did not end by itself.
        stdout: what it printed, up to the bound.
        stderr: the same.
        seconds: wall-clock time.
        cpu: processor time.
    """

    how: How
    code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    cpu: float = 0.0


class Lane:
    """A cell seen from outside: what runs in it now, and what that has printed."""

    def __init__(self, box: Box, job: Job) -> None:
        """Open a cell for a job.

        Raises:
            BoxBroken: the sandbox does not work.
        """
        self.box, self.job = box, job
        self.limits = job.cell_limits(box)
        functions = job.role in ("solution", "tester")
        self.sock, self.number, place = box.open_cell(job.limits, functions)
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        spec = {
            "alone": box.alone,
            "place": place,
            "limits": self.limits,
            "argv": job.argv,
            "file": job.file,
        }
        try:
            for fd in (self.out, self.err):
                os.set_blocking(fd, False)
            for fd in (out, err):
                if os.geteuid() == 0:
                    os.fchmod(fd, 0o666)  # the sandbox's user may open /dev/stdout
            socket.send_fds(self.sock, [json.dumps(spec).encode()], [job.image, out, err])
        except OSError as error:
            self.gone = self.running = False
            self.end()
            raise BoxBroken(f"a cell could not be opened: {error}") from error
        finally:
            os.close(out)
            os.close(err)
        self.tag: Any = None
        self.running = self.gone = self.keep = False
        self.uses = 0
        self.began = self.deadline = 0.0
        self.printed: dict[int, bytearray] = {}

    def load(self, job: Job) -> None:
        """Put another program into the cell, whose limits must be the same.

        Raises:
            BoxBroken: the cell is gone.
        """
        self.job, self.keep = job, False
        try:
            message = json.dumps({"op": "load", "argv": job.argv, "file": job.file}).encode()
            socket.send_fds(self.sock, [message], [job.image])
        except OSError as error:
            raise BoxBroken(f"a cell is gone: {error}") from error

    def begin(self, tag: Any, stdin: int, role: str = "", extra: tuple[int, ...] = ()) -> None:
        """Run the program once.

        Args:
            tag: comes back with the outcome.
            stdin: descriptor of its standard input.
            role: of the job where it is empty.
            extra: further descriptors for roles that take some.

        Raises:
            BoxBroken: the cell is gone.
        """
        message = json.dumps({"op": "run", "role": role or self.job.role}).encode()
        try:
            socket.send_fds(self.sock, [message], [stdin, *extra])
        except OSError as error:
            raise BoxBroken(f"a cell is gone: {error}") from error
        self.tag, self.running = tag, True
        self.uses += 1
        self.began = time.monotonic()
        self.deadline = self.began + self.job.seconds
        self.printed = {self.out: bytearray(), self.err: bytearray()}

    def read(self, fd: int) -> bool:
        """Take in what was printed; False where it is more than is allowed."""
        held = self.printed.setdefault(fd, bytearray())
        most = self.job.limits.output
        while len(held) <= most:
            try:
                block = os.read(fd, _BLOCK)
            except BlockingIOError:
                return True
            if not block:
                return True
            held += block
        del held[most:]
        return False

    def pack(self, image: int) -> str:
        """Write the cell's working folder as an image into a file; what went wrong, or "".

        Raises:
            BoxBroken: the cell does not answer.
        """
        try:
            self.sock.settimeout(max(5.0, self.job.seconds))
            socket.send_fds(self.sock, [json.dumps({"op": "pack"}).encode()], [image])
            data = self.sock.recv(1 << 16)
            return str(json.loads(data)["error"]) if data else "the sandbox of the compiler ended"
        except (OSError, ValueError, KeyError) as error:
            raise BoxBroken(f"what was compiled could not be fetched: {error}") from error

    def end(self) -> None:
        """End the cell; no process of the program is left on return."""
        if self.gone:
            return
        self.gone, running, self.running = True, self.running, False
        self.sock.close()
        os.close(self.out)
        os.close(self.err)
        if running:
            self.box.end_cell(self.number)
        else:
            self.box.leave_cell(self.number)


class Loop:
    """The poll over the lanes of one box."""

    def __init__(self, box: Box) -> None:
        """Make a loop without lanes."""
        self.box = box
        self.lanes: list[Lane] = []
        self._poll = select.poll()
        self._by_fd: dict[int, Lane] = {}
        self._others: dict[int, Callable[[], None]] = {}
        if box.control is not None:
            self._poll.register(box.control, select.POLLIN)

    def open(self, job: Job) -> Lane:
        """Open a lane, in a cell that another program left as it was or in a new one."""
        lane = self._take(job) or Lane(self.box, job)
        self.lanes.append(lane)
        for fd in (lane.sock.fileno(), lane.out, lane.err):
            self._poll.register(fd, select.POLLIN)
            self._by_fd[fd] = lane
        return lane

    def listen(self, fd: int, heard: Callable[[], None]) -> None:
        """Call a function whenever a descriptor has something to say."""
        self._poll.register(fd, select.POLLIN)
        self._others[fd] = heard

    def ignore(self, fd: int) -> None:
        """Undo `listen`."""
        if self._others.pop(fd, None):
            self._poll.unregister(fd)

    def end(self, lane: Lane) -> None:
        """End a lane."""
        if lane in self.lanes:
            self._forget(lane)
        lane.end()

    def _forget(self, lane: Lane) -> None:
        self.lanes.remove(lane)
        for fd in (lane.sock.fileno(), lane.out, lane.err):
            self._poll.unregister(fd)
            del self._by_fd[fd]

    def _take(self, job: Job) -> Lane | None:
        """A lane that was kept, if one fits the job."""
        limits = job.cell_limits(self.box)
        lane: Lane
        for lane in self.box.kept:
            if lane.limits == limits and lane.job.limits == job.limits:
                self.box.kept.remove(lane)
                try:
                    lane.load(job)
                except BoxBroken:
                    lane.end()
                    return None
                return lane
        return None

    def close(self) -> None:
        """End all lanes; those that are as they were when they were new are kept for another program."""
        for lane in list(self.lanes):
            if lane.running or lane.keep or lane.job.role not in ("execute", "python") or not self.box.nested:
                self.end(lane)
                continue
            self._forget(lane)
            self.box.kept.append(lane)
        while len(self.box.kept) > _MOST_KEPT:
            self.box.kept.pop(0).end()

    def step(self, wait: float = _TICK) -> Iterator[tuple[Lane, Outcome]]:
        """Wait for what happens next, for so many seconds at most; the lanes whose program ended.

        A lane that may not be used again has been ended.

        Raises:
            BoxBroken: the sandbox does not work.
        """
        now = time.monotonic()
        wait = min([wait, *(lane.deadline - now for lane in self.lanes if lane.running)])
        for fd, _ in self._poll.poll(max(0.0, wait) * 1000):
            if fd == self.box.control:
                self.box.over()
            elif fd in self._others:
                self._others[fd]()
            elif fd in self._by_fd:
                lane = self._by_fd[fd]
                if fd != lane.sock.fileno():
                    if not lane.read(fd) and lane.running:
                        yield lane, self._cut(lane, "output")
                elif lane.running:
                    yield lane, self._ended(lane)
                else:  # an idle cell fell
                    self.end(lane)
        if not self.box.nested:
            self.box.over()
        now = time.monotonic()
        for lane in list(self.lanes):
            if lane.running and now >= lane.deadline:
                yield lane, self._cut(lane, "time")

    def _cut(self, lane: Lane, how: How) -> Outcome:
        """End a lane whose program may not go on."""
        seconds = time.monotonic() - lane.began
        outcome = Outcome(how, None, bytes(lane.printed[lane.out]), bytes(lane.printed[lane.err]), seconds)
        self.end(lane)
        return outcome

    def _ended(self, lane: Lane) -> Outcome:
        """A lane whose cell said how its program ended, or fell."""
        seconds = time.monotonic() - lane.began
        try:
            data = lane.sock.recv(1 << 16)
            said: dict[str, Any] = json.loads(data) if data else {}
        except ConnectionError:
            said = {}
        except ValueError as error:
            raise BoxBroken("a cell said what cannot be read") from error
        fits = [lane.read(fd) for fd in (lane.out, lane.err)]  # what came before the word that it ended
        out, err = bytes(lane.printed[lane.out]), bytes(lane.printed[lane.err])
        if not said:
            why = self.box.over().get(lane.number, "")
            if why.startswith("no cell"):
                raise BoxBroken(why)
            self.end(lane)
            return Outcome("memory" if why == "memory" else "died", None, out, err, seconds)
        if "failed" in said:
            raise BoxBroken(said["failed"])
        if not all(fits):
            return self._cut(lane, "output")
        lane.running = False
        code = os.waitstatus_to_exitcode(said["status"])
        if not lane.keep and (not said["clean"] or lane.uses >= _USES):
            self.end(lane)
        return Outcome("ended", code, out, err, seconds, said["cpu"])


def run_once(loop: Loop, lane: Lane, content: bytes, keep: bool = False) -> Outcome:
    """Run a lane's program once, with nothing else going on; `keep` the lane whatever the program left in it."""
    lane.keep = keep
    stdin = memory_file(content)
    try:
        lane.begin(0, stdin)
        while True:
            for other, outcome in loop.step():
                if other is lane:
                    return outcome
    finally:
        os.close(stdin)


def run_many(
    loop: Loop, job: Job, inputs: list[bytes], parallel: int, failed: Callable[[int, Outcome], bool]
) -> list[Outcome | None]:
    """Run a program on many inputs.

    Args:
        loop: where; it must have no lanes.
        job: the program.
        inputs: standard inputs.
        parallel: how many cells at most run at a time.
        failed: called with each outcome; True where the inputs after this one need not be run.

    Returns:
        Outcomes in the order of the inputs. Where one failed, all before it were run, whatever the order in time.
    """
    outcomes: list[Outcome | None] = [None] * len(inputs)
    last, at = len(inputs), 0
    while True:
        idle = [lane for lane in loop.lanes if not lane.running]
        busy = len(loop.lanes) - len(idle)
        while at < last and (idle or busy == 0 or _worth(loop, busy, last - at, parallel)):
            lane = idle.pop() if idle else loop.open(job)
            stdin = memory_file(inputs[at])
            try:
                lane.begin(at, stdin)
            except BoxBroken:
                if not lane.uses:
                    raise
                loop.end(lane)  # the idle cell fell in the meantime
                continue
            finally:
                os.close(stdin)
            at, busy = at + 1, busy + 1
        if busy == 0:
            return outcomes
        for lane, outcome in loop.step(0.005 if at < last and busy < parallel else _TICK):
            number = lane.tag
            outcomes[number] = outcome
            if number < last and failed(number, outcome):
                last = number
                for other in [o for o in loop.lanes if o.running and o.tag > number]:
                    loop.end(other)


def _worth(loop: Loop, busy: int, waiting: int, parallel: int) -> bool:
    """Whether another cell is worth its start: many tests wait, or those that run take their time."""
    if busy >= parallel:
        return False
    oldest = min(lane.began for lane in loop.lanes)
    return waiting > 3 * busy or time.monotonic() - oldest > 0.004
