"""The small endpoints: models, tokenize and detokenize, health, version, metrics."""

from __future__ import annotations

from forno import __version__
from forno.errors import RequestError
from forno.server import wire
from forno.server.convert import BIG_BODY, message_dicts, off_loop
from forno.server.endpoint import Call
from forno.server.errors import HttpError
from forno.server.limits import App
from forno.server.respond import Body, json
from forno.server.serving import Serving


async def models(serving: Serving, body: None, call: Call) -> App:
    model = wire.Model(id=serving.model, created=serving.created, max_model_len=serving.max_model_len)
    return json(wire.ModelList(data=[model]))


async def tokenize(serving: Serving, body: wire.TokenizeRequest, call: Call) -> App:
    serving.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("send exactly one of prompt and messages", "prompt")
    tokens = await off_loop(call.size > BIG_BODY, _tokens, serving, body)
    return json(wire.TokenizeResponse(count=len(tokens), max_model_len=serving.max_model_len, tokens=tokens))


def _tokens(serving: Serving, body: wire.TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        return serving.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    text = serving.template.render(message_dicts(body.messages or ()), add_generation_prompt=body.add_generation_prompt)
    return serving.tokenizer.encode(text, add_special_tokens=False)


async def detokenize(serving: Serving, body: wire.DetokenizeRequest, call: Call) -> App:
    serving.check_model(body.model)
    size = serving.tokenizer.vocab_size
    bad = next((t for t in body.tokens if t >= size), None)
    if bad is not None:
        raise RequestError(f"the token {bad} does not exist: the vocabulary has {size} tokens", "tokens")
    return json(wire.DetokenizeResponse(prompt=serving.tokenizer.decode(body.tokens, skip_special_tokens=False)))


async def tokenizer_info(serving: Serving, body: None, call: Call) -> App:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    texts = {name: serving.tokenizer.special_texts.get(name) for name in names}
    return json(wire.TokenizerInfo(**texts, chat_template=serving.template.source))


async def health(serving: Serving, body: None, call: Call) -> App:
    """200 while requests are taken; 503 while draining or after the engine failed, so that balancers look elsewhere."""
    if serving.engine.draining:
        raise HttpError(503, "draining: the server is shutting down", "service_unavailable_error", code="draining")
    if not serving.engine.healthy:
        raise HttpError(503, "the engine has failed; restart the server", "service_unavailable_error", code="unhealthy")
    return json(wire.Health(status="ok"))


async def version(serving: Serving, body: None, call: Call) -> App:
    return json(wire.Version(version=__version__))


async def metrics(serving: Serving, body: None, call: Call) -> App:
    if serving.attribution is not None:
        await off_loop(True, serving.attribution.advance)  # thousands of steps, perhaps, that nobody looked at yet
    return Body(serving.metrics.text(), media="text/plain; version=0.0.4; charset=utf-8")
