"""The one place where `transformers` and `peft` are imported, and only when something needs them."""

from __future__ import annotations

import os
from typing import Any

from rlready.errors import UserError

INSTALL = 'pip install "rlready[hf]"'


def need_transformers() -> Any:
    """The package `transformers`, its progress bars and advice kept off the terminal.

    Raises:
        UserError: it is not installed.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import transformers
    except ImportError as error:
        raise _missing("transformers", error) from error
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def need_peft() -> Any:
    """The package `peft`.

    Raises:
        UserError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise _missing("peft", error) from error
    return peft


def _missing(name: str, error: ImportError) -> UserError:
    return UserError(f"A Hugging Face model needs the package {name} ({error}): {INSTALL}")
