"""GET /openapi.json: the interface as an OpenAPI document. GET /docs: the same as a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app import __version__
from app.protocols.openapi.document import RouteText, document
from app.routes import get_service
from app.routes.pages import SECURITY_HEADERS, render_page

Schema = dict[str, Any]
SERVER = "http://server.invalid"  # in the stored page; replaced by the address that a client uses
PREFIX = "#/components/schemas/"
MAX_LISTED_NUMBER = 10**9  # a limit beyond it is one of the number format


@dataclass(frozen=True, slots=True)
class ApiDocs:
    """The document as JSON, and the page that shows it."""

    document: bytes
    page: str


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    docs = await _docs(request)
    headers = {name: SECURITY_HEADERS[name] for name in ("X-Content-Type-Options", "Cache-Control")}
    return Response(docs.document, media_type="application/json", headers=headers)


async def docs_page(request: Request) -> Response:
    """GET /docs: the API documentation."""
    docs = await _docs(request)
    page = docs.page.replace(SERVER, escape(str(request.base_url).rstrip("/")))
    return Response(page, media_type="text/html", headers=SECURITY_HEADERS)


async def _docs(request: Request) -> ApiDocs:
    """Return document and page, which are made in a thread at the first request: that takes 0.2 s."""
    state = request.app.state
    if not hasattr(state, "api_docs"):
        state.api_docs = asyncio.create_task(asyncio.to_thread(_make, request))
    docs: ApiDocs = await asyncio.shield(state.api_docs)  # a client that leaves does not cancel it for others
    return docs


def _make(request: Request) -> ApiDocs:
    described = document(_routes(request.app), __version__, get_service(request).settings.root_path)
    schemas = described["components"]["schemas"]
    groups: dict[str, list[dict[str, Any]]] = {tag["name"]: [] for tag in described["tags"]}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append(_view(path, method, operation, schemas))
    objects = [
        {"name": name, "text": schema.get("description", ""), "fields": list(rows(schema))}
        for name, schema in sorted(schemas.items())
    ]
    description = described["info"]["description"]
    page = render_page(request, "docs", description=description, groups=groups, objects=objects, server=SERVER)
    return ApiDocs(json.dumps(described).encode(), bytes(page.body).decode())


def _routes(app: Starlette) -> list[RouteText]:
    """Return paths, methods and docstrings of the application's routes."""
    return [
        RouteText(route.path_format, frozenset(route.methods or ()), route.endpoint.__doc__ or "")
        for route in app.routes
        if isinstance(route, Route)
    ]


def _view(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Schema]) -> dict[str, Any]:
    """Return an operation as the template shows it."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    name = content["schema"]["$ref"].removeprefix(PREFIX) if content else ""
    examples = content["examples"] if content else {}
    return {
        **operation,
        "method": method.upper(),
        "path": path,
        "fields": list(rows(schemas[name])) if name else [],
        "examples": {title: json.dumps(each["value"], indent=2) for title, each in examples.items()},
        "answers": [_answer_view(status, answer) for status, answer in operation["responses"].items()],
        "needs_key": bool(operation["security"]),
    }


def _answer_view(status: str, answer: dict[str, Any]) -> dict[str, Any]:
    contents = [
        (media_type, part["schema"]["$ref"].removeprefix(PREFIX) if "$ref" in part["schema"] else "")
        for media_type, part in answer.get("content", {}).items()
    ]
    return {"status": status, "text": answer["description"], "contents": contents}


@dataclass(frozen=True, slots=True)
class Row:
    """Field of an object. types: texts of its type, each with the name of the object that it links to, if any."""

    name: str
    types: list[tuple[str, str]]
    required: bool
    default: str
    text: str


def rows(schema: Schema) -> Iterator[Row]:
    """Yield the fields of an object, required ones first, without those that are not supported."""
    required = schema.get("required", [])
    properties = schema.get("properties", {})
    for name, field in sorted(properties.items(), key=lambda item: item[0] not in required):
        if field.get("type") == "null":
            continue
        default = json.dumps(field["default"]) if "default" in field else ""
        yield Row(name, list(type_parts(field)), name in required, default, field.get("description", ""))


def type_parts(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the parts of a type's text. That a field may be null is left out: null means omitted."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        yield name, name
    elif options := schema.get("anyOf") or schema.get("oneOf"):
        for index, option in enumerate(option for option in options if option.get("type") != "null"):
            yield from [(" or ", "")] if index else []
            yield from type_parts(option)
    elif "enum" in schema or "const" in schema:
        yield ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")])), ""
    elif schema.get("type") == "array":
        yield "list of ", ""
        yield from type_parts(schema.get("items", {}))
    else:
        yield f"{schema.get('type', 'any')}{_limits(schema)}", ""


def _limits(schema: Schema) -> str:
    """Return the range of a number."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    parts = [
        f"from {low:g}" if low is not None and abs(low) < MAX_LISTED_NUMBER else "",
        f"above {above:g}" if above is not None else "",
        f"to {high:g}" if high is not None and abs(high) < MAX_LISTED_NUMBER else "",
        f"below {below:g}" if below is not None and abs(below) < MAX_LISTED_NUMBER else "",
    ]
    shown = " ".join(part for part in parts if part)
    return f", {shown}" if shown else ""
