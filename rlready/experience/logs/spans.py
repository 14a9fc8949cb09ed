"""Spans of one trace as one conversation.

Observability tools log an agent as spans: model calls with their prompt and output, tool calls, and spans around them.
Prompts repeat the history, so the last call of a conversation usually carries all of it. The rules:

- A model call whose history begins like an earlier conversation (same first words, same system prompt or none) and is
  not shorter continues it: its history, then its output, replace it. A nested or repeated call adds nothing.
- Calls that hold only what is new (a result, the next words of the user) are strung together where they follow in time.
- Other conversations within a trace (sub-agents, titles, guards) are left out and counted. The one that stays is the
  shallowest that uses tools or has several turns, then the one with the most turns.
- An agent's span that holds the same conversation with more messages replaces it.
- Results come from the prompts; where they are not there, from tool spans: by call id, else by name and order.
- A later trace of the same session that repeats the conversation and goes on with it is the same run.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from rlready.experience.logs.facts import Facts, Notes
from rlready.experience.logs.messages import MADE, Conversation
from rlready.experience.logs.report import UnreadableError
from rlready.experience.logs.times import span_seconds
from rlready.experience.logs.values import Wrapped
from rlready.types import Message, ToolCall

Kind = Literal["llm", "tool", "agent", "other"]


@dataclass(slots=True)
class Span:
    """One span, in the form that every reader of spans brings it to.

    Attributes:
        kind: "other" spans that bear the name of a tool count as its spans.
        name: of a tool span, the tool's name.
        start, end: seconds since 1970.
        given, said: messages as logged that went in and came out (model calls and agents).
        call: id of the tool call, "" where the log has none.
        arguments, result: of a tool span, as text.
        tools: schemas, as logged.
        facts: what the span says about the run.
    """

    id: str = ""
    parent: str = ""
    kind: Kind = "other"
    name: str = ""
    start: float | None = None
    end: float | None = None
    given: list[Any] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    call: str = ""
    arguments: str | None = None
    result: str | None = None
    failed: bool = False
    model: str = ""
    tools: Sequence[Any] = ()
    facts: Facts = field(default_factory=Facts)


@dataclass(slots=True)
class Run:
    """A conversation with what is known of its calls."""

    messages: tuple[Message, ...]
    failed: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    turns: int = 0
    depth: int = 0
    first: Span = field(default_factory=Span)
    last: Span = field(default_factory=Span)


def assemble(spans: Sequence[Span], notes: Notes) -> Run:
    """One conversation from the spans of one trace.

    Raises:
        UnreadableError: no span holds a message.
    """
    unique = {span.id or index: span for index, span in enumerate(spans)}
    if len(unique) < len(spans):
        notes["spans logged twice (read once)"] += len(spans) - len(unique)
    ordered = _ordered(list(unique.values()))
    depth = _depths(ordered)
    tools = [s for s in ordered if s.kind == "tool"]
    run = _main([s for s in ordered if s.kind == "llm"], depth, notes)
    for span in ordered:
        if span.kind == "agent":
            run = _with_agent(run, span)
    if run is None or not any(m.role == "assistant" for m in run.messages):
        run = _from_agents(ordered, tools, notes)
    names = {call.name for m in run.messages for call in m.tool_calls}
    tools += [s for s in ordered if s.kind == "other" and s.name in names and s.result is not None]
    _join_tools(run, _ordered(tools), notes)
    _count(run.messages, notes)
    return run


def join_sessions(runs: Iterable[tuple[Any, Run]], notes: Notes) -> list[tuple[list[Any], Run]]:
    """Join the runs of one session where a later one repeats and goes on with the one before.

    Args:
        runs: (anything, run), in order of time.
        notes: counts the joins.

    Returns:
        ([anything, ...], run) of every run that remains.
    """
    out: list[tuple[list[Any], Run]] = []
    for mark, run in runs:
        for index in reversed(range(len(out))):
            marks, before = out[index]
            if not _continues(run.messages, before.messages):
                continue
            run.failed |= before.failed
            run.seconds = before.seconds | run.seconds
            out[index] = ([*marks, mark], run)
            notes["traces that go on with the trace before (joined)"] += 1
            break
        else:
            out.append(([mark], run))
    return out


def _ordered(spans: list[Span]) -> list[Span]:
    """By start; spans without a time stay where they were logged."""
    if all(s.start is not None for s in spans):
        return sorted(spans, key=lambda s: (s.start, s.end or 0.0))
    return spans


def _depths(spans: list[Span]) -> dict[int, int]:
    """Depth in the tree of spans, by identity."""
    by_id = {s.id: s for s in spans if s.id}
    out = {}
    for span in spans:
        at: Span | None = span
        depth = 0
        while at is not None and at.parent and depth < len(spans):
            at, depth = by_id.get(at.parent), depth + 1
        out[id(span)] = depth
    return out


def _read(given: list[Any], said: list[Any] = []) -> tuple[tuple[Message, ...], frozenset[str], int]:  # noqa: B006
    """Messages as logged, read and paired, the failed calls, and how many messages were given.

    Histories are repeated in every prompt, so nothing is noted here.
    """
    conversation = Conversation(Notes())
    conversation.extend(given)
    history = len(conversation.messages)
    conversation.extend(said)
    return *conversation.paired(), history


def _main(calls: list[Span], depth: dict[int, int], notes: Notes) -> Run | None:
    """The main conversation of a trace's model calls."""
    threads: list[Run] = []
    unread = 0
    for span in calls:
        try:
            whole, failed, history = _read(span.given, span.said)
        except UnreadableError as error:
            notes[f"model calls that cannot be read: {error}"] += 1
            unread += 1
            continue
        if not whole:
            continue
        for thread in reversed(threads):
            if not _same_head(whole[:history], thread.messages):
                continue
            if len(whole) <= len(thread.messages) and _holds(thread.messages, whole[history:]):
                break
            if len(whole) >= len(thread.messages):
                thread.messages = _with_system(whole, thread.messages)
                thread.failed |= failed
                thread.turns += 1
                thread.depth = min(thread.depth, depth[id(span)])
                thread.last = span
                break
        else:
            threads.append(Run(whole, set(failed), {}, 1, depth[id(span)], span, span))
    if not threads:
        if unread:
            raise UnreadableError("none of the trace's model calls can be read")
        return None
    return _strung(threads) or _chosen(threads, notes)


def _chosen(threads: list[Run], notes: Notes) -> Run:
    def rank(thread: Run) -> tuple[bool, int, int, int]:
        working = thread.turns > 1 or any(m.tool_calls for m in thread.messages)
        return (not working, thread.depth, -thread.turns, -len(thread.messages))

    best = min(threads, key=rank)
    outside = sum(t.turns for t in threads if t is not best)
    if outside:
        notes["model calls outside of the main conversation (left out)"] += outside
    return best


def _strung(threads: list[Run]) -> Run | None:
    """Threads that each hold only what is new, as one; None where they are not of that kind."""
    if len(threads) < 2 or any(thread.turns > 1 for thread in threads):
        return None
    messages = list(threads[0].messages)
    system = _system(messages)
    for before, thread in itertools.pairwise(threads):
        new = [m for m in thread.messages if m.role != "system"]
        told = new[: next((i for i, m in enumerate(new) if m.role == "assistant"), len(new))]
        if _system(thread.messages) not in ("", system) or not told or thread.depth != threads[0].depth:
            return None
        if before.last.end is not None and thread.first.start is not None and thread.first.start < before.last.end:
            return None
        open_calls = {call.id for call in messages[-1].tool_calls}
        answers = {m.tool_call_id for m in told if m.role == "tool"}
        if open_calls != answers or (not answers and told[0].role != "user"):
            return None
        if not answers and not any(m.role == "tool" for t in threads for m in t.messages):
            return None  # single questions, one after another, are no conversation
        messages += new
    joined = Conversation(Notes())
    joined.messages = messages
    whole, failed = joined.paired()
    return Run(whole, set(failed).union(*(t.failed for t in threads)), {}, len(threads), threads[0].depth)


def _with_agent(run: Run | None, span: Span) -> Run | None:
    """The run, or the same conversation with more messages where an agent's span has it."""
    if run is None:
        return None
    for raws in (span.given + span.said, span.said, span.given):
        try:
            messages, failed, _ = _read(raws)
        except UnreadableError:
            continue
        if len(messages) > len(run.messages) and _continues(messages, run.messages):
            run.messages = _with_system(messages, run.messages)
            run.failed |= failed
            break
    return run


def _from_agents(spans: list[Span], tools: list[Span], notes: Notes) -> Run:
    """From an agent's input and output and the tool spans, where no model call holds messages.

    Raises:
        UnreadableError: there are no messages at all.
    """
    best: Run | None = None
    for span in spans:
        told = span.given + span.said
        if span.kind in ("agent", "other") and told:
            made = []
            for index, tool in enumerate(tools):
                if tool.arguments is not None:
                    ident = tool.call or f"{MADE}{index}"
                    tool.call = ident
                    call = {"id": ident, "name": tool.name, "arguments": tool.arguments}
                    made.append({"role": "assistant", "content": "", "tool_calls": [call]})
            if not made and all(isinstance(m, Wrapped) for m in told):
                continue  # a text in and a text out: a health check, a web request
            within = any(isinstance(m, dict) and m.get("tool_calls") for m in told)
            try:
                messages, failed, _ = _read(span.given + ([] if within else made) + span.said)
            except UnreadableError as error:
                notes[f"agent spans that cannot be read: {error}"] += 1
                continue
            if any(m.role == "assistant" for m in messages) and (best is None or len(messages) > len(best.messages)):
                best = Run(messages, set(failed), first=span, last=span)
    if best is None:
        raise UnreadableError("a trace without any message of an agent")
    return best


def _join_tools(run: Run, spans: list[Span], notes: Notes) -> None:
    """Latency and errors of calls, and results that the prompts do not hold."""
    by_id: dict[str, Span] = {}
    by_name: defaultdict[str, deque[Span]] = defaultdict(deque)
    for span in spans:
        if span.call and span.call not in by_id:
            by_id[span.call] = span
        else:
            by_name[span.name].append(span)
    loose = {name: deque(s for s in spans if s.name == name) for name in {s.name for s in spans}}
    answered = {m.tool_call_id for m in run.messages if m.role == "tool"}
    used: set[int] = set()
    messages: list[Message] = []
    for message in run.messages:
        messages.append(message)
        for call in message.tool_calls:
            queue = loose.get(call.name) if call.id.startswith(MADE) else by_name.get(call.name)
            match = by_id.get(call.id) or _take(queue, call, used)
            if match is None:
                if call.id not in answered:
                    notes["calls without a result"] += 1
                continue
            used.add(id(match))
            if match.failed:
                run.failed.add(call.id)
            if (took := span_seconds(match.start, match.end)) is not None:
                run.seconds[call.id] = took
            if call.id not in answered:
                if match.result is None:
                    notes["calls without a result"] += 1
                else:
                    messages.append(Message("tool", match.result, (), call.id))
    unused = sum(1 for s in spans if id(s) not in used)
    if unused:
        notes["tool spans without a call"] += unused
    run.messages = tuple(messages)


def _count(messages: Sequence[Message], notes: Notes) -> None:
    """Note what is worth knowing of the conversation that remains."""
    calls = {call.id for m in messages for call in m.tool_calls}
    for message in messages:
        if len(message.tool_calls) > 1:
            notes["messages with several calls at once"] += 1
        if message.tool_calls and message.text.strip():
            notes["thoughts beside calls"] += 1
        if message.role == "tool" and message.tool_call_id not in calls:
            notes["results without a call"] += 1


def _take(queue: deque[Span] | None, call: ToolCall, used: set[int]) -> Span | None:
    """The first span of a tool's queue that has the call's arguments, else the first."""
    if not queue:
        return None
    free = [s for s in queue if id(s) not in used]
    wanted = _canonical(call.arguments)
    return next(
        (s for s in free if s.arguments is not None and _canonical(s.arguments) == wanted), next(iter(free), None)
    )


def _canonical(arguments: str) -> Any:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _head(messages: Sequence[Message]) -> str | None:
    return next((m.text.strip() for m in messages if m.role != "system"), None)


def _system(messages: Sequence[Message]) -> str:
    return "\n".join(m.text.strip() for m in messages if m.role == "system")


def _same_head(one: Sequence[Message], other: Sequence[Message]) -> bool:
    head = _head(one)
    if head is None or head != _head(other):
        return False
    systems = _system(one), _system(other)
    return systems[0] == systems[1] or "" in systems


def _continues(later: Sequence[Message], before: Sequence[Message]) -> bool:
    return len(later) >= len(before) and _same_head(later, before)


def _with_system(messages: tuple[Message, ...], before: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages, with the system prompt of an earlier call where this one has none."""
    if messages[0].role == "system" or before[0].role != "system":
        return messages
    return (before[0], *messages)


def _holds(messages: Sequence[Message], said: Sequence[Message]) -> bool:
    """Whether a conversation holds these words and calls of the agent already."""

    def key(m: Message) -> tuple[str, tuple[tuple[str, Any], ...]]:
        return m.text.strip(), tuple((c.name, _canonical(c.arguments)) for c in m.tool_calls)

    have = [key(m) for m in messages if m.role == "assistant"]
    return all(key(m) in have for m in said if m.role == "assistant")
