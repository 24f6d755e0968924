from __future__ import annotations

import pytest
import text_fixtures as fixtures

from forno.errors import RequestError, TemplateError
from forno.loader.checkpoint import Checkpoint, TokenizerSource
from forno.text.chat import CHATML, ChatTemplate, load_chat_template

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


@pytest.mark.parametrize(
    "calls",
    [["x"], [{}], [{"function": {"name": "f", "arguments": "{"}}], [{"function": {"name": "f", "arguments": "[" * 10**5}}]],
)
def test_bad_tool_calls_are_request_errors(calls):
    with pytest.raises(RequestError, match=r"tool_calls\[0\]"):
        ChatTemplate(CHATML).render([{"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_template_arguments_cannot_replace_the_conversation(name):
    with pytest.raises(RequestError, match=name):
        ChatTemplate("x").render(USER, None, **{name: []})


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
