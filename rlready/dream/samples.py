"""What an experience model is measured on, and taught variations with, read off annotated logs."""

from __future__ import annotations

from collections.abc import Sequence

from rlready.dream.format import Annotation, DreamFormat
from rlready.experience.episode import LoggedEpisode

Spec = tuple[str, tuple[str, ...]]
"""An instruction and a hidden start."""


def prompts_of(
    form: DreamFormat, episode: LoggedEpisode, annotation: Annotation, demos: Sequence[Sequence[tuple[str, str]]]
) -> list[list[int]]:
    """The prompt of every step of a recorded episode, under its recorded history."""
    head = form.head(episode.instruction) + (form.card_ids(annotation.card) if form.card else [])
    before: list[list[int]] = []
    out = []
    for t, action, truth in form.steps(episode, annotation):
        ask = form.ask(action, demos[t])
        out.append([*head, *form.recent(before), *ask])
        before.append(ask + form.answer(truth.trace, truth.reply, truth.verdict))
    return out


def variation_pairs(episodes: Sequence[LoggedEpisode], annotations: Sequence[Annotation]) -> list[tuple[Spec, Spec]]:
    """Pairs of logged tasks with one instruction, of which the second's card is the first's and one word more.

    Every episode whose card has a simpler neighbour gives one pair per neighbour, so common tasks are common here too.
    """
    first: dict[tuple[str, frozenset[str]], tuple[str, ...]] = {}
    for episode, annotation in zip(episodes, annotations, strict=True):
        card = tuple(annotation.card)
        first.setdefault((episode.instruction, frozenset(card)), card)
    pairs: list[tuple[Spec, Spec]] = []
    for episode, annotation in zip(episodes, annotations, strict=True):
        instruction, card = episode.instruction, tuple(annotation.card)
        for word in card:
            simpler = first.get((instruction, frozenset(card) - {word}))
            if simpler:
                pairs.append(((instruction, simpler), (instruction, card)))
    return pairs
