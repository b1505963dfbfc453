"""A query's settings as options of its sink's format, on the way to the tasks.

Spark hides options of such names in its pages and plans; the settings hold passwords.
"""

import base64
import pickle
from collections.abc import Mapping
from typing import TypeVar

from event_token.errors import UsageError

SPEC = "secret.spec"

Spec = TypeVar("Spec")

STORAGE_PREFIX = "storage."
# Spark hides values by the names of options, and does not know `account_key`, for one.
SECRET_STORAGE_PREFIX = f"secret.{STORAGE_PREFIX}"


def spec_text(spec: object) -> str:
    """Return settings as the text of option SPEC."""
    return base64.b64encode(pickle.dumps(spec)).decode()


def spec_of(options: Mapping[str, str], kind: type[Spec], where: str) -> Spec:
    """Return the settings in the option; UsageError, naming the format `where`, unless a `kind`."""
    found = pickle.loads(base64.b64decode(options[SPEC]))  # noqa: S301 - made by this process
    if not isinstance(found, kind):
        raise UsageError(f"{where}: option {SPEC} is not of this release")
    return found


def secret_storage(storage: Mapping[str, str]) -> dict[str, str]:
    """Return storage options as options of a sink whose values Spark hides."""
    return {SECRET_STORAGE_PREFIX + name: text for name, text in storage.items()}


def storage_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options among those of a sink: `storage.*` and `secret.storage.*`."""
    return {
        name.removeprefix(prefix): text
        for prefix in (STORAGE_PREFIX, SECRET_STORAGE_PREFIX)
        for name, text in options.items()
        if name.startswith(prefix)
    }
