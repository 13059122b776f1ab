"""OpenAPI 3.1 document from the operations, the request schemas and the docstrings of the routes' handlers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema

from app.protocols.anthropic_encoder import ANTHROPIC
from app.protocols.ollama_encoder import OLLAMA
from app.protocols.openapi.answers import ANSWERS, ref
from app.protocols.openapi.fields import FIELD_TEXTS
from app.protocols.openapi.operations import EVENT_STREAM, OPERATIONS, PATH_PARAMETERS, Operation

DESCRIPTION = (
    "Carousel speaks OpenAI's chat completions, text completions and Responses, Anthropic's Messages, and Ollama's "
    "chat and generate. "
    "Every parameter that is accepted is honoured; any other is a 400 that names it. Keys are needed only if the "
    "server has some."
)
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "API key."},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "API key."},
    "operator": {"type": "http", "scheme": "bearer", "description": "Operator key (`--operator-key`)."},
    "metrics": {"type": "http", "scheme": "bearer", "description": "Metrics or operator key (`--metrics-key`)."},
}
# The empty requirement: a server without keys needs none.
SECURITY: Mapping[str | None, list[dict[str, list[str]]]] = {
    "key": [{"bearer": []}, {"x_api_key": []}, {}],
    "own key": [{"bearer": []}, {"x_api_key": []}],
    "operator": [{"operator": []}],
    "metrics": [{"metrics": []}, {}],
    None: [],
}
# `GET /v1/...: ` at the beginning of a docstring.
ROUTE = re.compile(r"^(GET|POST|DELETE) [^:]+: ")
ERRORS = {ANTHROPIC.prefix: "AnthropicError", OLLAMA.prefix: "OllamaError"}  # schemas by the beginning of a path
# Pydantic's name of a schema of which several modules have one of the same name.
QUALIFIED_NAME = re.compile(r"app__protocols__(\w+?)__(\w+)")
PREFIXES = {"messages": "Chat", "tools": "Chat", "responses_input": "Responses", "responses_tools": "Responses"}


class RouteText(NamedTuple):
    """Path, methods and docstring of a route."""

    path: str
    methods: frozenset[str]
    text: str


def document(routes: Iterable[RouteText], version: str, root_path: str = "") -> dict[str, Any]:
    """Return the document with those operations that `routes` serve. root_path: prefix of all paths behind a proxy."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in sorted(route.methods):
            if (operation := OPERATIONS.get((method, route.path))) is not None:
                paths.setdefault(route.path, {})[method.lower()] = _operation(operation, method, route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Carousel", "version": version, "description": DESCRIPTION},
        "servers": [{"url": root_path or "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in OPERATIONS.values())],
        "paths": paths,
        "components": {"schemas": ANSWERS | _request_schemas(), "securitySchemes": SECURITY_SCHEMES},
    }


def _operation(operation: Operation, method: str, route: RouteText) -> dict[str, Any]:
    first, rest = _sentences(route.text)
    described: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary or first,
        "operationId": _operation_id(method, route.path),
        "responses": _responses(operation, route.path),
        "security": SECURITY[operation.key],
    }
    if rest and not operation.summary:
        described["description"] = rest
    if parameters := _parameters(operation, route.path):
        described["parameters"] = parameters
    if operation.body is not None:
        content: dict[str, Any] = {"schema": ref(operation.body.__name__)}
        content["examples"] = {name: {"value": value} for name, value in (operation.examples or {}).items()}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    return described


def _sentences(text: str) -> tuple[str, str]:
    """Return the first sentence of a docstring without its route, and the others."""
    plain = ROUTE.sub("", " ".join(text.split()))
    first, _, rest = plain.partition(". ")
    return f"{first[:1].upper()}{first[1:].rstrip('.')}.", rest


def _operation_id(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _parameters(operation: Operation, path: str) -> list[dict[str, Any]]:
    schema = {"type": "string"}
    in_path = [
        {"name": name, "in": "path", "required": True, "description": PATH_PARAMETERS[name], "schema": schema}
        for name in re.findall(r"{(\w+)}", path)
    ]
    others = [
        {"name": name, "in": place, "description": text, "schema": schema}
        for (place, name), text in (operation.parameters or {}).items()
    ]
    return in_path + others


def _responses(operation: Operation, path: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.media_type:
        schema = ref(operation.answer) if operation.answer else {"type": "string"}
        content[operation.media_type] = {"schema": schema}
    if operation.streams:
        text = "Server-sent events." if operation.stream_type == EVENT_STREAM else "Lines, each of them one object."
        content[operation.stream_type] = {"schema": {"type": "string", "description": text}}
    answer: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    responses = {str(operation.status): answer | ({"content": content} if content else {})}
    error = ref(next((name for prefix, name in ERRORS.items() if path.startswith(prefix)), "Error"))
    for status in sorted({*operation.errors, *([401] if operation.key else [])}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": error}},
        }
    return responses


def _request_schemas() -> dict[str, Any]:
    """Return the schemas of all request bodies, with the meanings of their fields."""
    bodies = [operation.body for operation in OPERATIONS.values() if operation.body is not None]
    _, generated = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = json.loads(QUALIFIED_NAME.sub(_short_name, json.dumps(generated["$defs"])))
    for schema in schemas.values():
        _leave_out_titles(schema)
    for body in bodies:
        for name, field in schemas[body.__name__]["properties"].items():
            if field.get("type") == "null":
                field["description"] = "Not supported; only null is accepted."
            elif name in FIELD_TEXTS:
                field["description"] = FIELD_TEXTS[name]
    return schemas


def _short_name(name: re.Match[str]) -> str:
    """Return a schema's name with the protocol in place of the module."""
    module, schema = name.groups()
    return PREFIXES.get(module, module.title().replace("_", "")) + schema


def _leave_out_titles(schema: dict[str, Any]) -> None:
    """Remove what pydantic derives from names: titles, and defaults of null, which mean that a field may be omitted."""
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
        if field.get("default", ...) is None:
            del field["default"]
