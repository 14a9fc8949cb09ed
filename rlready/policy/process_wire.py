"""What `ProcessSampler` and its child share: memory for weights and counters, and the form of their messages.

A message is one line of JSON behind its length: plain numbers and lists, so that nothing which crosses the line can run
code on the other side. Floats cross it exactly.

    parent to child                                       child to parent
    ["hello", config, most rows, slots, in_flight, threads]
    ["load", set, version]                                (a byte in the pipe of acknowledgements)
    ["params", number, fields, completions or null]       ["drawn", [sample, ...]]
    ["forget"]                                            ["failed", kind of error, text]
    ["draw", [request, ...]]
    ["drop", [number, ...]]
    ["release", session]

    request = [number, prompt ids, params, seed, session or null]
    sample  = [number, ids, log-probs, stop, version(s), support or null, entropy or null]

A set of ids in a support is a list, null where all ids were open, and true where it is what the request's completions
allow at that place.

Weights are written into one of two sets in turn. The parent writes a set only once the child has taken what stood in
it before, and says so by a message when it is whole: nobody ever reads half a set.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import orjson
import torch
from torch import Tensor

from rlready.policy.base import Choices, Sample, SampleRequest, SamplingParams
from rlready.policy.tiny.engine import SamplerStats
from rlready.policy.tiny.model import TinyConfig, state_shapes
from rlready.types import IntArray

COUNTERS = tuple(field.name for field in dataclasses.fields(SamplerStats))
_HEADER = 4096
_LENGTH = struct.Struct("<I")
_FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams) if field.name != "choices")
_MASK_64 = (1 << 64) - 1


class Shared:
    """Memory that both processes see.

    Attributes:
        counters: the child's `SamplerStats`, by the names in `COUNTERS`.
        sets: two sets of weights, by name.
    """

    def __init__(self, config: TinyConfig, descriptor: int) -> None:
        """Map a file that `memory_for` made."""
        self._map = mmap.mmap(descriptor, size_of(config))
        self.counters = np.frombuffer(self._map, np.float64, len(COUNTERS))
        self.sets = (self._views(config, 0), self._views(config, 1))

    def _views(self, config: TinyConfig, which: int) -> dict[str, Tensor]:
        shapes = state_shapes(config)
        at = _HEADER + which * 4 * sum(map(math.prod, shapes.values()))
        views: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            count = math.prod(shape)
            views[name] = torch.frombuffer(self._map, dtype=torch.float32, count=count, offset=at).view(shape)
            at += 4 * count
        return views

    def write(self, which: int, state: Mapping[str, Tensor]) -> None:
        """Fill a set."""
        with torch.no_grad():
            for name, view in self.sets[which].items():
                view.copy_(state[name])


def size_of(config: TinyConfig) -> int:
    """Bytes of the memory."""
    return _HEADER + 2 * 4 * sum(map(math.prod, state_shapes(config).values()))


def memory_for(config: TinyConfig) -> BinaryIO:
    """A file without a name that holds the memory: it is gone with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        file: BinaryIO = os.fdopen(os.memfd_create("rlready"), "w+b")
    else:
        file = tempfile.TemporaryFile("w+b")  # noqa: SIM115
    file.truncate(size_of(config))
    return file


def frame(message: Any) -> bytes:
    """A message as bytes."""
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


def cut(buffer: bytearray) -> Iterator[Any]:
    """The whole messages at the beginning of a buffer, which are taken out of it."""
    at = 0
    while len(buffer) >= at + 4:
        (length,) = _LENGTH.unpack_from(buffer, at)
        if len(buffer) < at + 4 + length:
            break
        yield orjson.loads(memoryview(buffer)[at + 4 : at + 4 + length])
        at += 4 + length
    del buffer[:at]


def params_to(params: SamplingParams) -> tuple[dict[str, Any], list[list[int]] | None]:
    """Fields and admissible completions."""
    fields = {name: getattr(params, name) for name in _FIELDS}
    return fields, None if params.choices is None else [[int(i) for i in c] for c in params.choices.complete()]


def params_from(fields: Mapping[str, Any], completions: list[list[int]] | None) -> SamplingParams:
    """Inverse of `params_to`."""
    stops = tuple(fields["stop_ids"])
    choices = None if completions is None else Choices(completions)
    return SamplingParams(**{**fields, "stop_ids": stops}, choices=choices)


def request_to(number: int, request: SampleRequest, params: int, session: int | None) -> list[Any]:
    """A request, with its parameters and session as numbers."""
    return [number, [int(i) for i in request.prompt_ids], params, int(request.seed) & _MASK_64, session]


def sample_to(number: int, sample: Sample, choices: Choices | None) -> list[Any]:
    """A sample as a message."""
    support: list[Any] | None = None
    if sample.support is not None:
        ids, support = sample.completion_ids, []
        for i, allowed in enumerate(sample.support):
            by_choice = choices is not None and allowed is not None and allowed is choices.allowed(ids[:i])
            support.append(None if allowed is None else True if by_choice else allowed.tolist())
    return [number, sample.completion_ids, sample.logprobs, sample.stop, sample.version, support, sample.entropy]


def sample_from(message: list[Any], choices: Choices | None) -> Sample:
    """Inverse of `sample_to`, given the request's own choices."""
    _, ids, logprobs, stop, version, sent, entropy = message
    support: list[IntArray | None] | None = None
    if sent is not None:
        support = []
        for i, allowed in enumerate(sent):
            if allowed is True:
                assert choices is not None
                support.append(choices.allowed(ids[:i]))
            else:
                support.append(None if allowed is None else np.asarray(allowed, dtype=np.int64))
    return Sample(ids, logprobs, stop, version, support, entropy)
