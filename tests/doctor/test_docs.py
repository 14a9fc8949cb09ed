"""`docs/doctor.md` says what is so."""

from __future__ import annotations

from rlready.doctor.foreign import NAMES
from tests.doctor.faults.healthy import few_threads
from tests.doctor.faults.tables import EXAMPLE, PAGE, checks, example, faults


def test_the_tables_are_those_of_catalogue_and_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for text in (checks(), faults(), EXAMPLE.rstrip()):
        assert text in page, "python -m tests.doctor.faults.tables"


def test_the_example_still_says_so() -> None:
    few_threads()
    page, now = PAGE.read_text(encoding="utf-8"), example()
    told = [line for line in now.split("\n") if line.startswith(("error", "warning", "  what", "  where", "  mend"))]
    assert told and now.endswith("1\n```")
    for line in told:
        assert line in page, f"{line}: python -m tests.doctor.faults.tables"


def test_the_names_of_columns_are_known() -> None:
    page = PAGE.read_text(encoding="utf-8")
    part = page[page.index("## Files of other tools") : page.index("## What it can not see")]
    known = {name for names in NAMES.values() for name in names}
    for name in (
        "prompt_token_ids",
        "response_ids",
        "rollout_log_probs",
        "old_per_token_logps",
        "assistant_masks",
        "uid",
    ):
        assert f"`{name}`" in part and name in known
