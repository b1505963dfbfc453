"""Loads the KeyMap that the settings of a cache name."""

import sys
from importlib import import_module
from pathlib import Path

from caching.key_map import KeyMap
from event_token.errors import UsageError


def load_key_map(named: str, folder: Path) -> KeyMap:
    """Return the KeyMap `module:object`, from the settings' folder or what is installed.

    UsageError if it cannot be imported, is something else, or maps no table.
    """
    module, _, name = named.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"keys = {named!r}: {error}. It names a module that can be imported from the folder of "
            f"the settings ({folder}) or is installed, and a KeyMap in it"
        ) from error
    if not isinstance(found, KeyMap):
        raise UsageError(f"keys = {named!r}: it is a {type(found).__name__}, not a KeyMap")
    if not found.tables:
        raise UsageError(f"keys = {named!r}: the KeyMap maps no table")
    return found
