"""Prompts: a moment and an action as token ids, up to where the answer is to be written.

Training rows and dreams take them from here, so a model sees the same text, window and demonstrations in both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.library import Library
from rlready.dream.simulators.layout import RIGHT, WRONG, Demos, Layout
from rlready.dream.simulators.retrieval import Retrieval
from rlready.dream.simulators.window import fit_in, starts
from rlready.policy.base import Choices, Renderer

_REMEMBERED = 4096


class Prompts:
    """Writes prompts for one renderer.

    Attributes:
        renderer: messages to ids.
        layout: how episodes are written.
        library: the recordings that demonstrations come from.
        max_tokens: longest reply.
        max_len: most tokens of a prompt with its answer.
        exclude_own: whether recordings of the moment's own task are left out of demonstrations.
    """

    def __init__(
        self,
        renderer: Renderer,
        layout: Layout,
        library: Library,
        *,
        max_tokens: int,
        max_len: int,
        exclude_own: bool = False,
    ) -> None:
        """See the class."""
        self.renderer, self.layout, self.library = renderer, layout, library
        self.max_tokens, self.max_len, self.exclude_own = max_tokens, max_len, exclude_own
        self._lengths: OrderedDict[str, int] = OrderedDict()
        self._demos: OrderedDict[tuple[int, str], Demos] = OrderedDict()

    def over(self, library: Library, *, exclude_own: bool | None = None) -> Prompts:
        """The same over another library."""
        own = self.exclude_own if exclude_own is None else exclude_own
        return Prompts(
            self.renderer, self.layout, library, max_tokens=self.max_tokens, max_len=self.max_len, exclude_own=own
        )

    def reply(self, moment: Moment, action: Action) -> list[int]:
        """The token ids up to where the reply is to be written."""
        demos: Callable[[int], Demos] | None = None
        if self.layout.demos:
            demos = partial(self.demos_at, moment, action)
        asked = [
            self.length(self.layout.ask(i + 1, done, demos(i) if demos is not None else ()).text)
            for i, done in enumerate([*(a for a, _ in moment.past), action])
        ]
        written = [*(self.length(self.layout.shown(reply)) for _, reply in moment.past), 0]
        steps = list(zip(asked, written, strict=True))
        start = starts(self.head_length(moment.instruction), steps, self.max_tokens, self.max_len)[-1]
        messages = self.layout.episode(moment.instruction, moment.past, action, start=start, demos=demos)
        return fit_in(self.renderer.render(messages), self.max_len - min(self.max_tokens, self.max_len // 2))

    def verdict(
        self,
        instruction: str,
        facts: Sequence[tuple[Action, Reply]],
        deeds: Sequence[tuple[Action, Reply]],
        *,
        bare: bool = False,
    ) -> list[int]:
        """The token ids up to where the verdict is to be written; the oldest steps are dropped where it is too long.

        Args:
            instruction: what was asked.
            facts: what the world holds.
            deeds: what was done.
            bare: show none of the deeds but what was changed.
        """
        steps = [
            (self.length(self.layout.ask(i + 1, a).text), self.length(self.layout.shown(r)))
            for i, (a, r) in enumerate(deeds)
        ]
        reads, most = self.library.state.reads, self.verdict_tokens
        question = self.layout.verdict(instruction, facts, deeds, reads=reads, start=len(deeds))[-1]
        steps.append((self.length(question.text), 0))
        start = starts(self.head_length(""), steps, most, self.max_len)[-1]
        start = len(deeds) if bare else start
        messages = self.layout.verdict(instruction, facts, deeds, reads=reads, start=start)
        return fit_in(self.renderer.render(messages), self.max_len - most)

    def demos_at(self, moment: Moment, action: Action, step: int) -> Demos:
        """The demonstrations of one step of an episode; the same whenever they are asked for."""
        before = replace(moment, past=moment.past[:step])
        act = moment.past[step][0] if step < len(moment.past) else action
        key = (before.noise("demos", before.task_id, before.instruction, before.anchor), act.text)
        known = self._demos.get(key)
        if known is None:
            found = self._retrieval.nearest(before, act, self.layout.demos)
            known = [(f.action.text, self.layout.write(replace(f.reply, text=f.text))) for f in found]
            self._demos[key] = known
            if len(self._demos) > _REMEMBERED:
                self._demos.popitem(last=False)
        return known

    @cached_property
    def _retrieval(self) -> Retrieval:
        return Retrieval(self.library, k=max(1, self.layout.demos), exclude_own=self.exclude_own)

    def head_length(self, instruction: str) -> int:
        """Tokens that are shown however long the episode is."""
        return sum(self.length(m.text) for m in self.layout.head) + self.length(instruction)

    def length(self, text: str) -> int:
        """Tokens of a message with this text, its own marks included."""
        known = self._lengths.get(text)
        if known is None:
            known = len(self.renderer.encode_completion(text)) + 2 if text else 2
            self._lengths[text] = known
            if len(self._lengths) > _REMEMBERED:
                self._lengths.popitem(last=False)
        return known

    @cached_property
    def verdicts(self) -> Choices:
        """The two verdicts."""
        encode = self.renderer.encode_completion
        return Choices([encode(RIGHT), encode(WRONG)])

    @cached_property
    def verdict_tokens(self) -> int:
        """Tokens of the longer verdict."""
        encode = self.renderer.encode_completion
        return max(len(encode(RIGHT)), len(encode(WRONG)))
