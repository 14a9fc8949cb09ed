"""Programs as answers, run in a sandbox and judged by what they print or return.

code("tests", language="lua")       the reward of a task set             `reward`
verify_code(program, tests)         one program                          `reward`
CodePool("lua").run(program, ...)   warm workers, a result a test        `pool`
run_function_tests(pool, ...)       Python tests of Python functions     `functions`
verify_output, verify_value         what was printed, or returned        `outputs`, `values`
Sandbox(limits, unsafe=False)       isolation by the operating system    `sandbox`, `boxes`, `inside`
Language, language, languages       a language is a few lines of YAML    `languages`
"""

from __future__ import annotations

from rlready.rewards.code.answers import fenced_blocks, find_program
from rlready.rewards.code.functions import run_function_tests, run_function_tests_sync
from rlready.rewards.code.languages import Language, language, languages
from rlready.rewards.code.limits import Limits
from rlready.rewards.code.outputs import Compare, difference, grade_code_stdout, verify_output
from rlready.rewards.code.pool import CodePool, allow_unsafe, shared_pool
from rlready.rewards.code.results import RESULTS, CodeResult, Result, Test, TestResult
from rlready.rewards.code.reward import code, grade_code_tests, read_tests, verify_code
from rlready.rewards.code.sandbox import Sandbox
from rlready.rewards.code.values import grade_code_value, verify_value

__all__ = [
    "RESULTS",
    "CodePool",
    "CodeResult",
    "Compare",
    "Language",
    "Limits",
    "Result",
    "Sandbox",
    "Test",
    "TestResult",
    "allow_unsafe",
    "code",
    "difference",
    "fenced_blocks",
    "find_program",
    "grade_code_stdout",
    "grade_code_tests",
    "grade_code_value",
    "language",
    "languages",
    "read_tests",
    "run_function_tests",
    "run_function_tests_sync",
    "shared_pool",
    "verify_code",
    "verify_output",
    "verify_value",
]
