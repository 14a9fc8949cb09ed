"""`read_logs`: files or folders of logs in any form that is understood, as recordings.

Forms whose records are runs are read as a stream. Forms of spans are read twice: first to learn which spans belong to
which trace (traces may be scattered over the files), then trace by trace; what is held is an index, not the spans.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlready.errors import UserError
from rlready.experience.logs.chat import schemas, task_of
from rlready.experience.logs.detect import LOOK, detect, form_named, undetectable, unwrapped
from rlready.experience.logs.facts import Facts
from rlready.experience.logs.forms import Form, RunForm, SpanForm, Way, attempt
from rlready.experience.logs.load import SUFFIXES, Record, load, pick, reload
from rlready.experience.logs.messages import keys_of
from rlready.experience.logs.report import LogReport, UnreadableError
from rlready.experience.logs.rewards import Rewarder, Rewards
from rlready.experience.logs.spans import Run, Span, assemble, join_sessions
from rlready.experience.recording import Recording

Paths = str | Path | Sequence[str | Path]
_CACHE = 32 << 20  # bytes of decoded batches that are kept while spans are read


def read_logs(
    paths: Paths, *, rewards: Rewards | None = None, form: str | None = None, report: LogReport | None = None
) -> Iterator[Recording]:
    """Read logs, one recording at a time.

    Records that cannot be read are left out and stand in the report; they never stop the reading.

    Args:
        paths: JSON or JSONL files, or folders of them (read recursively, in the order of their names).
        rewards: where the log's own rewards are not to be used: a file of `id, reward` (JSONL or CSV; the id is a
            recording's id, or task id and trial), a mapping of the same, or a verifier (recording -> reward or None).
        form: the form of all files, by name (see `FORMS`); told from each file's first records where None.
        report: filled while the recordings are drawn.

    Raises:
        UserError: a path is not there, holds no logs, or is in no form that is understood. Paths, rewards and `form`
            are checked at once, forms of files when they are reached.
    """
    report = LogReport() if report is None else report
    given = [Path(p) for p in ([paths] if isinstance(paths, (str, Path)) else paths)]
    files = [pair for path in given for pair in _files(path)]
    if not files:
        raise UserError("No logs were given: name a JSON or JSONL file, or a folder of them.")
    wanted = None if form is None else form_named(form)
    rewarder = None if rewards is None else Rewarder(rewards, report)
    return _finished(_Logs(report, wanted).read(files), rewarder, report)


def _files(path: Path) -> list[tuple[Path, bool]]:
    """The files at a path, and whether it was named itself.

    Raises:
        UserError: there are none.
    """
    if path.is_file():
        return [(path, True)]
    if not path.exists():
        raise UserError(f"There is no file or folder {path}.")
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    found = [p for p in found if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    if not found:
        raise UserError(f"The folder {path} holds no {', '.join(SUFFIXES)} file.")
    return [(p, False) for p in found]


def _finished(recordings: Iterable[Recording], rewarder: Rewarder | None, report: LogReport) -> Iterator[Recording]:
    """Unique ids, rewards from elsewhere, and the count."""
    seen: set[int] = set()
    for number, recording in enumerate(recordings, 1):
        ident = recording.id or f"run-{number}"
        if hash(ident) in seen:
            report.notes["ids that several recordings have (told apart)"] += 1
            ident = next(name for n in itertools.count(2) if hash(name := f"{ident}#{n}") not in seen)
        seen.add(hash(ident))
        if ident != recording.id:
            if rewarder is not None and recording.id:
                recording = rewarder.apply(recording)
                recording = replace(recording, id=ident)
            else:
                recording = replace(recording, id=ident)
                recording = recording if rewarder is None else rewarder.apply(recording)
        elif rewarder is not None:
            recording = rewarder.apply(recording)
        report.recordings += 1
        yield recording
    if rewarder is not None:
        rewarder.finish()


@dataclass(slots=True)
class _Trace:
    """Where the spans of a trace stand."""

    spans: list[tuple[Record, Way]] = field(default_factory=list)
    session: str = ""


class _Logs:
    """Reads files, one after another."""

    def __init__(self, report: LogReport, wanted: Form | None) -> None:
        self.report = report
        self.wanted = wanted
        self.traces: dict[str, dict[str, _Trace]] = {}  # by form, then by trace
        self.cache: OrderedDict[tuple[Path, int], tuple[Any, int, set[Way]]] = OrderedDict()
        self.cached = 0

    def read(self, files: Sequence[tuple[Path, bool]]) -> Iterator[Recording]:
        understood = False
        error: UserError | None = None
        for file, named in files:
            self.report.bytes += file.stat().st_size
            records = load(file, lambda line, why, file=file: self._bad(file, line, why))  # type: ignore[misc]
            first = list(itertools.islice(records, LOOK))
            form = self.wanted or detect(first)
            if form is None:
                error = undetectable(file, first)
                if named:
                    raise error
                if not first and not file.stat().st_size:
                    self.report.drop(file, 1, "the file is empty")
                elif first:
                    self.report.records += 1
                    self.report.drop(
                        file,
                        first[0].line,
                        f"a file in no form that is understood; the keys are {keys_of(first[0].value)}",
                    )
                continue
            understood = True
            self.report.files[str(file)] = form.name
            chained = itertools.chain(first, records)
            del first
            if isinstance(form, RunForm):
                yield from self._runs(form, chained)
            else:
                self._index(form, chained)
        if not understood and error is not None:
            raise error
        for name, traces in self.traces.items():
            found = form_named(name)
            assert isinstance(found, SpanForm)
            yield from self._assembled(found, traces)

    def _bad(self, file: Path, line: int, reason: str) -> None:
        self.report.records += 1
        self.report.drop(file, line, reason)

    def _fitting(self, form: Form, records: Iterable[Record]) -> Iterator[Record]:
        """The records of a form, pages taken apart; the others are reported."""
        report, fits = self.report, form.fits
        for record in records:
            if fits(record.value):
                report.records += 1
                yield record
                continue
            inner = 0
            for inner, part in enumerate(unwrapped(record), 1):
                report.records += 1
                if fits(part.value):
                    yield replace(part, number=record.number or inner)
                else:
                    self._misfit(form, part)
            if not inner:
                report.records += 1
                self._misfit(form, record)

    def _misfit(self, form: Form, record: Record) -> None:
        self.report.drop(
            record.file, record.line, f"no {form.name} record; the keys are {keys_of(record.value)}", record.number
        )

    def _runs(self, form: RunForm, records: Iterable[Record]) -> Iterator[Recording]:
        reader = form.reader(self.report)
        for record in self._fitting(form, records):
            try:
                yield from attempt(form.name, lambda record=record: list(reader.read(record)))  # type: ignore[misc]
            except UnreadableError as error:
                self.report.drop(record.file, record.line, str(error), record.number)
        yield from reader.finish()

    def _index(self, form: SpanForm, records: Iterable[Record]) -> None:
        traces = self.traces.setdefault(form.name, {})
        for record in self._fitting(form, records):
            try:
                found = attempt(form.name, lambda value=record.value: list(form.items(value)))  # type: ignore[misc]
            except UnreadableError as error:
                self.report.drop(record.file, record.line, str(error), record.number)
                continue
            if not found:
                self.report.drop(record.file, record.line, "it holds no spans", record.number)
                continue
            place = replace(record, value=None)
            self.report.records += len(found) - 1
            for way, raw in found:
                name, session = form.keys(raw)
                if not name:
                    self.report.drop(
                        record.file,
                        record.line,
                        "a span without a trace id, or not of a model or a tool",
                        record.number,
                    )
                    continue
                trace = traces.setdefault(name, _Trace())
                trace.spans.append((place, way))
                trace.session = trace.session or session

    def _assembled(self, form: SpanForm, traces: dict[str, _Trace]) -> Iterator[Recording]:
        groups: dict[tuple[bool, str], list[str]] = {}
        for name, trace in traces.items():
            groups.setdefault((True, trace.session) if trace.session else (False, name), []).append(name)
        for names in groups.values():
            found = [self._run(form, name, traces[name]) for name in names]
            runs = sorted((each for each in found if each is not None), key=lambda each: each[0].start)
            for members, run in join_sessions(runs, self.report.notes):
                yield self._recording(members, run)

    def _run(self, form: SpanForm, name: str, trace: _Trace) -> tuple[_Member, Run] | None:
        spans: list[Span] = []
        member = _Member(name, trace.spans[0][0].place)
        for record, way in trace.spans:
            try:
                raw = self._again(form, record, way)
                spans.append(attempt(form.name, lambda raw=raw: form.span(raw, self.report.notes)))  # type: ignore[misc]
            except UnreadableError as error:
                self.report.drop(record.file, record.line, str(error), record.number)
        for span in spans:
            self.report.saw_time(span.start)
            member.take(span)
        try:
            return member, attempt(form.name, lambda: assemble(spans, self.report.notes))
        except UnreadableError as error:
            record = trace.spans[0][0]
            self.report.drop(record.file, record.line, str(error), record.number)
            return None

    def _again(self, form: SpanForm, record: Record, way: Way) -> Any:
        """A span, from the batches that were decoded last, or decoded again."""
        key = (record.file, record.offset)
        if key in self.cache:
            self.cache.move_to_end(key)
            value, _, prepared = self.cache[key]
        else:
            value, prepared = reload(record), set()
            self.cache[key] = (value, record.size, prepared)
            self.cached += record.size
            while self.cached > _CACHE and len(self.cache) > 1:
                self.cached -= self.cache.popitem(last=False)[1][1]
        value = pick(value, record.inside)
        if way and record.inside not in prepared:
            prepared.add(record.inside)
            deque(form.items(value), maxlen=0)  # children take over what their parents say
        return pick(value, way)

    def _recording(self, members: list[_Member], run: Run) -> Recording:
        facts = members[-1].facts
        for member in members[:-1]:
            facts.task = facts.task or member.facts.task
            facts.trial = facts.trial or member.facts.trial
        tools = {tool["name"]: tool for member in members for tool in member.tools}
        return Recording(
            id=members[0].name,
            task_id=facts.task or task_of(run.messages),
            messages=run.messages,
            tools=tuple(tools.values()),
            reward=facts.value(self.report.notes),
            done=facts.done,
            failed=frozenset(run.failed),
            seconds=run.seconds,
            source=facts.source,
            model=facts.model or next((m.model for m in members if m.model), ""),
            seed=facts.seed,
            place=members[0].place,
            meta=facts.about,
        )


@dataclass(slots=True)
class _Member:
    """What the spans of one trace say of its run."""

    name: str
    place: str
    facts: Facts = field(default_factory=Facts)
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    start: float = float("inf")

    def take(self, span: Span) -> None:
        mine, said = self.facts, span.facts
        mine.task, mine.trial = mine.task or said.task, mine.trial or said.trial
        mine.reward = said.reward if mine.reward is None else mine.reward
        mine.success = said.success if mine.success is None else mine.success
        mine.done = said.done if mine.done is None else mine.done
        mine.seed = mine.seed or said.seed
        mine.source = said.source if mine.source == "agent" else mine.source
        mine.scores += said.scores
        self.model = self.model or span.model
        if span.tools and not self.tools:
            self.tools = list(schemas(span.tools))
        if span.start is not None:
            self.start = min(self.start, span.start)
