"""A query's settings as one option of its sink's format, on the way to the tasks.

Spark hides options of such a name in its pages and plans; the settings hold passwords.
"""

import base64
import pickle
from collections.abc import Mapping
from typing import TypeVar

from event_token.errors import UsageError

SPEC = "secret.spec"

Spec = TypeVar("Spec")


def spec_text(spec: object) -> str:
    """Return settings as the text of option SPEC."""
    return base64.b64encode(pickle.dumps(spec)).decode()


def spec_of(options: Mapping[str, str], kind: type[Spec], where: str) -> Spec:
    """Return the settings in the option; UsageError, naming the format `where`, unless a `kind`."""
    found = pickle.loads(base64.b64decode(options[SPEC]))  # noqa: S301 - made by this process
    if not isinstance(found, kind):
        raise UsageError(f"{where}: option {SPEC} is not of this release")
    return found
