"""The table of all attacks."""

from __future__ import annotations

from taskgen.attacks import (
    channel,
    environment,
    hooks,
    imports,
    in_process,
    interpreter,
    leak,
    lookup,
    oracle,
    planted,
    reporting,
    resources,
    semantic,
    supervisor,
    tests,
    tree,
)
from taskgen.attacks.attack import Attack

_MODULES = (
    channel,
    environment,
    hooks,
    imports,
    in_process,
    interpreter,
    leak,
    lookup,
    oracle,
    planted,
    reporting,
    resources,
    semantic,
    supervisor,
    tests,
    tree,
)
#: All attacks, by number.
ATTACKS: tuple[Attack, ...] = tuple(
    sorted((attack for module in _MODULES for attack in module.GROUP.attacks), key=lambda a: a.number)
)
