"""A server that computes nothing and answers at known times: what a load generator says of it is right or wrong.

    python -m benchmarks.steady --port 9000 [--ttft 120] [--tpot 12]

The first token of an answer comes ``--ttft`` milliseconds after its request was read, every further one ``--tpot`` after the
one before, ``max_tokens`` in all. Times are kept against the request's own start, so that a late token does not delay those
after it. Knows the OpenAI streaming API as clients use it; needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

MODEL = "m"


class Steady:
    """Routes of the server; times in seconds."""

    def __init__(self, ttft: float, tpot: float) -> None:
        self.ttft, self.tpot = ttft, tpot
        self._ids = itertools.count()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """A chat completion, streamed if asked for; a prompt's tokens are its words."""
        clock = asyncio.get_running_loop().time
        started, body = clock(), await request.json()
        count = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        head = {"id": f"chatcmpl-{next(self._ids)}", "created": 0, "model": MODEL}
        prompt = sum(len(_text(message["content"]).split()) for message in body["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        if not body.get("stream"):
            await asyncio.sleep(self.ttft + (count - 1) * self.tpot)
            message = {"role": "assistant", "content": "word " * count}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            return web.json_response(head | {"object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head |= {"object": "chat.completion.chunk"}
        for number in range(count):
            await asyncio.sleep(started + self.ttft + number * self.tpot - clock())
            reason = "length" if number + 1 == count else None
            choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": reason}
            await response.write(_event(head | {"choices": [choice]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_event(head | {"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _text(content: Any) -> str:
    """A message's text, whole or in parts."""
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A server whose times are known.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft", type=float, default=120.0, help="milliseconds to the first token")
    parser.add_argument("--tpot", type=float, default=12.0, help="milliseconds between tokens")
    options = parser.parse_args(arguments)
    app = Steady(options.ttft / 1000, options.tpot / 1000).app()
    web.run_app(app, host="127.0.0.1", port=options.port, print=lambda *_: None)


if __name__ == "__main__":
    main()
