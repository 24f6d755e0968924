"""Outputs of one request, or of the ``n`` children of one, as an asynchronous iterator on the event loop's side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Generic, TypeVar

from forno.request import Request, RequestOutput, TokenConstraint

T = TypeVar("T")


class Stream(AsyncIterator[T], Generic[T]):
    """Yields until every request it covers has finished. Belongs to one event loop and one consumer.

    An output whose ``finish_reason`` is ``ERROR`` carries the ``error``; the stream does not raise it. If the consumer
    is cancelled while it waits, or leaves an ``async with``, or calls ``aclose``, unfinished requests are aborted.
    """

    __slots__ = ("_abort", "_items", "_open", "_waiter", "_wrap")

    def __init__(
        self, ids: Iterable[str], wrap: Callable[[int, RequestOutput], T], abort: Callable[[Iterable[str]], None]
    ) -> None:
        self._open = {id: index for index, id in enumerate(ids)}
        self._wrap = wrap
        self._abort = abort
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every request has ended; outputs may still be waiting to be read."""
        return not self._open

    def put(self, output: RequestOutput) -> None:
        """Called by the engine's front, on the event loop."""
        self._items.append(self._wrap(self._open[output.id], output))
        if output.finish_reason is not None:
            del self._open[output.id]
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._waiter = None
        return self._items.popleft()

    def ready(self) -> list[T]:
        """Everything that has arrived and was not read yet, without waiting."""
        items = list(self._items)
        self._items.clear()
        return items

    def cancel(self) -> None:
        """Abort what has not finished. What was read stays read; nothing more comes but outputs already on their way."""
        if self._open:
            self._abort(list(self._open))

    async def aclose(self) -> None:
        self.cancel()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def children(request: Request, n: int, constraint: Callable[[], TokenConstraint] | None = None) -> list[Request]:
    """``n`` requests for ``n`` answers to one prompt. They share the prompt's blocks; child ``i`` has seed ``seed + i``.

    ``constraint`` makes one for each child: it has state.
    """
    assert request.constraint is None, "children cannot share a constraint"
    seed = request.sampling.seed
    return [
        replace(
            request,
            id=f"{request.id}-{i}" if n > 1 else request.id,
            group=request.id if n > 1 else "",
            sampling=request.sampling if seed is None or i == 0 else replace(request.sampling, seed=seed + i),
            constraint=None if constraint is None else constraint(),
        )
        for i in range(n)
    ]
