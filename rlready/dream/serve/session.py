"""One served episode after another, and the promise that a reply is never taken for another request's.

A session works on one request at a time. A request is a reset or a step; it has an id, the client's or one made here,
and is *carried out* once, whoever asks how often:

    answered in time         the reply goes out, and is kept (the last few)
    the same id again        the kept reply goes out again; nothing is carried out twice
    the deadline passes      TIMEOUT goes out, and never anything else for this request unless it is asked for again.
                             What waited in the queue is taken back. What the environment had begun goes on:
      meanwhile              other steps are refused (STILL_WORKING, naming it)
      afterwards             its reply is unseen: repeat its id, or, without ids, the same action, to get it.
                             Other steps are refused (UNSEEN_REPLY) so that no action is taken on what nobody saw
    a reset                  cancels whatever is going on and starts afresh

So after a timeout the environment is either still at work, or its reply waits, or it is closed: never shifted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rlready.dream.serve.limits import Refusal
from rlready.dream.serve.wire import Reset, Step, Writer
from rlready.envs.base import Env, Observation
from rlready.tasks.base import score_by_env
from rlready.types import Task, Trajectory, Turn, Verdict

if TYPE_CHECKING:
    from rlready.dream.serve.sessions import Gate, Sessions

log = logging.getLogger(__name__)

Request = Reset | Step
Outcome = bytes | Refusal
Answer = Callable[[Outcome], None]
KEPT = 4


class Waiter:
    """Somebody who waits for an outcome: gets it, or a refusal at the deadline, or is dropped; exactly one of these."""

    __slots__ = ("answer", "done", "timer")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.done = False
        self.timer: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """Never answer: the other side has stopped listening for this."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Work:
    """A request that is being carried out, or has been and nobody saw the outcome."""

    __slots__ = ("begun", "dropped", "gate", "id", "key", "outcome", "request", "task", "ticket", "waiters")

    def __init__(self, id: str, request: Request, gate: Gate | None = None) -> None:
        self.id = id
        self.gate = gate
        self.ticket: asyncio.Future[None] | None = None if gate is None else gate.ticket()
        self.request = request
        self.key = request.key
        self.waiters: list[Waiter] = []
        self.outcome: Outcome | None = None
        self.begun = False
        self.dropped = False
        self.task: asyncio.Task[None] | None = None

    def release(self) -> None:
        """Give the place at the gate back, once."""
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.give_back(self.ticket)

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return any(not w.done for w in self.waiters)


class Session:
    """A place in the server: an environment at a time, and the requests for it.

    Attributes:
        id: unguessable.
        touched: when it was last asked or answered, by the loop's clock.
        steps: taken in the present episode.
    """

    def __init__(self, book: Sessions, id: str) -> None:
        """Made by `Sessions.open`."""
        self.book = book
        self.id = id
        self.touched = book.loop.time()
        self.steps = 0
        self.done = False
        self.over: Refusal | None = None
        self._env: Env | None = None
        self._trajectory: Trajectory | None = None
        self._episode: str | None = None
        self._writer = Writer()
        self._work: Work | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._answers: OrderedDict[str, tuple[str, Outcome]] = OrderedDict()
        self._count = 0

    @property
    def awaited(self) -> bool:
        """Whether a request waits for its answer."""
        return self._work is not None and self._work.awaited

    def state(self) -> dict[str, Any]:
        """What `state` answers; see `wire.SCHEMA`."""
        trajectory, work = self._trajectory, self._work
        return {
            "episode_id": self._episode,
            "step_count": self.steps,
            "session": self.id,
            "task": None if trajectory is None else trajectory.task.id,
            "seed": None if trajectory is None else trajectory.seed,
            "done": self.done,
            "working_on": work.id if work is not None and work.outcome is None else None,
        }

    def submit(self, request: Request, answer: Answer) -> bytes | Waiter:
        """Have a request carried out.

        Args:
            request: a reset or a step.
            answer: is called with the outcome, once, unless the waiter is dropped before.

        Returns:
            The reply, where it is known already; else the waiter.

        Raises:
            Refusal: it is not carried out.
        """
        if self.over is not None:
            raise self.over
        self.touched = self.book.loop.time()
        work = self._work
        if request.id is not None and request.id in self._answers:
            return self._again(request, request.id)
        if work is not None and _same(work, request):
            if work.outcome is not None:
                self._work = None
                self.book.count("duplicates")
                return _reply(work.outcome)
            self.book.count("duplicates")
            return self._wait(work, request, answer)
        if isinstance(request, Step):
            self._check(request, work)
        self._count += 1
        name = request.id or f"{'reset' if isinstance(request, Reset) else 'step'}-{self._count}"
        before, work = work, Work(name, request, self.book.gate)  # refused where the queue is full
        if isinstance(request, Reset):
            self._answers.clear()
            if before is not None:
                self._abandon(before)
        self._work = work
        waiter = self._wait(work, request, answer)
        self.book.assembly.join(partial(self._begin, work))
        return waiter

    async def ask(self, request: Request) -> bytes:
        """`submit`, and wait for the reply.

        Raises:
            Refusal: there is none.
        """
        future: asyncio.Future[Outcome] = self.book.loop.create_future()

        def answer(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        got = self.submit(request, answer)
        if isinstance(got, bytes):
            return got
        try:
            return _reply(await future)
        except asyncio.CancelledError:
            got.drop()
            raise

    def unsee(self, request: Request, reply: bytes) -> None:
        """A reply that was given could not be delivered: it may be asked for again."""
        if self._work is None and self._answers:
            id, (key, outcome) = next(reversed(self._answers.items()))
            if outcome is reply and key == request.key:
                work = Work(id, request)
                work.outcome, work.begun = outcome, True
                self._work = work

    async def close(self, why: Refusal) -> None:
        """End the episode and let go of the environment; later requests are refused with `why`."""
        if self.over is not None:
            return
        self.over = why
        if self._work is not None:
            self._abandon(self._work, why)
        self._work = None
        await self._leave()
        self._trajectory = None
        self._answers.clear()
        self._writer = Writer()

    def _begin(self, work: Work) -> None:
        if work.dropped:
            work.release()
            return
        self.book.assembly.working += 1
        work.task = self.book.loop.create_task(self._carry_out(work))
        work.task.add_done_callback(partial(self._over, work))

    def _over(self, work: Work, task: asyncio.Task[None]) -> None:
        self.book.assembly.working -= 1
        work.release()

    def _check(self, request: Step, work: Work | None) -> None:
        if work is not None and work.outcome is None:
            self.book.count("still_working")
            raise Refusal(
                "STILL_WORKING",
                f"The session is still working on request {work.id}; ask for that again later, or reset.",
                retry_after=1,
                request_id=request.id,
            )
        if work is not None:
            self.book.count("unseen")
            raise Refusal(
                "UNSEEN_REPLY",
                f"Request {work.id} was carried out after its deadline and nobody has seen the reply: repeat it (same "
                "request_id, or without ids the same action) to get the reply, or reset. This action was not taken.",
                request_id=request.id,
            )
        if self._trajectory is None:
            raise Refusal("NO_EPISODE", "There is no episode yet: reset first.", request_id=request.id)
        if self.done:
            raise Refusal("EPISODE_OVER", "The episode is over: reset to begin another.", request_id=request.id)
        if self._env is None:
            raise Refusal("EPISODE_FAILED", "The environment failed: reset to begin again.", request_id=request.id)

    def _again(self, request: Request, id: str) -> bytes:
        key, outcome = self._answers[id]
        if key != request.key:
            raise Refusal(
                "VALIDATION_ERROR",
                f"The request_id {id} was used for another request of this episode; ids must differ.",
                request_id=id,
            )
        self.book.count("duplicates")
        if self._work is not None and self._work.id == id:
            self._work = None
        return _reply(outcome)

    def _wait(self, work: Work, request: Request, answer: Answer) -> Waiter:
        waiter = Waiter(answer)
        limit = self.book.limits.deadline
        seconds = limit if request.timeout is None else min(limit, request.timeout)
        waiter.timer = self.book.loop.call_later(seconds, self._expire, work, waiter, seconds)
        work.waiters.append(waiter)
        return waiter

    def _expire(self, work: Work, waiter: Waiter, seconds: float) -> None:
        if waiter.done:
            return
        waiter.drop()
        self.book.count("timeouts")
        if work.begun or work.awaited:
            what = "It is still being worked on: repeat it (same request_id or action) to get the reply."
        else:
            what = "It was still waiting in the queue; nothing was done. The server is busy: try again."
            work.dropped = True
            if work.task is not None:
                work.task.cancel()
            self._work = None
        refusal = Refusal(
            "TIMEOUT", f"Request {work.id} was not answered within {seconds:g} s. {what}", retry_after=1,
            request_id=work.id,
        )  # fmt: skip
        waiter.answer(refusal)

    def _abandon(self, work: Work, why: Refusal | None = None) -> None:
        """Stop carrying out what a reset or the session's end overtakes; the environment is then in no known state."""
        if work.outcome is None:
            work.dropped = True
            if work.task is not None:
                work.task.cancel()
            self._leave(work.task)
        refusal = why or Refusal("CANCELLED", f"Request {work.id} was overtaken by a reset.", request_id=work.id)
        for waiter in work.waiters:
            if not waiter.done:
                waiter.drop()
                waiter.answer(refusal)

    async def _carry_out(self, work: Work) -> None:
        book, request = self.book, work.request
        if work.ticket is not None:
            await work.ticket
        work.begun = True
        began = book.loop.time()
        outcome: Outcome
        try:
            step = self._reset(work, request) if isinstance(request, Reset) else self._step(work, request)
            outcome = await step
        except Refusal as refusal:
            outcome = refusal
        except (Exception, asyncio.CancelledError) as error:  # the episode is lost, the server is not
            if work.dropped:
                raise
            log.warning("An environment failed in request %s of session %s", work.id, self.id, exc_info=True)
            book.count("errors")
            self._leave()
            words = f"The environment failed: {type(error).__name__}: {error}"
            outcome = Refusal("EXECUTION_ERROR", words, request_id=work.id)
        work.release()
        seconds = book.loop.time() - began
        book.seconds.append(seconds)
        book.assembly.took(seconds)
        if work.dropped:  # it let itself not be cancelled, but nobody waits any more
            return
        self._finish(work, outcome)
        for waiter in work.waiters:
            if not waiter.done:
                waiter.drop()
                waiter.answer(outcome)

    def _finish(self, work: Work, outcome: Outcome) -> None:
        self.touched = self.book.loop.time()
        work.outcome = outcome
        self._answers[work.id] = work.key, outcome
        if len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        if work.awaited:
            self._work = None
        else:
            self.book.count("late")

    async def _reset(self, work: Work, request: Reset) -> bytes:
        book = self.book
        task, seed = book.draw(request)
        await asyncio.shield(self._leave())
        env = self._env = book.make()
        self._trajectory, self._episode = Trajectory(task, seed=seed), request.episode_id
        self.steps, self.done = 0, False
        self._writer = Writer(request.only_new)
        observation = await env.reset(task, seed)
        book.count("resets")
        metadata = dict(observation.info)
        if request.ignored:
            metadata["ignored"] = list(request.ignored)
        return self._write(work, task, observation, metadata, None, False, False)

    async def _step(self, work: Work, request: Step) -> bytes:
        env, trajectory, book = self._env, self._trajectory, self.book
        assert env is not None and trajectory is not None
        step = await env.step(request.text)
        book.count("steps")
        self.steps += 1
        turns, text = trajectory.turns, request.text
        parent = self.steps - 2 if turns else None
        turns.append(Turn([], list(text.encode()), parent=parent, reward=step.reward, text=text))
        terminated, truncated, cap = bool(step.terminated), bool(step.truncated), book.limits.max_steps
        void = "failure" in step.info
        truncated = truncated or (not terminated and (void or (cap is not None and self.steps >= cap)))
        own = book.tasks.scorer is not score_by_env
        reward: float | None = 0.0 if own else float(step.reward)
        metadata = {**step.observation.info, **step.info}
        if void:
            reward = None
        elif terminated or truncated:
            score = await book.tasks.score(trajectory.task, trajectory)
            metadata |= {"verdict": str(score.verdict), "scores": dict(score.parts)}
            if score.verdict is Verdict.GRADER_FAILED:
                reward, metadata["failure"] = None, score.note
            elif own:
                reward = float(score.value)
        if terminated or truncated:
            self.done = True
            book.count("episodes")
            self._leave()
        return self._write(work, trajectory.task, step.observation, metadata, reward, terminated, truncated)

    def _write(
        self,
        work: Work,
        task: Task,
        observation: Observation,
        metadata: dict[str, Any],
        reward: float | None,
        terminated: bool,
        truncated: bool,
    ) -> bytes:
        facts = {
            "task": task.id,
            "step": self.steps,
            "terminated": terminated,
            "truncated": truncated,
            "request_id": work.id,
        }
        done = terminated or truncated
        return self._writer.write(observation.messages, observation.actions, facts, metadata, reward, done)

    def _leave(self, cancelled: asyncio.Task[None] | None = None) -> asyncio.Future[None]:
        """Begin to let go of the environment, once what was cancelled has let go of it; done when all is closed."""
        env, self._env = self._env, None
        before = self._cleaning
        if env is None and cancelled is None and (before is None or before.done()):
            done: asyncio.Future[None] = self.book.loop.create_future()
            done.set_result(None)
            return done
        self._cleaning = self.book.spawn(self._clean(before, cancelled, env))
        return self._cleaning

    async def _clean(
        self, before: asyncio.Task[None] | None, cancelled: asyncio.Task[None] | None, env: Env | None
    ) -> None:
        grace = self.book.limits.grace
        if before is not None:
            await before
        if cancelled is not None and not cancelled.done():
            await asyncio.wait({cancelled}, timeout=grace)
            if not cancelled.done():
                self.book.count("stuck")
                log.warning("An environment of session %s ignores that it was cancelled; it is left alone", self.id)
        if env is not None:
            try:
                await asyncio.wait_for(env.close(), grace)
            except Exception:  # the episode is over anyway; it is said and counted
                self.book.count("errors")
                log.warning("An environment of session %s could not be closed", self.id, exc_info=True)


def _same(work: Work, request: Request) -> bool:
    if request.id is not None and request.id == work.id:
        if request.key != work.key:
            raise Refusal(
                "VALIDATION_ERROR",
                f"The request_id {work.id} was used for another request of this episode; ids must differ.",
                request_id=work.id,
            )
        return True
    return request.id is None and request.key == work.key


def _reply(outcome: Outcome) -> bytes:
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome
