"""What passes are written with: who produces and reads each value, and replacing ops. Knows no particular fusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from forno.program.ops import Op
from forno.program.program import Program
from forno.program.shape import Value


class Graph:
    """A program's ops by the values they write and read."""

    def __init__(self, program: Program) -> None:
        self.values = program.values
        self.producer: dict[str, Op] = {}
        self._readers: dict[str, list[Op]] = {}
        for op in program.ops:
            for name in op.outputs:
                self.producer[name] = op
            for name in op.inputs:
                self._readers.setdefault(name, []).append(op)

    def readers(self, value: str) -> list[Op]:
        return self._readers.get(value, [])

    def sole_reader(self, value: str) -> Op | None:
        """The one op that reads ``value``, once; None if there are none or more."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 else None

    def is_private(self, value: str) -> bool:
        """Whether ``value`` may vanish: a plain f32 value with one reader."""
        return self.sole_reader(value) is not None and self.values[value].dtype == "f32"


class Rewrite:
    """Collects replacements, then makes the new program. An op is replaced once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._replaced: dict[Op, tuple[Op, ...]] = {}
        self._values: dict[str, Value] = {}

    def replace(self, op: Op, *by: Op) -> None:
        """Put the ops ``by`` where ``op`` stood."""
        assert op not in self._replaced, f"{op} is replaced twice"
        self._replaced[op] = by

    def remove(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self.replace(op)

    def value_like(self, like: Value, name: str, **changes: object) -> Value:
        """Declare a new value: ``like`` with another name and the given fields changed."""
        unique, n = name, 1
        while unique in self.program.values or unique in self._values:
            n += 1
            unique = f"{name}.{n}"
        value = replace(like, name=unique, **changes)  # type: ignore[arg-type]
        self._values[unique] = value
        return value

    def change(self, name: str, **changes: object) -> None:
        """Declare the value ``name`` anew, with the given fields changed."""
        self._values[name] = replace(self.program.values[name], **changes)  # type: ignore[arg-type]

    def finish(self, name: str) -> Program:
        """The program after this pass, called ``name``: values that nothing writes any more are dropped."""
        old = self.program
        ops = tuple(new for op in old.ops for new in self._replaced.get(op, (op,)))
        written = {value for op in ops for value in op.outputs}
        values: Mapping[str, Value] = {n: v for n, v in {**old.values, **self._values}.items() if n in written}
        return replace(old, ops=ops, values=values, passes=(*old.passes, name))
