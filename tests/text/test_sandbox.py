"""Templates that attack: each must end in a ``TemplateError``, soon and without using much memory."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest

from forno.errors import TemplateError
from forno.text import sandbox
from forno.text.chat import ChatTemplate

GROW = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


def grow(start: str, step: str) -> str:
    return GROW.replace("START", start).replace("STEP", step)


ATTACKS = {
    "endless range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "nested loops writing": "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}",
    "recursive macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "exponential macro": "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
    "recursive loop": "{% for i in [1, 2] recursive %}{{ loop([i, i]) }}{% endfor %}",
    "string times number": "{{ 'x' * 10**9 }}",
    "number times list": "{{ 1000000000 * [1] }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": grow("7", "ns.x * ns.x"),
    "doubling with ~": grow("'aaaaaaaa'", "ns.x ~ ns.x"),
    "doubling with +": grow("'aaaaaaaa'", "ns.x + ns.x"),
    "doubling lists": grow("[1]", "ns.x + ns.x"),
    "list of itself twice": grow("[1]", "[ns.x, ns.x]"),
    "tuple of itself twice": grow("(1,)", "(ns.x, ns.x)"),
    "dict of itself twice": grow("{}", "{'a': ns.x, 'b': ns.x}"),
    "dict() of itself twice": grow("{}", "dict(a=ns.x, b=ns.x)"),
    "doubling in a macro": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}" + grow("'aaaaaaaa'", "d(ns.x)"),
    "doubling in a set block": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}"
    "{% endset %}{% set ns.x = y %}{% endfor %}",
    "big slices kept": "{% set x = 'a' * 8000000 %}{% set ns = namespace(l=[]) %}{% for i in range(90000) %}"
    "{% set ns.l = ns.l + [x[i:]] %}{% endfor %}",
    "big values written in a macro": "{% set x = 'a' * 8000000 %}{% macro m() %}{% for i in range(90000) %}{{ x }}{% endfor %}"
    "{% endmacro %}{{ m() }}",
    "output": "{% set x = 'a' * 8000000 %}{{ x }}{{ x }}",
    "center": "{{ 'x'.center(1000000) }}",
    "center filter": "{{ 'x' | center(1000000000) }}",
    "width in %": "{{ '%1000000000d' % 1 }}",
    "width as argument": "{{ '%*d' % (1000000000, 1) }}",
    "precision in %": "{{ '%.999999999f' % 1.0 }}",
    "many fields": "{% set t = '%(a)s' * 90000 %}{{ t % {'a': 'x' * 90000} }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "replace": "{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
    "replace filter": "{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}",
    "join": "{% set x = 'a' * 1000000 %}{{ x.join(range(90000) | map('string')) }}",
    "join filter": "{{ range(90000) | join('a' * 1000000) }}",
    "indent filter": "{{ ('\n' * 1000000) | indent('a' * 1000000) }}",
    "tojson indent": "{{ [1, 2] | tojson(indent=100000000) }}",
    "batch": "{{ range(3) | batch(1000000000) | list }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "sum of lists": "{{ messages | sum(start=[]) }}",
    "to_bytes": "{{ (5).to_bytes(1000000, 'big') }}",
    "fromkeys": "{{ {}.fromkeys(range(90000), 'x' * 90000) | tojson }}",
    "include": "{% include 'chat_template' %}",
    "extends": "{% extends 'chat_template' %}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['json'] }}",
    "mutation": "{{ messages.append(1) }}",
    "context": "{{ self._TemplateReference__context.environment.budget.tick() }}",
}


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """An attack that gets through fails with MemoryError here, rather than taking the machine down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def fast_clock(monkeypatch):
    """Every look at the clock takes a millisecond: loops that only time can end do so after hundreds of turns."""
    ticks = iter(range(10**9))
    # The module's own view of the clock: patching time.monotonic itself would stop every event loop of the process.
    monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 1000))


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name, fast_clock):
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(ATTACKS[name]).render([{"role": "user", "content": "hi"}])
    assert "memory" not in str(caught.value)


def test_the_clock_is_real():
    budget = sandbox.Budget()
    budget.tick()
    budget._deadline = 0.0
    with pytest.raises(sandbox.BudgetError, match="ran for more than"):
        budget.tick()


def test_each_rendering_has_its_own_budget():
    template = ChatTemplate("{{ 'x' * 5000000 }}")
    for _ in range(sandbox.MAX_WORK // 5_000_000 + 2):
        assert len(template.render([])) == 5_000_000


def test_a_long_conversation_is_well_within_the_budget():
    messages = [{"role": "user", "content": "word " * 400} for _ in range(1000)]
    source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m['content'] | trim + '<|im_end|>\n' }}{% endfor %}"
    assert len(ChatTemplate(source).render(messages)) > 2_000_000
