"""What answers where code does not know: simulators, by one string each.

retrieval              the nearest recordings, no training
tiny                   the embedded small transformer, trained on the recordings
hf:NAME                a Hugging Face model, as it is or with an adapter that was trained on the recordings
http(s)://...#MODEL    a model behind an OpenAI-compatible endpoint
nearest, no_change     the baselines
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlready.dream.base import Simulator
from rlready.dream.library import Library
from rlready.dream.simulators.baselines import NearestTransition, NoChange
from rlready.dream.simulators.retrieval import Retrieval
from rlready.errors import did_you_mean

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

NAMES = ("retrieval", "tiny", "hf:NAME", "http://HOST#MODEL", "https://HOST#MODEL", "nearest", "no_change")
"""The forms of a simulator's string."""


def load_simulator(spec: str, folder: str | Path, library: Library, domain: Domain) -> Simulator:
    """The simulator that a string names.

    Args:
        spec: one of `NAMES`, with a name or address filled in.
        folder: a gym's folder; what was trained lies in its `model/`, or in the folder itself.
        library: the recordings it may use.
        domain: their form.

    Raises:
        UserError: there is no such simulator, nothing was fitted in the folder, or an extra is not installed.
    """
    if spec == "retrieval":
        return Retrieval(library)
    if spec == "nearest":
        return NearestTransition(library)
    if spec == "no_change":
        return NoChange(library)
    folder = Path(folder)
    own = folder / "model" if (folder / "model").is_dir() else folder
    if spec == "tiny":
        from rlready.dream.simulators.text import TextModel

        return TextModel.load(own, library)
    if spec.startswith("hf:") and len(spec) > 3:
        return _hugging_face(spec, own, library, domain)
    if spec.startswith(("http://", "https://")):
        from rlready.dream.simulators.endpoint import load_endpoint

        return load_endpoint(spec, folder, library, domain)
    raise did_you_mean("simulator", spec, NAMES)


def _hugging_face(spec: str, own: Path, library: Library, domain: Domain) -> Simulator:
    """A Hugging Face model, with what was trained of it where the folder holds that."""
    from rlready.dream.simulators.layout import Layout
    from rlready.dream.simulators.text import FILE, TextModel, read_settings
    from rlready.policy.hf import HFPolicy
    from rlready.policy.hf.loading import OURS

    settings = read_settings(own) if (own / FILE).is_file() else {}
    if settings.get("name") != spec:  # nothing was trained, or something else
        policy = HFPolicy.load(spec[3:], exact=True)
        return TextModel(policy, Layout.of(domain, demos=4), library, name=spec)
    policy = HFPolicy.load(own if (own / OURS).is_file() else spec[3:], exact=True)
    return TextModel(policy, Layout.from_json(settings.pop("layout")), library, **settings)
