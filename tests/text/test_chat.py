from __future__ import annotations

import json

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forno.errors import ConfigError, RequestError, TemplateError
from forno.loader.checkpoint import Checkpoint, TokenizerSource
from forno.text.chat import CHATML, ChatTemplate, load_chat_template, read_template
from tests.text import text_fixtures as fixtures

USER = [{"role": "user", "content": "Hi"}]

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
    "helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] "
    "+ '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_smollm2():
    assert ChatTemplate(SMOLLM2).render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chatml_is_the_fallback_and_says_so():
    tokenizer = fixtures.smollm2()
    bare = Checkpoint("m", {}, {}, TokenizerSource())
    template = load_chat_template(bare, tokenizer)
    assert template.is_default
    assert template.source == CHATML
    assert template.render(USER, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"
    own = load_chat_template(Checkpoint("m", {}, {}, TokenizerSource(), chat_template="{{ eos_token }}"), tokenizer)
    assert not own.is_default
    assert own.render(USER) == "<|im_end|>"
    assert load_chat_template(bare, tokenizer, override="x").render(USER) == "x"


def test_white_space_is_trimmed_as_hugging_face_does():
    source = "{% for m in messages %}\n    {% if true %}\n  {{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(USER) == "  Hi\n"


def test_helpers_of_hugging_face():
    render = lambda source, **kwargs: ChatTemplate(source).render(USER, **kwargs)  # noqa: E731
    assert render("{{ {'a': '<é>', 'b': [1, none, true]} | tojson }}") == '{"a": "<é>", "b": [1, null, true]}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}") == '{\n  "a": 2,\n  "b": 1\n}'
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}") == "1"
    assert render("{{ messages[::-1][0].content | trim | upper }}") == "HI"
    assert render("{{ 'a,b'.split(',') | join('+') }} {{ 'x' ~ 1 ~ none }} {{ '%s-%02d' % ('a', 3) }}") == "a+b x1None a-03"
    assert render("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}") == "['Hi']"
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_tools_and_calls_reach_the_template_as_objects():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    source = "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    source += "{{ c.function.arguments.x }}{% endfor %}[{{ m.content }}]{% endfor %}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "y"}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "ok"}]
    text = ChatTemplate(source).render(messages, tools)
    assert text == '{"type": "function", "function": {"name": "f", "parameters": {}}}y[][ok]'
    assert ChatTemplate("{{ tools is none }}").render(USER, []) == "True"


def test_text_parts_are_joined_and_others_named():
    render = ChatTemplate(CHATML).render
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\nab<" in render([{"role": "user", "content": parts}])
    with pytest.raises(RequestError, match=r"messages\[0\].content\[1\] has type 'image_url'"):
        render([{"role": "user", "content": [parts[0], {"type": "image_url", "image_url": {}}]}])
    for content in (3, [3], [{"type": "text"}], {"a": 1}):
        with pytest.raises(RequestError, match="content"):
            render([{"role": "user", "content": content}])


@pytest.mark.parametrize("calls", [["x"], [{}], [{"function": 3}]])
def test_bad_tool_calls_are_request_errors(calls):
    with pytest.raises(RequestError, match=r"tool_calls\[0\]"):
        ChatTemplate(CHATML).render([{"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize("broken", ["{", "[" * 10**5])
def test_broken_arguments_are_shown_as_the_text_they_are(broken):
    """A model wrote them; refusing its own words would end the conversation."""
    template = ChatTemplate("{% for c in messages[0].tool_calls %}{{ c.function.arguments }}{% endfor %}")
    assert template.render([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": broken}}]}]) == broken


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_template_arguments_cannot_replace_the_conversation(name):
    with pytest.raises(RequestError, match=name):
        ChatTemplate("x").render(USER, None, **{name: []})


# What templates of Llama 3, Qwen, Mistral, GLM and others use.
SNIPPETS = [
    "{%- if messages[0]['content'] is string %}{%- set s = messages[0]['content']|trim %}{%- endif %}{{- s }}",
    "{%- set messages = messages[1:] %}{{ messages | length }}{{ messages[-1].content }}",
    "{% for k, v in tools[0].function.items() if k != 'x' %}{{ k }}{{ v | string }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}",
    "{{ tools | tojson(indent=4) }}{{ tools[0] | tojson(ensure_ascii=False) }}",
    "{% set o = tools[0].function | tojson %}{{ o[:-1] }}{{ o[-9:] }}{{ o[::2] }}",
    "{{ (messages[1].content.split('</think>')[-1]).lstrip('\\n') }}{{ messages[1].content.endswith('x') }}",
    "{{ '/no' if (flag is defined and not flag) else '' }}{{ flag is sameas false }}",
    "{% set ns = namespace(i=-1, l=[]) %}{% for m in messages %}{% set ns.i = loop.index0 %}{% set ns.l = ns.l + [m.role] %}"
    "{% endfor %}{{ ns.i }}{{ ns.l }}",
    "{% macro text(c) -%}{%- if c is mapping %}map{% elif c is iterable %}"
    "{{ c | upper }}{% endif %}{%- endmacro %}{{ text('é') }}",
    "{% for m in messages[::-1] %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.cycle('a', 'b') }}"
    "{{ loop.previtem.role if not loop.first }}{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | map('trim') | join('\\n') }}",
    "{{ messages | rejectattr('role', 'in', ['user']) | list | length }}{{ messages | groupby('role') | length }}",
    "{{ messages[0].get('tool_calls') }}{{ messages[0].tool_calls is defined }}{{ 'tool_calls' in messages[0] }}",
    "{% for a, b in [('x', 1), ('y', 2)] %}{{ a ~ b }}{% else %}none{% endfor %}{{ {'a': {'b': [1, 2.5, none]}} }}",
    "{{ dict(a=1, b=2) | dictsort }}{{ {'b': 1}.keys() | list }}{{ [3, 1] | sort | first }}{{ [1, 1] | unique | list }}",
    "{{ 7 // 2 }}{{ 7 % 2 == 1 }}{{ 2 ** 3 }}{{ 1 / 2 }}{{ -3 | abs }}{{ 'a' * 3 }}{{ '%s %5.2f' | format('a', 1.5) }}",
    "{% filter upper %}abc{% endfilter %}{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}",
    "{%- set block %}a{{ 1 }}\n{%- endset %}[{{ block }}]{% raw %}{{ x }}{% endraw %}{# comment #}",
    "{% for m in messages recursive %}{{ m.role }}{% if m.x %}{{ loop(m.x) }}{% endif %}{% endfor %}",
    "{% for i in range(10) %}{% if i is odd %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{{ range(2, 8, 2) | list | batch(2) | list }}{{ nothing | default('d') }}{{ [[1, 2], [3]] | map('sum') | list }}",
    "{% block b %}x{{ super is defined }}{% endblock %}{{ self.b() }}",
    "{{ 'a\\nb' | indent(2) }}{{ 'a-b' | replace('-', '+') }}{{ 'a b'.title() }}{{ '1' | int + 1 }}{{ 'x'.join(['1', '2']) }}",
]


@pytest.mark.parametrize("source", SNIPPETS)
def test_harmless_templates_render_as_in_plain_jinja(source):
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    plain.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    messages = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "<think></think>\nx"}]
    tools = [{"type": "function", "function": {"name": "f", "description": "é", "parameters": {"type": "object"}}}]
    expected = plain.from_string(source).render(messages=messages, tools=tools, flag=False)
    assert ChatTemplate(source).render(messages, tools, flag=False) == expected


def test_absent_members_are_not_defined():
    source = "{% for m in messages %}{{ m.tool_calls is defined }}{{ m.name is defined }}{% endfor %}"
    messages = [
        {"role": "assistant", "content": "a", "tool_calls": None, "name": None},
        {"role": "assistant", "tool_calls": []},
    ]
    assert ChatTemplate(source).render(messages) == "FalseFalse" * 2


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    ChatTemplate("{{ messages[0].content }}").render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% nope %}", "{{ 1 | nope }}", "{{ " + "(" * 3000 + " }}", "x" * (2 << 20)]
)
def test_templates_that_do_not_compile(source):
    with pytest.raises(TemplateError):
        ChatTemplate(source)


def test_a_template_file_is_read_or_named(tmp_path):
    assert read_template("") is None
    (tmp_path / "mine.jinja").write_text("{{ 1 }} ü", encoding="utf-8")
    assert read_template(str(tmp_path / "mine.jinja")) == "{{ 1 }} ü"
    (tmp_path / "broken.jinja").write_bytes(b"\xff")
    for name in ("absent.jinja", "broken.jinja"):
        with pytest.raises(ConfigError, match=f"--chat-template .*{name}"):
            read_template(str(tmp_path / name))
