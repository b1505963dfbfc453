"""The folder of a demo."""

import shutil
from pathlib import Path

from event_token.errors import UsageError

# Nothing but a file in the folder says that a demo made it: no other folder is ever removed.
MARKER = "shardstream-demo"


def fresh_folder(folder: Path) -> Path:
    """Return the folder, empty; UsageError if it holds anything but an earlier demo."""
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            message = f"{folder} is not empty and no demo made it; name another with --folder"
            raise UsageError(message)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder
