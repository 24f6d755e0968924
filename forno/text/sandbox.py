"""A Jinja environment in which a template from the internet can do no harm: no access to Python, and no more than
a bounded amount of time and memory, whatever it says.

Jinja's own sandbox keeps a template away from Python's internals, but not from ``"x" * 10**9``. Here every value
a template makes is measured and every loop turn looks at the clock: operators, concatenations, literals, slices, calls
and filters all pass through ``Budget``. It knows nothing of chat.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

MAX_SECONDS = 0.8
"""Rendering time."""
MAX_VALUE = 8 << 20
"""Characters of one string, and of one list or dict written out."""
MAX_ITEMS = 300_000
"""Items of one list or dict, nested ones included."""
MAX_WORK = 96 << 20
"""Characters and items of all values that one rendering makes."""
MAX_INTEGER_BITS = 4096
MAX_ARGUMENT = 1_000_000
"""Largest integer passed to a method or filter: ``indent``, ``batch`` and others build that much."""

# Methods whose result is as long as a number in their arguments or format string says.
_UNBOUNDED_METHODS = frozenset(
    ("center", "ljust", "rjust", "zfill", "expandtabs", "encode", "translate", "maketrans", "format", "format_map", "to_bytes")
)
# fmt: off
_FILTERS = (
    "abs", "attr", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "forceescape",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "title", "trim", "unique",
    "upper", "wordcount",
)
# fmt: on
_WIDTH = re.compile(r"%[^a-zA-Z%]*(\d{3}|\*)")
_LONGEST_NUMBER = 1300  # characters: a float written with %f, or an integer of MAX_INTEGER_BITS


class BudgetError(SecurityError):
    """The template used more than it is allowed."""


class Budget:
    """What one rendering may still use."""

    __slots__ = ("_deadline", "_work")

    def __init__(self) -> None:
        self._deadline = time.monotonic() + MAX_SECONDS
        self._work = MAX_WORK

    def tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise BudgetError(f"the template ran for more than {MAX_SECONDS} s")

    def spend(self, amount: int) -> None:
        """Allow for a value of ``amount`` characters or items, before making it where the size is known."""
        self.tick()
        self._work -= amount
        if amount > MAX_VALUE or self._work < 0:
            raise BudgetError("the template makes more text than a prompt can hold")

    def track(self, value: Any) -> Any:
        """Measure a value just made; returns it."""
        if isinstance(value, (str, bytes)):
            self.spend(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.spend(len(value))
            self.weigh(value)
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise BudgetError("the template computes a number beyond any use")
        else:
            self.tick()
        return value

    def weigh(self, value: Any) -> int:
        """Characters and items of ``value`` written out. A list that holds another list twice, forty levels deep, is small
        until it is written or compared."""
        weight, items, stack = 0, 0, [value]
        while stack:
            value = stack.pop()
            if isinstance(value, (str, bytes)):
                weight += len(value)
                continue
            items += 1
            if isinstance(value, dict):
                stack.extend(value.keys())
                stack.extend(value.values())
            elif isinstance(value, (list, tuple)):
                stack.extend(value)
            if items + len(stack) > MAX_ITEMS or weight > MAX_VALUE:
                raise BudgetError("the template builds a list or dict too large to write out")
        self.tick()
        return weight + items


class _Generator(CodeGenerator):
    """Routes what Jinja compiles to plain Python expressions through the budget."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _tracked(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.budget.track(")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._tracked(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._tracked(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._tracked(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._tracked(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.body.insert(0, nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)))
        super().visit_For(node, frame)


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's words for training; when serving, it is its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """``environment.within(Budget())`` gives a copy for one rendering; compiled code is shared, budgets are not."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["+", "-", "*", "**", "%", "/", "//"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _GenerationTag])
        self.budget = Budget()
        self.filters = {name: _bounded(FILTERS[name]) for name in _FILTERS}
        self.filters["sum"] = _bounded(_sum)
        self.filters["format"] = _bounded(lambda text, *values: self._percent(text, values))
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name)

    def within(self, budget: Budget) -> BoundedEnvironment:
        environment = self.overlay()
        assert isinstance(environment, BoundedEnvironment)
        environment.budget = budget
        environment.concat = environment.concat_values  # type: ignore[method-assign]
        return environment

    def tick(self) -> None:
        self.budget.tick()

    def concat_values(self, parts: Iterable[Any]) -> str:
        """The parts, written out and joined."""
        texts = [part if isinstance(part, str) else str(part) for part in parts]
        self.budget.spend(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            budget.spend(len(left) + len(right))
        elif operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if hasattr(sequence, "__len__") and isinstance(count, int):
                    budget.spend(len(sequence) * max(count, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > MAX_INTEGER_BITS:
                raise BudgetError("the template computes a number beyond any use")
        elif operator == "%" and isinstance(left, (str, bytes)):
            return budget.track(self._percent(left, right))
        return budget.track(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self = __self
        self._check_arguments(args, kwargs)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])
            self._check_growth(__obj.__name__, owner, args)
        return self.budget.track(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _UNBOUNDED_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("str.format is not available in chat templates; use ~ or %")
        return None

    def _check_arguments(self, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, (int, float)) and abs(value) > MAX_ARGUMENT:
                raise BudgetError(f"the template passes a number above {MAX_ARGUMENT:,} to a method or filter")

    def _check_growth(self, method: str, text: str, args: tuple[Any, ...]) -> None:
        """``replace`` and ``join`` can return far more than they were given."""
        if method == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
            self.budget.spend(len(text) + text.count(args[0]) * len(args[1]))
        elif method == "join" and args:
            self.budget.spend(len(text) * len(args[0]) + sum(len(part) for part in args[0] if isinstance(part, str)))

    def _percent(self, text: Any, values: Any) -> Any:
        """``text % values``, refused if the result could be too long."""
        text = str(text)
        if _WIDTH.search(text):
            raise BudgetError("the template formats a value to an absurd width")
        parts = values.values() if isinstance(values, dict) else values if isinstance(values, tuple) else (values,)
        longest = max((self.budget.weigh(part) for part in parts), default=0)
        fields = text.count("%")
        self.budget.spend(len(text) + fields * (longest if fields * _LONGEST_NUMBER < MAX_VALUE else longest + _LONGEST_NUMBER))
        return text % values


def _sum(items: Iterable[Any], attribute: str | None = None) -> int | float:
    """Jinja's ``sum``, for numbers only: summing lists or strings costs the square of their length."""
    values = [item if attribute is None else item[attribute] for item in items]
    if not all(isinstance(value, (int, float)) for value in values):
        raise SecurityError("sum is available for numbers only in chat templates")
    return sum(values)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks what it is given and measures what it returns."""
    wants = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def measured(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        environment = context.environment
        assert isinstance(environment, BoundedEnvironment)
        environment._check_arguments(args, kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": environment}
        value = _prepare(environment, function, value, args)
        passed = (first[wants.name],) if wants is not None else ()
        return environment.budget.track(function(*passed, value, *args, **kwargs))

    return measured


def _prepare(environment: BoundedEnvironment, function: Callable[..., Any], value: Any, args: tuple[Any, ...]) -> Any:
    """Refuses a ``join`` or ``replace`` filter whose result would be too long, before it is made."""
    if function is FILTERS["replace"]:
        environment._check_growth("replace", str(value), tuple(map(str, args)))
    elif function is FILTERS["indent"]:
        lines, width = str(value).count("\n") + 1, args[0] if args else 4
        environment.budget.spend(len(str(value)) + lines * (width if isinstance(width, int) else len(str(width))))
    elif function is FILTERS["join"]:
        value = list(value)
        separator = args[0] if args and isinstance(args[0], str) else ""
        environment._check_growth("join", separator, ([str(part) for part in value],))
    return value


def new_environment(filters: dict[str, Callable[..., Any]], functions: dict[str, Callable[..., Any]]) -> BoundedEnvironment:
    """An environment with these filters and global functions besides the bounded ones of Jinja."""
    environment = BoundedEnvironment()
    environment.filters.update({name: _bounded(function) for name, function in filters.items()})
    environment.globals.update(functions)
    return environment


def compile_source(environment: BoundedEnvironment, source: str) -> Any:
    """The template's code object, to be run by any environment ``within`` a budget. Raises Jinja's errors."""
    return environment.compile(environment.parse(source), name="chat_template", filename="<chat_template>")


def render(environment: BoundedEnvironment, code: Any, variables: dict[str, Any]) -> str:
    """Runs compiled code under a fresh budget. Raises whatever the template does wrong."""
    budget = Budget()
    bounded = environment.within(budget)
    template = jinja2.Template.from_code(bounded, code, dict(bounded.globals))
    parts: list[str] = []
    length = 0
    for part in template.generate(variables):
        length += len(part)
        if length > MAX_VALUE:
            raise BudgetError("the template writes more text than a prompt can hold")
        budget.tick()
        parts.append(part)
    return "".join(parts)
