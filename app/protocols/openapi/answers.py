"""JSON Schemas of answers, for the OpenAPI document. Answers may have further fields."""

from __future__ import annotations

from typing import Any

from engine.cache_note import CacheMiss

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also allows null."""
    return {"anyOf": [schema, {"type": "null"}]}


def fields(description: str, optional: Schema | None = None, **required: Schema) -> Schema:
    """Return the schema of an object from the schemas of its fields."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "description": description, "properties": properties, "required": list(required)}


def constant(value: str) -> Schema:
    """Return the schema of one string."""
    return {"type": "string", "const": value}


TOOL_CALL = fields(
    "Call of a tool. `arguments` is the text of a JSON object.",
    id=STRING,
    type=constant("function"),
    function=fields("Called function.", name=STRING, arguments=STRING),
)
COUNTS = fields(
    "Numbers of tokens, and the milliseconds of each phase.",
    {"prompt_tokens_details": OBJECT, "completion_tokens_details": OBJECT, "time_ms": OBJECT},
    prompt_tokens=INTEGER,
    completion_tokens=INTEGER,
    total_tokens=INTEGER,
)
MESSAGE = fields(
    "Generated message.",
    {"reasoning_content": STRING, "tool_calls": array(ref("ToolCall"))},
    role=constant("assistant"),
    content=nullable(STRING),
)
FINISH = nullable({"type": "string", "enum": ["stop", "length", "tool_calls"]})

ANSWERS: dict[str, Schema] = {
    "Error": fields(
        "Error of every protocol but Anthropic's and Ollama's.",
        error=fields(
            "Reason of a refusal or failure.",
            message=STRING,
            type=STRING,
            param={**nullable(STRING), "description": "Parameter that is wrong."},
            code=STRING,
        ),
    ),
    "AnthropicError": fields(
        "Error of Anthropic's protocol.",
        type=constant("error"),
        error=fields("Reason of a refusal or failure.", type=STRING, message=STRING),
    ),
    "Usage": COUNTS,
    "ToolCall": TOOL_CALL,
    "ChatCompletion": fields(
        "Answer to a conversation.",
        id=STRING,
        object=constant("chat.completion"),
        created=INTEGER,
        model=STRING,
        choices=array(
            fields("One answer.", {"logprobs": nullable(OBJECT)}, index=INTEGER, message=MESSAGE, finish_reason=FINISH)
        ),
        usage=ref("Usage"),
    ),
    "Completion": fields(
        "Continuation of a text.",
        id=STRING,
        object=constant("text_completion"),
        created=INTEGER,
        model=STRING,
        choices=array(
            fields("One text.", {"logprobs": nullable(OBJECT)}, index=INTEGER, text=STRING, finish_reason=FINISH)
        ),
        usage=ref("Usage"),
    ),
    "Response": fields(
        "Response with its output items: reasoning, messages and function calls.",
        {"usage": nullable(OBJECT), "error": nullable(OBJECT), "incomplete_details": nullable(OBJECT)},
        id=STRING,
        object=constant("response"),
        created_at=INTEGER,
        status={"type": "string", "enum": ["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]},
        model=STRING,
        output=array(OBJECT),
    ),
    "DeletedResponse": fields("Confirmation of a deletion.", id=STRING, object=constant("response"), deleted=BOOLEAN),
    "Item": fields("Item of a conversation.", {"type": STRING}, id=STRING),
    "ItemList": fields(
        "Part of a list of items or messages.",
        object=constant("list"),
        data=array(ref("Item")),
        first_id=nullable(STRING),
        last_id=nullable(STRING),
        has_more=BOOLEAN,
    ),
    "CompletionList": fields(
        "Part of the list of stored chat completions.",
        object=constant("list"),
        data=array(ref("ChatCompletion")),
        first_id=nullable(STRING),
        last_id=nullable(STRING),
        has_more=BOOLEAN,
    ),
    "Conversation": fields(
        "Conversation without its items.",
        id=STRING,
        object=constant("conversation"),
        created_at=INTEGER,
        metadata=OBJECT,
    ),
    "PageRows": fields(
        "Result of a join. `last` is the number of the key's last change, `epoch` that of the rows' life.",
        object=constant("page.rows"),
        last=INTEGER,
        epoch=STRING,
    ),
    "PageRowList": fields(
        "Rows in the order of their last changes. `last` is the next `after`.",
        object=constant("list"),
        data=array(
            fields(
                "Row; its value is null if it was deleted.",
                id=STRING,
                revision=INTEGER,
                writer=STRING,
                value=nullable(STRING),
                number=INTEGER,
            )
        ),
        last=INTEGER,
        has_more=BOOLEAN,
        epoch=STRING,
    ),
    "PageWarm": fields(
        "Requests by id, without those of other keys, of other servers or of long ago.",
        object=constant("page.warm"),
        requests={
            "type": "object",
            "additionalProperties": fields(
                "Tokens of prompt and answer, and those of them in the prefix cache. `first_token_ms` is the estimated "
                "time to the first token of a next message, `cold_first_token_ms` that without the cache; both are "
                "absent while no engine is ready.",
                {"first_token_ms": INTEGER, "cold_first_token_ms": INTEGER},
                cached_tokens=INTEGER,
                tokens=INTEGER,
            ),
        },
    ),
    "PageTools": fields(
        "Tools by server. `error` says why a server has none here, or fewer than it has.",
        object=constant("list"),
        data=array(
            fields(
                "Tools of a server. Each has a `name`, a `description`, and a JSON Schema as `input_schema`.",
                name=STRING,
                tools=array(OBJECT),
                error=nullable(STRING),
            )
        ),
    ),
    "PageToolResult": fields(
        "Result of a call. With `is_error` the tool failed, and the content says why.",
        content=STRING,
        is_error=BOOLEAN,
    ),
    "Deleted": fields("Confirmation of a deletion.", id=STRING, object=STRING, deleted=BOOLEAN),
    "ResponseInputTokens": fields("Size of an input.", object=constant("response.input_tokens"), input_tokens=INTEGER),
    "AnthropicAnswer": fields(
        "Answer with its content blocks: thinking, text and tool use.",
        id=STRING,
        type=constant("message"),
        role=constant("assistant"),
        model=STRING,
        content=array(OBJECT),
        stop_reason=nullable(STRING),
        usage=fields("Numbers of tokens.", input_tokens=INTEGER, output_tokens=INTEGER),
    ),
    "OllamaError": fields("Error of Ollama's protocol.", error=STRING),
    "OllamaAnswer": fields(
        "Answer with its numbers of tokens, and times in nanoseconds.",
        {"message": OBJECT, "response": STRING, "thinking": STRING, "logprobs": array(OBJECT), "done_reason": STRING},
        model=STRING,
        created_at=STRING,
        done=BOOLEAN,
    ),
    "OllamaModels": fields("The served model, as a list.", models=array(OBJECT)),
    "OllamaModel": fields(
        "Description of the served model.", details=OBJECT, model_info=OBJECT, capabilities=array(STRING)
    ),
    "OllamaVersion": fields("Version of Ollama's API, and of this server.", version=STRING, carousel=STRING),
    "InputTokens": fields("Size of a prompt.", input_tokens=INTEGER),
    "TokenList": fields("Token ids of a text.", count=INTEGER, max_model_len=INTEGER, tokens=array(INTEGER)),
    "Text": fields("Text of token ids.", prompt=STRING),
    "Model": fields(
        "Served model. Clients that send `anthropic-version` get Anthropic's shape.",
        {"capabilities": OBJECT, "generation_defaults": OBJECT},
        id=STRING,
        object=constant("model"),
        created=INTEGER,
        owned_by=STRING,
        max_model_len=INTEGER,
        format=STRING,
        family=STRING,
        parameters=INTEGER,
        quantization=STRING,
        service_tiers=array(STRING),
    ),
    "ModelList": fields("The served model, as a list.", object=constant("list"), data=array(ref("Model"))),
    "CacheNote": fields(
        "Comparison of a prompt with the earlier answer that it continues best, and why the cache had less of it.",
        continues=nullable(STRING),
        kept_seconds=nullable(NUMBER),
        expected_tokens=INTEGER,
        reason=nullable({"type": "string", "enum": [reason.value for reason in CacheMiss]}),
        by=nullable(STRING),
        differs_at=nullable(INTEGER),
        before=STRING,
        after=STRING,
    ),
    "Drafts": fields(
        "Tokens of a choice, the steps that yielded them, and its drafts by source.",
        tokens=INTEGER,
        steps=INTEGER,
        drafted=OBJECT,
        accepted=OBJECT,
    ),
    "Timeline": fields(
        "Intervals of a request, each with the reason for a wait.",
        {"totals_ms": OBJECT, "wall_ms": NUMBER, "position": INTEGER, "wait_ms": INTEGER},
        id=STRING,
        object=constant("carousel.request"),
        state=STRING,
        prompt_tokens=INTEGER,
        cached_tokens=INTEGER,
        cache=nullable(ref("CacheNote")),
        completion_tokens=INTEGER,
        choices=array(
            fields(
                "Intervals of a choice. `drafts` is null while it runs, and if it had none.",
                index=INTEGER,
                drafts=nullable(ref("Drafts")),
                intervals=array(OBJECT),
            )
        ),
    ),
    "Status": fields("State of the server.", {"in_flight": INTEGER}, status=STRING),
}
