"""One adapter from every accepted form of reward function to `async (task, trajectory) -> Score`.

Accepted are, synchronous or asynchronous:

- `(task, trajectory) -> float | bool | Score`;
- TRL's form, known by its parameter names: `(prompts, completions, **columns) -> list[float | None]`. It is called
  with one-element lists; `completions` holds a string, or a list of chat messages where the prompt is a chat.

`None` means "does not apply here". TRL leaves such a reward out of the sum; so does `rewards.compose`. Where no
reward is left, there is nothing to train on, so the trajectory is excluded and counted, like every failure of a grader:
a reward that raises, returns NaN, infinity, a wrong type or a wrong count becomes `Score.failed` with a sentence, never
a wrong answer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlready.aio import call_in_thread
from rlready.errors import GraderError, UserError
from rlready.types import Score, Task, Trajectory, Turn, Verdict

RewardFn = Callable[..., Any]
Scorer = Callable[[Task, Trajectory], Awaitable[Score]]

_TRL_NAMES = frozenset({"prompts", "completions", "completion_ids", "completions_ids"})
_ABSENT = {"trainer_state": "the trainer's state", "environments": "TRL's environments"}


def columns_of(fn: RewardFn | None) -> tuple[str, ...]:
    """The keys of `task.data` that a reward cannot do without, as far as it declares them."""
    if fn is None:
        return ()
    declared = getattr(fn, "columns", None)
    if declared is not None:
        return tuple(declared)
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return ()
    if not _TRL_NAMES & parameters.keys():
        return ()
    known = _TRL_NAMES | {"log_metric", "log_extra"} | _ABSENT.keys()
    named = (p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return tuple(p.name for p in named if p.default is p.empty and p.name not in known)


def declare(fn: Any, *, name: str, columns: Sequence[str] = ()) -> RewardFn:
    """Give a reward its name in messages and the keys of `task.data` that it needs; returns the reward."""
    fn.__name__ = fn.__qualname__ = name
    fn.columns = tuple(columns)
    declared: RewardFn = fn
    return declared


def last_turn(trajectory: Trajectory) -> Turn | None:
    """The turn that holds the answer: the last one that is not a probe."""
    return next((turn for turn in reversed(trajectory.turns) if turn.tag != "probe"), None)


def answer_text(trajectory: Trajectory) -> str:
    """The text of the last turn that is not a probe; empty where there is none."""
    turn = last_turn(trajectory)
    return "" if turn is None else turn.text


def as_scorer(
    fn: RewardFn, *, thread: bool = False, right_at: float = 1.0, conversational: bool | None = None
) -> FunctionScorer:
    """Adapt a reward function.

    Args:
        fn: the function, in any form above. A scorer made here comes back unchanged.
        thread: run a synchronous function in a thread of its own, so that a slow one does not hold up other episodes.
        right_at: a number at least this large counts as a right answer, a smaller one as wrong. Scores and bools say
            it themselves.
        conversational: for TRL's form, whether completions are chat messages. None: they are where the task's prompt
            is a chat (read from a chat column, or more than one message).

    Raises:
        UserError: the function's parameters fit neither form.
    """
    return fn if isinstance(fn, FunctionScorer) else FunctionScorer(fn, thread, right_at, conversational)


class FunctionScorer:
    """A reward function as `async (task, trajectory) -> Score`. Make it with `as_scorer`."""

    def __init__(self, fn: RewardFn, thread: bool, right_at: float, conversational: bool | None) -> None:
        """Recognise the form of `fn`; see `as_scorer`."""
        if not callable(fn):
            raise UserError(f"A reward must be a function, but {fn!r} is a {type(fn).__name__}.")
        self.fn = fn
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self.__name__ = self.name
        self.columns = columns_of(fn)
        self.right_at = right_at - 1e-9
        self.conversational = conversational
        call = getattr(fn, "__call__", None)  # noqa: B004
        is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)
        self.thread = thread and not is_async
        self.waits = is_async or self.thread
        self.accepts: frozenset[str] | None = frozenset()  # of TRL's keyword arguments; None: all
        self.trl = False
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError):  # some C functions have none
            return
        self._recognise(signature)

    def _recognise(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters
        self.trl = bool(_TRL_NAMES & parameters.keys())
        if not self.trl:
            try:
                signature.bind(None, None)
            except TypeError:
                raise UserError(
                    f'The reward "{self.name}" takes {signature}. A reward takes (task, trajectory), '
                    "or TRL's (prompts, completions, **columns)."
                ) from None
            return
        for name, what in _ABSENT.items():
            if name in parameters and parameters[name].default is inspect.Parameter.empty:
                raise UserError(f'The reward "{self.name}" asks for {name}, but rlready passes no reward {what}.')
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.accepts = None if takes_all else frozenset(parameters)

    async def optional(self, task: Task, trajectory: Trajectory) -> Score | None:
        """The score, or None where the reward says that it does not apply to this task."""
        metrics: dict[str, float] = {}
        try:
            if self.trl:
                kwargs = self._trl_arguments(task, trajectory, metrics)
                missing = [c for c in self.columns if c not in kwargs]
                if missing:
                    has = ", ".join(task.data) or "none"
                    return self._failed(f'needs the column "{missing[0]}", which is missing (there are: {has})', task)
                result = await call_in_thread(lambda: self.fn(**kwargs)) if self.thread else self.fn(**kwargs)
            elif self.thread:
                result = await call_in_thread(self.fn, task, trajectory)
            else:
                result = self.fn(task, trajectory)
            if inspect.isawaitable(result):
                result = await result
        except GraderError as error:
            return self._failed(f"could not judge: {error}", task)
        except Exception as error:
            return self._failed(f"raised {type(error).__name__}: {error}{self._hint(error)}", task)
        if self.trl:
            values = result.tolist() if hasattr(result, "tolist") else result
            if not isinstance(values, (list, tuple)):
                return self._failed(f"returned {_brief(result)} instead of a list of numbers", task)
            if len(values) != 1:
                return self._failed(f"returned {len(values)} rewards for 1 completion", task)
            result = values[0]
        return self._judge(result, task, metrics)

    async def __call__(self, task: Task, trajectory: Trajectory) -> Score:
        """The score; where the reward does not apply, the trajectory is excluded."""
        score = await self.optional(task, trajectory)
        return self._failed("returned None: no reward applies", task) if score is None else score

    def _judge(self, result: Any, task: Task, metrics: Mapping[str, float]) -> Score | None:
        if isinstance(result, Score):
            if result.verdict is Verdict.GRADER_FAILED:
                return result
            for part, value in result.parts.items():
                if not _is_number(value) or not math.isfinite(value):
                    return self._failed(f'returned {_brief(value)} as its part "{part}"', task)
            if not _is_number(result.value):
                return self._failed(f"returned a Score whose value is {_brief(result.value)}", task)
            if not math.isfinite(result.value):
                return self._failed(f"returned {float(result.value)}", task)
            return result
        if result is None:
            return None
        if isinstance(result, (bool, np.bool_)):
            return Score(float(result), Verdict.RIGHT if result else Verdict.WRONG, metrics)
        if not _is_number(result) and getattr(result, "size", None) is not None and hasattr(result, "item"):
            try:  # a tensor or array of one element
                result = result.item()
            except (ValueError, RuntimeError):
                return self._failed(f"returned {_brief(result)} instead of one number", task)
        if not _is_number(result):
            return self._failed(f"returned {_brief(result)} instead of a number", task)
        value = float(result)
        if not math.isfinite(value):
            return self._failed(f"returned {value}", task)
        return Score(value, Verdict.RIGHT if value >= self.right_at else Verdict.WRONG, metrics)

    def _failed(self, what: str, task: Task) -> Score:
        return Score.failed(f'reward "{self.name}" {what} for task {task.id}.')

    def _hint(self, error: Exception) -> str:
        where = error.__traceback__
        if where is None:
            return ""
        while where.tb_next is not None:
            where = where.tb_next
        code = where.tb_frame.f_code
        place = f" ({code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]} line {where.tb_lineno})"
        if self.trl and self.conversational is None and isinstance(error, (TypeError, KeyError, AttributeError)):
            place += " [it may expect the other form of completions: as_scorer(fn, conversational=True or False)]"
        return place

    def _trl_arguments(self, task: Task, trajectory: Trajectory, metrics: dict[str, float]) -> dict[str, Any]:
        chat = self.conversational
        if chat is None:
            chat = task.meta.get("format") == "chat" or len(task.prompt) > 1
        turn = last_turn(trajectory)
        ids = [] if turn is None else list(turn.completion_ids)
        arguments: dict[str, Any] = {name: [value] for name, value in task.data.items()}
        arguments["prompts"] = [
            [_chat(m.role, m.text) for m in task.prompt] if chat else "\n".join(m.text for m in task.prompt)
        ]
        arguments["completions"] = [_dialogue(trajectory) if chat else answer_text(trajectory)]
        arguments["completion_ids"] = arguments["completions_ids"] = [ids]
        arguments["log_metric"] = lambda name, value: metrics.__setitem__(str(name), float(value))
        arguments["log_extra"] = lambda column, values: None  # our log holds the whole trajectory anyway
        if self.accepts is not None:
            arguments = {name: value for name, value in arguments.items() if name in self.accepts}
        return arguments


def _dialogue(trajectory: Trajectory) -> list[dict[str, str]]:
    """What the policy said, with the environment's replies in between."""
    out: list[dict[str, str]] = []
    for turn in trajectory.turns:
        if turn.tag == "probe":
            continue
        if out:
            out.extend(_chat(m.role, m.text) for m in turn.context if m.role != "assistant")
        out.append(_chat("assistant", turn.text))
    return out


def _chat(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _brief(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} (a {type(value).__name__})"
