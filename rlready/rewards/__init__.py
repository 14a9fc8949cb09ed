"""Public verifiers: factories for task sets, and the plain functions under them.

A factory takes the column that holds the gold and gives a reward function for `TaskSet(score=...)`. The plain
`verify_*` functions judge one text against one gold. All follow one rule: an empty answer is no answer, a gold that
cannot be read makes the grader fail, and neither is ever paid.

    exact("answer")      the same text                     verify_exact
    choice("answer")     the right choice, and no other    verify_choices
    qa("answer")         a short answer, exactly or by F1  verify_em, verify_f1
    overlap("answer")    words shared: ROUGE, chrF, BLEU   verify_overlap, rouge
    number("answer")     a number within a tolerance       verify_number
    math("answer")       a mathematical answer, proved     verify_math
    pattern(r"...")      a given form                      verify_pattern
    match("answer")      the recorded reply, its facts     verify_match
                         exactly and its words nearly
    tool_call("calls")   exactly these tool calls          verify_calls
    json_value("answer") a JSON value, a schema kept       verify_json
    table("html")        a table, by TEDS                  verify_table, teds
    judge(rubric, model) what another model says           Judge.verify, read_score
    compose({...})       sum or product, gates, caps       verify_checks
    think_format(form)   the form of a reasoned answer     ThinkFormat.read
    soft_length(...)     a soft penalty on length          length_penalty
    same_language(...)   one language throughout
    in_language("lang")  the wanted language               verify_language
    readability(...)     how hard a text is to read        verify_readability
"""

from __future__ import annotations

from rlready.rewards.aggregate import verify_checks
from rlready.rewards.answers import find_answer, strip_thoughts
from rlready.rewards.choices import choice, verify_choice, verify_choices
from rlready.rewards.combine import compose
from rlready.rewards.format import Reasoned, ThinkFormat, answer_of, think_format
from rlready.rewards.jsons import json_value, verify_json
from rlready.rewards.judge import Judge, Part, judge, read_score
from rlready.rewards.language import Classifier, in_language, same_language, strip_marks, verify_language
from rlready.rewards.length import length_penalty, soft_length
from rlready.rewards.match import match, verify_match
from rlready.rewards.mathematics import math, verify_math
from rlready.rewards.numeric import number, parse_number, verify_number
from rlready.rewards.overlap import overlap, rouge, verify_overlap
from rlready.rewards.qa import qa, verify_em, verify_f1
from rlready.rewards.readability import readability, verify_readability
from rlready.rewards.table import read_table, table, teds, verify_table
from rlready.rewards.text import exact, pattern, verify_exact, verify_pattern
from rlready.rewards.tools import tool_call, verify_calls
from rlready.scoring import answer_text, as_scorer

__all__ = [
    "Classifier",
    "Judge",
    "Part",
    "Reasoned",
    "ThinkFormat",
    "answer_of",
    "answer_text",
    "as_scorer",
    "choice",
    "compose",
    "exact",
    "find_answer",
    "in_language",
    "json_value",
    "judge",
    "length_penalty",
    "match",
    "math",
    "number",
    "overlap",
    "parse_number",
    "pattern",
    "qa",
    "read_score",
    "read_table",
    "readability",
    "rouge",
    "same_language",
    "soft_length",
    "strip_marks",
    "strip_thoughts",
    "table",
    "teds",
    "think_format",
    "tool_call",
    "verify_calls",
    "verify_checks",
    "verify_choice",
    "verify_choices",
    "verify_em",
    "verify_exact",
    "verify_f1",
    "verify_json",
    "verify_language",
    "verify_match",
    "verify_math",
    "verify_number",
    "verify_overlap",
    "verify_pattern",
    "verify_readability",
    "verify_table",
]
