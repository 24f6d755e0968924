"""The wire types of the OpenAI API, as they are sent. Unknown fields are refused by name, never ignored.

It knows JSON shapes and bounds only; what a field means is in ``convert``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from forno.request import MAX_LOGPROBS

Count = Annotated[int, Meta(ge=0, le=1 << 31)]
ANY_TOKEN = 1 << 31
"""Stands for the size of the vocabulary, which only a server knows; its OpenAPI document names the real one."""
TokenId = Annotated[int, Meta(ge=0, lt=ANY_TOKEN)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Unit = Annotated[float, Meta(ge=0, le=1)]
Stops = Annotated[list[Annotated[str, Meta(min_length=1, max_length=1024)]], Meta(max_length=16)]


Biases = Annotated[
    dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]],
    Meta(extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}}),  # JSON's keys are texts
]


class In(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of everything a client sends."""


class Out(Struct, kw_only=True):
    """Base of everything the server sends."""


# ---- what clients send ------------------------------------------------------------------------------------------


class StreamOptions(In, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextFormat(In, kw_only=True, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(In, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(In, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(In, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that a schema describes; a keyword that cannot be enforced is refused."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(In, kw_only=True):
    """vLLM's name for constraints beyond ``response_format``; exactly one field is set."""

    json: dict[str, Any] | None = None
    regex: Annotated[str, Meta(max_length=16384)] | None = None
    choice: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=1024)] | None = None
    grammar: Annotated[str, Meta(max_length=65536)] | None = None


class Sampling(In, kw_only=True):
    """What both completion endpoints share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: Annotated[str, Meta(min_length=1, max_length=1024)] | Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Biases | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    request_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    deadline: Annotated[float, Meta(gt=0, le=86400)] | None = None
    """Seconds from arrival after which the request fails with 408."""
    # What follows describes a request to OpenAI; it is accepted and changes nothing.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class FunctionCall(In, kw_only=True):
    name: str
    arguments: str
    parsed_arguments: Any = None
    """OpenAI's client adds it when it echoes a parsed answer back; like ``Message.parsed``."""


class ToolCall(In, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: Count | None = None


class TextPart(In, kw_only=True):
    type: Literal["text"]
    text: str


class Message(In, kw_only=True):
    """One turn of a conversation. Null fields that OpenAI's client echoes back are accepted."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    parsed: Any = None
    audio: None = None
    function_call: None = None


class Function(In, kw_only=True):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(In, kw_only=True):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(In, kw_only=True):
    name: str


class NamedTool(In, kw_only=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class ChatRequest(Sampling, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Sampling, kw_only=True):
    """``POST /v1/completions``. ``prompt``: a text, token ids, or a list of either."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=65536)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None


class TokenizeRequest(In, kw_only=True):
    """``POST /tokenize``: a text, or a conversation put through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


TokenizeBody = Annotated[
    TokenizeRequest,
    Meta(
        extra_json_schema={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    ),
]


class DetokenizeRequest(In, kw_only=True):
    """``POST /detokenize``."""

    tokens: Annotated[list[TokenId], Meta(max_length=1 << 20)]
    model: str | None = None


# ---- what the server sends --------------------------------------------------------------------------------------


class ErrorBody(Out, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(Out, kw_only=True):
    error: ErrorBody


class PromptTokensDetails(Out, kw_only=True):
    cached_tokens: int = 0


class Usage(Out, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(Out, kw_only=True):
    """Milliseconds of the request: waiting, to the first token, generating, in all."""

    queue_ms: float
    ttft_ms: float
    generate_ms: float
    total_ms: float
    draft_n: int | UnsetType = UNSET
    """Tokens guessed under ``--speculative``, and of them those that were right; llama.cpp's names."""
    draft_n_accepted: int | UnsetType = UNSET


class TopLogprob(Out, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(Out, kw_only=True):
    token: str
    logprob: float
    top_logprobs: list[TopLogprob]
    bytes: list[int] | None = None


class ChatLogprobs(Out, kw_only=True):
    content: list[TokenLogprob]


class FunctionCallOut(Out, kw_only=True):
    name: str
    arguments: str


class ToolCallOut(Out, kw_only=True):
    id: str
    function: FunctionCallOut
    type: str = "function"


class AssistantMessage(Out, kw_only=True):
    content: str | None
    tool_calls: list[ToolCallOut] | UnsetType = UNSET
    role: str = "assistant"


class ChatChoice(Out, kw_only=True):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | None = None


PromptLogprobs = list[dict[str, TopLogprob] | None]
"""Per prompt position, token id (as text) to its log-probability; null for the first position, as vLLM sends it."""


class ChatCompletion(Out, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    object: str = "chat.completion"


class CompletionLogprobs(Out, kw_only=True):
    """OpenAI's older form: parallel lists over tokens; null where the first token has no prediction."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Out, kw_only=True):
    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Out, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings
    object: str = "text_completion"


class Model(Out, kw_only=True):
    id: str
    created: int
    max_model_len: int
    owned_by: str = "forno"
    object: str = "model"


class ModelList(Out, kw_only=True):
    data: list[Model]
    object: str = "list"


class TokenizeResponse(Out, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeResponse(Out, kw_only=True):
    prompt: str


class TokenizerInfo(Out, kw_only=True):
    """What evaluation harnesses need to tokenize and to write prompts themselves, by Hugging Face's names."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str


class Version(Out, kw_only=True):
    version: str


class Health(Out, kw_only=True):
    status: str
