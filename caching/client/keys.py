"""Cache keys that are made of a function's arguments, for the decorator."""

import inspect
import re
import string
from collections.abc import Callable
from typing import Any

from event_token.errors import UsageError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class KeyTemplate:
    """A template such as `user:{user_id}` for the arguments of a loader, without the first.

    UsageError where it leaves out an argument, or the loader takes no `read`.
    """

    def __init__(self, template: str, loader: Callable[..., object]) -> None:
        self._template = template
        signature = inspect.signature(loader)
        parameters = list(signature.parameters.values())
        if not parameters or parameters[0].kind not in _POSITIONAL:
            raise UsageError(
                f"{loader.__qualname__}: a cached function takes `read` as its first argument"
            )
        self._signature = signature.replace(parameters=parameters[1:])
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        names = {re.split(r"[.[]", name)[0] for name in fields}
        arguments = set(self._signature.parameters)
        if names != arguments or not names:
            raise UsageError(
                f"{loader.__qualname__}: the key {template!r} has to name each argument but the "
                f"first ({', '.join(sorted(arguments)) or 'there is none'}), and nothing else: "
                "calls with one key share one value"
            )

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call; TypeError where the arguments do not fit the loader."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._template.format_map(bound.arguments)
