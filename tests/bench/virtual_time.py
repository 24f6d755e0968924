"""An event loop whose time passes only while nothing can be done: a minute of load takes milliseconds, always the same ones."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting, moves the loop's time to the next timer."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits for something that nobody will do"
            if timeout:
                self.loop.now = self.loop._scheduled[0]._when  # type: ignore[attr-defined]  # exactly, where adding would round
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async function in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def now() -> float:
    return asyncio.get_running_loop().time()
