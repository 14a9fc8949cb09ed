"""What a log holds, and what it lacks: counts for people, and a sentence for each gap that will hurt.

`Reading` is filled while a log is read, one run after another; it keeps counters and hashes, no texts. `Understanding`
is what comes out. Nothing here guesses: a share that has no cases is None, and a lack is named only where it was seen.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlready.dream.domain import head_of
from rlready.dreaming.lacks import Lack, lacks_of
from rlready.experience.episode import LoggedEpisode
from rlready.experience.logs.report import LogReport
from rlready.experience.recording import Recording
from rlready.experience.store import episode_id
from rlready.seeds import derive
from rlready.toolcalls import OPEN

RANDOM = ("random", "random play")
"""Sources that are random play without being named as such."""

_CALL = OPEN + '{"name": '
_MOST_HEADS = 40


@dataclass(frozen=True)
class Spread:
    """Quantiles of some numbers; all None where there are none."""

    n: int = 0
    least: float | None = None
    quarter: float | None = None
    median: float | None = None
    three_quarters: float | None = None
    greatest: float | None = None
    mean: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """From the numbers."""
        if not values:
            return cls()
        low, middle, high = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        )
        return cls(len(values), min(values), low, middle, high, max(values), statistics.fmean(values))


@dataclass(frozen=True)
class Kind:
    """One kind of action.

    Attributes:
        name: the tool, "say" for plain words, or the head of a text command ("click[").
        count: how often it was done.
        errors: how often the reply was an error.
        runs: in how many runs it was done.
    """

    name: str
    count: int
    errors: int
    runs: int


@dataclass(frozen=True)
class Repeats:
    """Places that were recorded more than once: the same task, the same history, the same action.

    Attributes:
        places: how many there are.
        differing: at how many of them the replies differ.
    """

    places: int = 0
    differing: int = 0


@dataclass(frozen=True)
class Understanding:
    """What was read.

    Attributes:
        runs: runs read, duplicates included.
        duplicates: runs that equal an earlier one in all they hold; they are kept once.
        tasks: distinct task ids.
        steps: actions with their replies, duplicates included, as in all counts below.
        lengths: actions per run.
        judged, successes: runs with a reward, and those of them that succeeded.
        finished: runs that came to their own end.
        errors: replies that are errors.
        kinds: actions by kind, the most frequent first.
        sources, models: runs by who acted, and with which model ("" where the log does not say).
        random: runs of random play.
        calls: repeated places whose action is a tool call.
        words: those whose action is plain words.
        parallel: messages that make several calls at once; they are read one after another.
        thoughts: messages with words beside a call; the words are left out.
        unanswered: calls without a result.
        malformed: calls whose arguments are no JSON object.
        prompts: distinct system prompts.
        prompt_share: share of the runs that have the commonest one.
        tools: tools whose schema stands in the log.
        unused: of these, the ones that nobody called.
        called: distinct tools that were called.
        step_seconds: time from a call to its result, where the log has times.
        setup_seconds: time a run took to be set up, where the log says (`meta["setup_seconds"]`).
        forms: files by format.
        notes: what the readers met that is worth knowing, and how often.
        dropped: records that were left out.
        unmatched: ids in the file of rewards that no run has.
        bytes: size of what was read.
    """

    runs: int
    duplicates: int
    tasks: int
    steps: int
    lengths: Spread
    judged: int
    successes: int
    finished: int
    errors: int
    kinds: tuple[Kind, ...]
    sources: Mapping[str, int]
    models: Mapping[str, int]
    random: int
    calls: Repeats
    words: Repeats
    parallel: int
    thoughts: int
    unanswered: int
    malformed: int
    prompts: int
    prompt_share: float
    tools: int
    unused: tuple[str, ...]
    called: int
    step_seconds: Spread
    setup_seconds: Spread
    forms: Mapping[str, int]
    notes: Mapping[str, int]
    dropped: int
    unmatched: tuple[str, ...]
    bytes: int

    @property
    def distinct(self) -> int:
        """Runs that are kept."""
        return self.runs - self.duplicates

    @property
    def success_rate(self) -> float | None:
        """Share of successes among the judged runs; None where none was judged."""
        return self.successes / self.judged if self.judged else None

    @property
    def failed_share(self) -> float | None:
        """Share of the judged runs that failed."""
        return None if self.success_rate is None else 1 - self.success_rate

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """What is missing, and why that hurts; the worst first."""
        return tuple(lacks_of(self))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, the derived shares and the lacks included."""
        body = asdict(self)
        body["kinds"] = [asdict(k) for k in self.kinds]
        body["unused"], body["unmatched"] = list(self.unused), list(self.unmatched)
        return body | {
            "distinct": self.distinct,
            "success_rate": self.success_rate,
            "lacks": [asdict(lack) for lack in self.lacks],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Understanding:
        """Inverse of `to_json`."""
        kw = {k: v for k, v in record.items() if k not in ("distinct", "success_rate", "lacks")}
        kw["kinds"] = tuple(Kind(**k) for k in record["kinds"])
        kw["unused"], kw["unmatched"] = tuple(record["unused"]), tuple(record["unmatched"])
        for name in ("lengths", "step_seconds", "setup_seconds"):
            kw[name] = Spread(**record[name])
        for name in ("calls", "words"):
            kw[name] = Repeats(**record[name])
        return cls(**kw)


class Reading:
    """Counts runs as they are read."""

    def __init__(self, *, random: Iterable[str] = ()) -> None:
        """Start at nothing.

        Args:
            random: sources that are random play, besides those called "random".
        """
        self.random_sources = {r.casefold() for r in (*RANDOM, *random)}
        self.runs = self.duplicates = self.steps = self.judged = self.successes = self.finished = self.errors = 0
        self.random = self.parallel = self.thoughts = self.unanswered = self.malformed = 0
        self.lengths: list[float] = []
        self.seconds: list[float] = []
        self.setups: list[float] = []
        self.sources, self.models = Counter[str](), Counter[str]()
        self._ids: set[str] = set()
        self._tasks: set[str] = set()
        self._prompts = Counter[int]()
        self._tools: dict[str, None] = {}
        self._kinds: dict[tuple[str, str], list[int]] = {}
        self._called: set[str] = set()
        self._replies: dict[int, int] = {}
        self._repeated: dict[int, list[bool]] = {}

    def is_random(self, source: str) -> bool:
        """Whether a source is random play."""
        return source.casefold() in self.random_sources

    def add(self, recording: Recording, episode: LoggedEpisode, *, system: str = "") -> bool:
        """Count a run.

        Args:
            recording: as it was read.
            episode: what became of it.
            system: its system prompt.

        Returns:
            Whether it is new; False for a duplicate.
        """
        self.runs += 1
        self.steps += len(episode)
        self.lengths.append(len(episode))
        self.judged += episode.judged
        self.successes += episode.judged and episode.success
        self.finished += episode.finished
        self.errors += len(episode.errors)
        self.sources[episode.source] += 1
        self.models[recording.model] += 1
        self.random += self.is_random(episode.source)
        self._tasks.add(episode.task_id)
        self._prompts[derive(system)] += 1
        for tool in recording.tools:
            self._tools[_tool_name(tool)] = None
        self.seconds += [float(s) for s in recording.seconds.values()]
        setup = recording.meta.get("setup_seconds")
        if isinstance(setup, (int, float)) and not isinstance(setup, bool):
            self.setups.append(float(setup))
        self._messages(recording)
        self._actions(episode)
        new = (id := episode_id(episode)) not in self._ids
        self._ids.add(id)
        self.duplicates += not new
        return new

    def done(self, report: LogReport) -> Understanding:
        """What was counted, with what the readers say of files and dropped records."""
        repeated = {False: [0, 0], True: [0, 0]}
        for call, differs in self._repeated.values():
            repeated[call][0] += 1
            repeated[call][1] += differs
        tools = tuple(t for t in self._tools if t)
        return Understanding(
            self.runs,
            self.duplicates,
            len(self._tasks),
            self.steps,
            Spread.of(self.lengths),
            self.judged,
            self.successes,
            self.finished,
            self.errors,
            self._kinds_found(),
            dict(self.sources.most_common()),
            dict(self.models.most_common()),
            self.random,
            Repeats(*repeated[True]),
            Repeats(*repeated[False]),
            self.parallel,
            self.thoughts,
            self.unanswered,
            self.malformed,
            len(self._prompts),
            max(self._prompts.values(), default=0) / max(self.runs, 1),
            len(tools),
            tuple(t for t in tools if t not in self._called),
            len(self._called),
            Spread.of(self.seconds),
            Spread.of(self.setups),
            dict(sorted(report.forms.items())),
            dict(sorted(report.notes.items())),
            report.reasons.total(),
            tuple(report.unmatched),
            report.bytes,
        )

    # ------------------------------------------------------------------ within

    def _messages(self, recording: Recording) -> None:
        answered = {m.tool_call_id for m in recording.messages if m.role == "tool"}
        for message in recording.messages:
            if not message.tool_calls:
                continue
            self.parallel += len(message.tool_calls) > 1
            self.thoughts += bool(message.text.strip())
            for call in message.tool_calls:
                self.unanswered += call.id not in answered
                self.malformed += not _is_object(call.arguments)

    def _actions(self, episode: LoggedEpisode) -> None:
        failed = set(episode.errors)
        seen: set[tuple[str, str]] = set()
        place = derive("place", episode.task_id)
        for i, (action, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
            tool = _tool_of(action)
            key = ("call", tool) if tool is not None else ("words", _head(action))
            counts = self._kinds.setdefault(key, [0, 0, 0])
            counts[0] += 1
            counts[1] += i in failed
            counts[2] += key not in seen
            seen.add(key)
            if tool is not None:
                self._called.add(tool)
            place = derive(place, action)
            heard = derive(reply)
            if place in self._replies:
                state = self._repeated.setdefault(place, [tool is not None, False])
                state[1] |= self._replies[place] != heard
            else:
                self._replies[place] = heard
            place = derive(place, reply)

    def _kinds_found(self) -> tuple[Kind, ...]:
        words = {key: n for key, n in self._kinds.items() if key[0] == "words"}
        calls = [(key[1] or "(no name)", n) for key, n in self._kinds.items() if key[0] == "call"]
        bracketed = sum(n[0] for (_, head), n in words.items() if head.endswith(("[", "(")))
        total = sum(n[0] for n in words.values())
        if words and (calls or (len(words) > _MOST_HEADS and bracketed < 0.9 * total)):
            # Free words have no kinds worth telling apart; the runs are an upper bound then.
            runs = min(self.runs, sum(n[2] for n in words.values()))
            calls.append(("say", [total, sum(n[1] for n in words.values()), runs]))
        else:
            calls += [(head, n) for (_, head), n in words.items()]
        return tuple(Kind(name, *n) for name, n in sorted(calls, key=lambda c: (-c[1][0], c[0])))


def _tool_of(action: str) -> str | None:
    """The tool that a logged action calls ("" where the call is too broken to say); None for plain words."""
    if not action.startswith(OPEN):
        return None
    if action.startswith(_CALL):
        try:
            name, _ = json.JSONDecoder().raw_decode(action, len(_CALL))
        except ValueError:
            return ""
        return name if isinstance(name, str) else ""
    return ""


def _head(words: str) -> str:
    """What kind of text command plain words are: "click[", else the first word."""
    head = head_of(words)
    if head.endswith(("[", "(")) and len(head) <= 30:
        return head.strip()
    return words.split(None, 1)[0][:30].casefold() if words.strip() else "(nothing)"


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _tool_name(tool: Mapping[str, Any]) -> str:
    inner = tool.get("function")
    name = (inner if isinstance(inner, Mapping) else tool).get("name")
    return name if isinstance(name, str) else ""
