"""Functions of many short operations that run without Python, so that threads do not wait for each other there.

Between two operations a Python thread needs the interpreter's lock. Two threads that compute micro-batches side by side
and ask for it a thousand times a step lose a fifth of it. TorchScript runs a whole function without. It is no longer
developed; where torch or Python (3.14) does without it, the function is called as it stands, to the same result.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., object])


def native(function: F) -> F:
    """The function, compiled by TorchScript where torch has it. Its annotations must be what TorchScript knows."""
    script = getattr(torch.jit, "script", None)
    if script is None or sys.version_info >= (3, 14):
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return cast(F, script(function))
