"""The table of all attacks."""

from __future__ import annotations

from taskgen.attacks import (
    channel,
    environment,
    hooks,
    in_process,
    interpreter,
    leak,
    oracle,
    reporting,
    resources,
    semantic,
    tests,
)
from taskgen.attacks.attack import Attack

_MODULES = (
    tests,
    hooks,
    environment,
    in_process,
    interpreter,
    reporting,
    resources,
    semantic,
    oracle,
    leak,
    channel,
)
#: All attacks, by number.
ATTACKS: tuple[Attack, ...] = tuple(
    sorted((attack for module in _MODULES for attack in module.GROUP.attacks), key=lambda a: a.number)
)
