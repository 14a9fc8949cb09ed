"""`report.html`: one file without outside resources, light or dark as the reader's system is.

Everything that comes from a log or a model is escaped. Pictures are plain SVG in the page's own colours.
"""

from __future__ import annotations

import difflib
import html
import math
import re
from collections.abc import Sequence

from rlready.dream import report as forms
from rlready.dream.measure.curve import Curve
from rlready.dream.measure.numbers import Probabilities
from rlready.dream.measure.open_loop import Example
from rlready.dream.report import DreamReport, Table

_MOST = 1600
"""Characters of a text that are shown; longer ones are cut, and say so."""
_ALIKE = 0.4
"""Below this likeness of two texts marks on them are noise."""
_PIECE = re.compile(r"\s+|\w+|[^\w\s]")

_STYLE = """
:root { color-scheme: light dark; --bg: #fff; --text: #1c1e21; --soft: #667; --line: #d9dce1; --panel: #f5f6f8;
  --good: #16743c; --bad: #b3261e; --warn: #8a5a00; --one: #2457a6; --two: #a65a00; --mark: #ffdf8a; }
@media (prefers-color-scheme: dark) { :root { --bg: #15171a; --text: #e4e6ea; --soft: #9aa0aa; --line: #343841;
  --panel: #1e2126; --good: #5cc583; --bad: #ff8a80; --warn: #e5b45a; --one: #7fb0ff; --two: #f0a862;
  --mark: #6a5208; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 8px; }
h3 { font-size: 15px; margin: 18px 0 4px; }
p, ul { margin: 6px 0; } ul { padding-left: 20px; } .soft { color: var(--soft); }
.verdict { border-left: 4px solid var(--warn); background: var(--panel); padding: 12px 16px; margin: 16px 0; }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
.verdict b { font-size: 17px; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; margin: 6px 0; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
table.first tbody tr:first-child td { font-weight: 600; }
table.plain td { white-space: normal; text-align: left; }
table.plain td:first-child { color: var(--soft); padding-right: 24px; }
.ok { color: var(--good); font-weight: 600; } .failed { color: var(--bad); font-weight: 600; }
.pictures { display: flex; flex-wrap: wrap; gap: 24px; } figure { margin: 8px 0; }
figcaption { font-size: 13px; color: var(--soft); }
svg { display: block; max-width: 100%; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.example { border: 1px solid var(--line); border-radius: 6px; margin: 12px 0; overflow: hidden; }
.example header { background: var(--panel); padding: 6px 12px; font-size: 13px; color: var(--soft); }
.example pre { margin: 0; padding: 8px 12px; font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; } .example > pre { border-bottom: 1px solid var(--line); }
.two { display: grid; grid-template-columns: 1fr 1fr; } .two > div + div { border-left: 1px solid var(--line); }
.two h4 { margin: 0; padding: 6px 12px 0; font-size: 12px; color: var(--soft); font-weight: 600; }
@media (max-width: 700px) { .two { grid-template-columns: 1fr; }
  .two > div + div { border-left: 0; border-top: 1px solid var(--line); } }
mark { background: var(--mark); color: inherit; border-radius: 2px; } summary { cursor: pointer; }
"""


def to_html(report: DreamReport) -> str:
    """The page."""
    body = [
        f"<h1>The dream {_e(report.name)}</h1>",
        f'<p class="soft">Simulator {_e(report.simulator)} · parser and template {_e(report.fingerprint)} · '
        f"measured on {_e(report.split)}</p>",
        _verdict(report),
        _gate(report),
        _open_loop(report),
        _curve_section(report),
        _section("One world, and its own", _pairs(forms.world_lines(report)), _world_examples(report)),
        _reality(report),
        _examples("Worst replies, recorded and said", report.loops[0].worst if report.loops else ()),
        _rules(report),
        _section("About", _pairs([(k, str(v)) for k, v in sorted(report.about.items())])),
    ]
    title = f"The dream {_e(report.name)}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(b for b in body if b)
        + "\n</main>\n</body>\n</html>\n"
    )


def _e(text: object) -> str:
    """Escaped; characters that no page may hold are replaced."""
    safe = "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 0xD800 <= ord(c) <= 0xDFFF) else "\ufffd" for c in str(text)
    )
    return html.escape(safe, quote=True)


def _section(title: str, *parts: str) -> str:
    inner = "\n".join(p for p in parts if p)
    return f"<h2>{_e(title)}</h2>\n{inner}" if inner else ""


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_e(i)}</li>" for i in items) + "</ul>" if items else ""


def _table(table: Table, kind: str = "") -> str:
    heads, rows = table
    if not rows:
        return ""
    head = "".join(f"<th>{_e(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{_e(c)}</td>" for c in row) + "</tr>" for row in rows)
    tag = f'<table class="{kind}">' if kind else "<table>"
    return f'<div class="scroll">{tag}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    body = "".join(f"<tr><td>{_e(a)}</td><td>{_e(b)}</td></tr>" for a, b in rows)
    return f'<table class="plain"><tbody>{body}</tbody></table>'


def _verdict(report: DreamReport) -> str:
    verdict = report.verdict
    if verdict is None:
        return ""
    kind = {"fit to train in": "good", "do not dream": "bad"}.get(verdict.word, "more")
    needs = f"<p>It needs:</p>{_list(verdict.needs)}" if verdict.needs else ""
    real = "" if report.closed is not None else "<p><b>Not checked in a real environment.</b></p>"
    return f'<div class="verdict {kind}"><b>Verdict: {_e(verdict.word)}</b>{_list(verdict.reasons)}{needs}{real}</div>'


def _gate(report: DreamReport) -> str:
    if report.gate is None:
        return _section("Gate", '<p class="soft">Not run.</p>')
    parts = []
    for check in report.gate.checks:
        mark = '<span class="ok">passed</span>' if check.passed else '<span class="failed">failed</span>'
        parts.append(f"<h3>{_e(check.name)}: {mark}</h3>")
        if not check.passed:
            parts.append(_list(check.failures))
            parts.append(f"<p>{_e(check.why)}</p><p><b>Mend:</b> {_e(check.mend)}</p>")
        parts += [f'<p class="soft">{_e(n)}</p>' for n in check.notes]
    return _section("Gate", *parts)


def _open_loop(report: DreamReport) -> str:
    if not report.loops:
        return ""
    first = report.loops[0]
    said = (
        f"{first.steps} held-out steps of {first.tasks} tasks, history as recorded. Means over kinds of action and "
        "over steps; what could not be read counts as wrong."
    )
    pictures = "".join(
        [
            _reliability("Verdicts: stated and true", first.verdict),
            _reliability("Confidence: stated and true", first.confidence.stated),
        ]
    )
    by_kind, fields = _table(forms.kinds(report)), _table(forms.fields(report))
    return _section(
        "Open loop",
        f"<p>{_e(said)}</p>",
        _table(forms.backends(report), "first"),
        f"<h3>By kind of action ({_e(forms.row_name(first))})</h3>{by_kind}" if by_kind else "",
        f"<h3>Documents: share of fields right, by fields that changed</h3>{fields}" if fields else "",
        f'<div class="pictures">{pictures}</div>' if pictures else "",
    )


def _curve_section(report: DreamReport) -> str:
    curve = report.curve
    if curve is None:
        return ""
    said = (
        f"The last doubling gained {curve.gain:+.3f} F1, standard error {curve.noise:.3f}."
        if not math.isnan(curve.gain)
        else "The last doubling could not be measured."
    )
    return _section(
        "Over the number of recordings", draw_curve(curve), f"<p>{_e(said)}</p>", _table(forms.points(report))
    )


def _world_examples(report: DreamReport) -> str:
    found = []
    if report.sameness is not None and report.sameness.example:
        found.append(f"First difference: {report.sameness.example}")
    if report.quality is not None:
        found += [e for e in (report.quality.contradictions.example, report.quality.inventions.example) if e]
        if report.quality.pair_test.tells:
            found.append(f"What tells dreams: {'; '.join(report.quality.pair_test.tells)}")
    return _list([f[:600] for f in found])


def _reality(report: DreamReport) -> str:
    missing = '<p class="soft">Not checked in a real environment.</p>' if report.closed is None else ""
    actors = ""
    if report.closed is not None and report.closed.actors:
        rows = [
            (name, str(a.episodes), forms.percent(a.dream), forms.percent(a.replayed), forms.percent(a.real))
            for name, a in report.closed.actors.items()
        ]
        actors = _table((("agent", "episodes", "in the dream", "same actions in reality", "itself in reality"), rows))
    worst = _examples(
        "First wrong replies, real and dreamt", report.closed.examples if report.closed is not None else ()
    )
    return _section("Reality", missing, _pairs(forms.real_lines(report)), actors) + worst


def _rules(report: DreamReport) -> str:
    used = [r for r in report.rules if r.get("used", True)]
    if not used:
        return ""
    heads = ("rule", "action", "written by", "held steps", "accuracy")
    rows = [
        (
            str(r.get("rule", "")),
            str(r.get("kind", "")),
            str(r.get("by", "")),
            str(r.get("support", "")),
            forms.percent(r.get("accuracy")),
        )
        for r in used
    ]
    return f"<h2>What code knows</h2><details><summary>{len(rows)} rules</summary>{_table((heads, rows))}</details>"


# ---------------------------------------------------------------------- examples


def _examples(title: str, examples: Sequence[Example]) -> str:
    return _section(title, *(_example(e) for e in examples)) if examples else ""


def _example(example: Example) -> str:
    recorded, said = marked(example.recorded, example.said)
    sure = "" if math.isnan(example.confidence) else f" · confidence {example.confidence:.2f}"
    return (
        f'<div class="example"><header>{_e(example.place)} · answered by {_e(example.origin)}{sure} · '
        f"F1 {example.f1:.2f}</header><pre>{_e(_cut(example.action))}</pre>"
        f'<div class="two"><div><h4>recorded</h4><pre>{recorded}</pre></div>'
        f"<div><h4>said</h4><pre>{said}</pre></div></div></div>"
    )


def marked(a: str, b: str) -> tuple[str, str]:
    """Two texts as HTML, each with the words marked that the other lacks; nothing where they have little in common."""
    left, right = (_PIECE.findall(_cut(t)) for t in (a, b))
    out: tuple[list[str], list[str]] = ([], [])
    match = difflib.SequenceMatcher(None, left, right, autojunk=False)
    codes = match.get_opcodes() if match.ratio() >= _ALIKE else [("equal", 0, len(left), 0, len(right))]
    for tag, i, j, k, m in codes:
        for side, pieces in ((0, left[i:j]), (1, right[k:m])):
            text = _e("".join(pieces))
            if text:
                out[side].append(text if tag == "equal" or not text.strip() else f"<mark>{text}</mark>")
    return tuple("".join(side) or '<span class="soft">(nothing)</span>' for side in out)  # type: ignore[return-value]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]} … ({len(text) - _MOST} characters more)"


# ---------------------------------------------------------------------- pictures

_W, _H, _LEFT, _TOP, _BOTTOM = 520, 260, 44, 14, 40


def draw_curve(curve: Curve) -> str:
    """Accuracy over the number of recordings, on a scale of doublings; the shade is one spread over orders."""
    if len(curve.points) < 2:
        return ""
    most = math.log2(1 + max(p.traces for p in curve.points)) or 1.0

    def x(n: int) -> float:
        return _LEFT + (_W - _LEFT - 90) * math.log2(1 + n) / most

    def y(v: float) -> float:
        return _TOP + (_H - _TOP - _BOTTOM) * (1 - min(max(v, 0.0), 1.0))

    parts = _axis(y, _W - 90)
    last = -math.inf
    for p in curve.points:
        if x(p.traces) - last >= 26 or p.traces == curve.points[-1].traces:
            parts.append(f'<text x="{x(p.traces):.1f}" y="{_H - 22}" text-anchor="middle">{p.traces}</text>')
            last = x(p.traces)
    parts.append(f'<text x="{(_LEFT + _W - 90) / 2:.0f}" y="{_H - 4}" text-anchor="middle">recordings</text>')
    lines = [
        ("F1", "var(--one)", [(p.traces, p.f1.micro, p.f1_spread) for p in curve.points]),
        ("exact", "var(--two)", [(p.traces, p.exact.micro, p.exact_spread) for p in curve.points]),
    ]
    labels: list[float] = []
    for name, colour, rows in lines:
        rows = [r for r in rows if not math.isnan(r[1])]
        if not rows:
            continue
        band = [f"{x(n):.1f},{y(v + s):.1f}" for n, v, s in rows] + [
            f"{x(n):.1f},{y(v - s):.1f}" for n, v, s in rows[::-1]
        ]
        parts.append(f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.15"/>')
        line = " ".join(f"{x(n):.1f},{y(v):.1f}" for n, v, _ in rows)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for n, v, _ in rows]
        at = y(rows[-1][1])
        while any(abs(at - other) < 15 for other in labels):
            at += 15
        labels.append(at)
        label = f"{name} {rows[-1][1]:.2f}"
        parts.append(f'<text x="{x(rows[-1][0]) + 8:.1f}" y="{at + 4:.1f}" style="fill:{colour}">{label}</text>')
    said = "Next reply on held-out tasks, mean over steps; everything learned anew from each number of recordings."
    return _figure(_W, _H, parts, said)


def _reliability(title: str, found: Probabilities) -> str:
    """What was stated against what was true; on the diagonal it is calibrated. The area of a dot is its count."""
    if not found.n or math.isnan(found.brier):
        return ""
    size = 240

    def x(v: float) -> float:
        return _LEFT + (size - _LEFT - 12) * v

    def y(v: float) -> float:
        return _TOP + (size - _TOP - _BOTTOM) * (1 - v)

    parts = _axis(y, size - 12)
    parts.append(
        f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" stroke="var(--soft)" '
        'stroke-dasharray="4 4"/>'
    )
    for v in (0, 0.5, 1):
        parts.append(f'<text x="{x(v):.1f}" y="{size - 22}" text-anchor="middle">{v:g}</text>')
    parts.append(f'<text x="{x(0.5):.1f}" y="{size - 4}" text-anchor="middle">stated</text>')
    for b in found.bins:
        r = 3 + 9 * math.sqrt(b.n / found.n)
        parts.append(f'<circle cx="{x(b.said):.1f}" cy="{y(b.true):.1f}" r="{r:.1f}" fill="var(--one)" opacity="0.7"/>')
    said = f"{title}: {found.n}, Brier {found.brier:.3f}, ECE {found.ece:.3f}"
    return _figure(size, size, parts, said)


def _axis(y: object, right: float) -> list[str]:
    assert callable(y)
    parts = []
    for v in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line x1="{_LEFT}" x2="{right:.0f}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="var(--line)"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    return parts


def _figure(width: int, height: int, parts: Sequence[str], caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{_e(caption)}">{"".join(parts)}</svg><figcaption>{_e(caption)}</figcaption></figure>'
    )
