"""The one exception a user is meant to see.

Raise `UserError` for every slip a person can mend: a wrong key, a bad record, a checkpoint of another model. Its text
is a complete sentence that names the file, line or key and says what to do. The command line prints it without a
traceback and exits with status 2. Anything else that escapes is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend; the message says where it is and how to mend it."""


class GraderError(Exception):
    """A reward or verifier could not judge. The trajectory is excluded and counted, never read as wrong."""


class EnvError(Exception):
    """An environment hung, died or broke its contract. The episode is excluded and counted."""


def did_you_mean(what: str, given: str, known: Iterable[str], *, see: str = "") -> UserError:
    """Build the error for an unknown name, offering its nearest neighbours.

    Args:
        what: the kind of thing, such as "recipe".
        given: the name that was not found.
        known: all valid names.
        see: where to find the full list, such as "rlready papers".
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" Known: {', '.join(names[:20])}."
    return UserError(f'Unknown {what} "{given}".{hint}{f" All: {see}." if see else ""}')
