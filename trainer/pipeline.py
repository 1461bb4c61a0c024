"""A small runtime that computes one task while others wait for the network. Imports the standard library alone.

A task is a generator that yields right after it has started a collective and waits for that collective when it is
resumed: twice (inbound, outbound) if it uses the network, never if it computes on its own rank alone. The order of
all steps follows from the order of the tasks and nothing else, so that ranks that have the same tasks start the same
collectives in the same order.

No deadlock, even where ranks share only some of their tasks, as long as all order them alike: before a rank starts a
collective of a task, it waits only for collectives of earlier tasks, or for the inbound one of the same task. So the
earliest collective that has not ended can always be started by all of its ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

Task = Iterator[None]


def run(tasks: Iterable[Task], in_flight: int) -> None:
    """Run all ``tasks``, with at most ``in_flight`` of them begun and not ended (1: no overlap).

    With three, while one task computes, the next one's inbound and the last one's outbound collective are on the way.
    Raises ValueError if ``in_flight`` is below 1, and whatever a task raises.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight: at least one task has to run at a time, got {in_flight}")
    coming: deque[Task] = deque()  # their inbound collectives are on the way
    answering: Task | None = None  # its outbound collective is on the way
    waiting = iter(tasks)
    more = True
    while more or coming or answering is not None:
        while more and len(coming) + (answering is not None) < in_flight:
            task = next(waiting, None)
            more = task is not None
            if task is not None and _uses_network(task):
                coming.append(task)
        last, answering = answering, None
        if coming:
            answering = coming.popleft()
            next(answering)
        if last is not None:
            _end(last)


def spread(network: list[Task], local: list[Task]) -> list[Task]:
    """``network`` in its order, with the ``local`` tasks evenly between, so that they fill the waits."""
    merged: list[Task] = []
    done = 0
    for i, task in enumerate(network, start=1):
        merged.append(task)
        due = i * len(local) // len(network)
        merged += local[done:due]
        done = due
    return merged + local[done:]


def _uses_network(task: Task) -> bool:
    """Run a task up to its first collective; False if it ended without one."""
    try:
        next(task)
    except StopIteration:
        return False
    return True


def _end(task: Task) -> None:
    if _uses_network(task):
        raise RuntimeError("a task of the pipeline has more than two collectives")
