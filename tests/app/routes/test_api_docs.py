"""The OpenAPI document is valid, covers the routes, and agrees with the answers of the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route
from starlette.testclient import TestClient

from app.protocols.openapi.answers import ANSWERS
from app.protocols.openapi.document import document
from app.protocols.openapi.fields import FIELD_TEXTS
from app.protocols.openapi.operations import OPERATIONS
from app.protocols.schema import validate
from app.routes import api_docs
from tests.app.routes.test_http import make, ready

SPECIFICATION = json.loads((Path(__file__).parents[2] / "vendor" / "openapi" / "schema.json").read_text())
PAGE_FILES = {"/favicon.ico", "/preview", "/preview/mermaid", "/manifest.webmanifest", "/service_worker.js"}
PAGES = {"/", "/engine", "/docs", "/openapi.json"} | PAGE_FILES
BODIES = [
    pytest.param(path, name, id=f"{path} {name}")
    for (_, path), operation in OPERATIONS.items()
    for name in operation.examples or ()
]


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    with make() as client:
        yield ready(client)


@pytest.fixture(scope="module")
def described(http) -> dict[str, Any]:
    return http.get("/openapi.json").json()


def schema_of(described: dict[str, Any], reference: dict[str, Any]) -> Draft202012Validator:
    """Return a validator for a schema that may refer to components of the document."""
    return Draft202012Validator({"components": described["components"], **reference})


def references(value: Any) -> Iterator[str]:
    """Yield every reference in a part of the document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_document_is_valid(described):
    """It satisfies the schema of OpenAPI 3.1, its schemas are valid, and its references lead to schemas."""
    Draft202012Validator(SPECIFICATION).validate(described)
    schemas = described["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert {each.removeprefix("#/components/schemas/") for each in references(described)} <= schemas.keys()
    assert all(re.fullmatch(r"[A-Za-z0-9]+", name) and "__" not in name for name in schemas)


def test_each_route_of_clients_is_described(http, described):
    """Routes and operations have the same paths and methods; pages are left out."""
    routes = {
        (method, route.path_format)
        for route in http.app.routes
        if isinstance(route, Route) and route.path not in PAGES
        for method in (route.methods or ()) - {"HEAD"}
    }
    listed = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert listed == routes == OPERATIONS.keys()


def test_operations_have_unique_ids_declared_parameters_and_known_keys(described):
    """Generators of clients depend on them."""
    operations = [(path, operation) for path, methods in described["paths"].items() for operation in methods.values()]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(set(ids)) == len(ids)
    for path, operation in operations:
        in_path = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        keys = {key for requirement in operation["security"] for key in requirement}
        assert keys <= described["components"]["securitySchemes"].keys()
        assert ("401" in operation["responses"]) == bool(operation["security"])


def test_summaries_are_sentences_without_the_route(described):
    """They come from the docstrings of the handlers."""
    for methods in described["paths"].values():
        for operation in methods.values():
            assert re.fullmatch(r"[A-Z][^\n]*\.", operation["summary"])
            assert not re.match(r"GET|POST|DELETE", operation["summary"])
    assert described["paths"]["/tokenize"]["post"]["summary"].startswith("Return the token ids of a text")
    assert described["paths"]["/livez"]["get"]["summary"].startswith("Return 200 while the event loop runs")
    assert "load balancer" in described["paths"]["/health"]["get"]["description"]


def test_each_field_of_a_request_is_described(described):
    """No described field is unknown, and answers and requests have different names of schemas."""
    bodies = {operation.body for operation in OPERATIONS.values() if operation.body is not None}
    seen = set()
    for body in bodies:
        for name, field in described["components"]["schemas"][body.__name__]["properties"].items():
            assert field.get("description"), f"{body.__name__}.{name}"
            assert "title" not in field
            seen.add(name)
    assert FIELD_TEXTS.keys() <= seen
    assert all(described["components"]["schemas"][name] == schema for name, schema in ANSWERS.items())


@pytest.mark.parametrize(("path", "name"), BODIES)
def test_examples_are_valid(described, path: str, name: str):
    """The document's schema of the request accepts them, and so does the server's."""
    operation = described["paths"][path]["post"]
    content = operation["requestBody"]["content"]["application/json"]
    body = content["examples"][name]["value"]
    schema_of(described, content["schema"]).validate(body)
    declared = OPERATIONS["POST", path].body
    assert declared is not None
    validate(declared, body)


@pytest.mark.parametrize(
    ("schema", "name", "accepted", "refused"),
    [
        ("CompletionRequest", "suffix", "", "x"),
        ("ChatRequest", "functions", [], [1]),
        ("ChatRequest", "modalities", ["text"], ["audio"]),
        ("ChatRequest", "n", 16, 17),
        ("ChatRequest", "audio", None, {}),
    ],
)
def test_values_that_the_server_refuses_are_not_valid(described, schema: str, name: str, accepted: Any, refused: Any):
    """A field with a single supported value has only that value in the document."""
    field = schema_of(described, described["components"]["schemas"][schema]["properties"][name])
    assert field.is_valid(accepted) and field.is_valid(None)
    assert not field.is_valid(refused)


@pytest.mark.parametrize(
    ("method", "path", "actual"),
    [
        ("GET", "/v1/models", "/v1/models"),
        ("GET", "/v1/models/{model_id}", "/v1/models/fake"),
        ("GET", "/health", "/health"),
        ("GET", "/readyz", "/readyz"),
        ("GET", "/livez", "/livez"),
        ("GET", "/metrics", "/metrics"),
        ("GET", "/v1/realtime", "/v1/realtime"),
        ("GET", "/v1/responses/{response_id}/input_items", "/v1/responses/resp_x/input_items"),
        ("GET", "/v1/requests/{request_id}", "/v1/requests/ID"),
        ("GET", "/v1/responses/{response_id}", "/v1/responses/ID"),
        ("POST", "/v1/responses/{response_id}/cancel", "/v1/responses/ID/cancel"),
        ("GET", "/v1/streams/{stream_id}", "/v1/streams/CHAT"),
        ("DELETE", "/v1/streams/{stream_id}", "/v1/streams/CHAT"),
        ("DELETE", "/v1/responses/{response_id}", "/v1/responses/ID"),
        ("GET", "/v1/requests/{request_id}", "/v1/requests/unknown"),
        ("POST", "/drain", "/drain"),
        ("POST", "/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/messages", "/v1/messages"),
    ],
)
def test_other_answers_are_as_described(http, described, method: str, path: str, actual: str):
    """Status, media type and body of the server's answer are in the document, refusals included."""
    started = http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 3}).json()["id"]
    chat = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
    actual = actual.replace("ID", started).replace("CHAT", chat.json()["id"])
    answer = http.request(method, actual, json={} if method == "POST" else None)
    responses = described["paths"][path][method.lower()]["responses"]
    assert str(answer.status_code) in responses, answer.text
    content = responses[str(answer.status_code)].get("content", {})
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    assert media_type in content if content else not answer.content
    if media_type == "application/json":
        schema_of(described, content[media_type]["schema"]).validate(answer.json())


def test_a_root_path_is_the_server_of_the_document():
    """Clients that are generated from it send requests through the proxy."""
    with TestClient(make(root_path="/llm").app, base_url="http://127.0.0.1:8000", root_path="/llm") as client:
        assert client.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]
        page = client.get("/llm/docs").text
        assert "curl http://127.0.0.1:8000/llm/v1/chat/completions" in page


def test_the_page_shows_each_operation_field_and_object(http, described):
    """Its links lead to its sections, and fields that are not supported are left out."""
    page = http.get("/docs")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    ids = re.findall(r' id="([^"]+)"', page.text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page.text)) <= set(ids)
    operations = [one for methods in described["paths"].values() for one in methods.values()]
    assert {one["operationId"] for one in operations} | described["components"]["schemas"].keys() <= set(ids)
    assert "<code>temperature</code>" in page.text
    assert "name is 404 <code>model_not_found</code>." in page.text and "server.invalid" not in page.text
    assert "<code>web_search_options</code>" not in page.text
    assert "number, from 0 to 2" in page.text
    assert page.text.count("Needs no key.") == 3  # the probes
    assert "&#34;auto&#34;, &#34;none&#34;, &#34;required&#34; or" in page.text


def test_a_key_is_not_needed_for_the_documentation():
    """It describes the program and has nothing of its users."""
    with make(operator_key="op") as client:
        assert client.get("/openapi.json").status_code == 200
        assert client.get("/docs").status_code == 200


def test_the_document_is_made_once(monkeypatch):
    """Further requests and the page use the first one's."""
    made = []
    monkeypatch.setattr(api_docs, "document", lambda *args: made.append(args) or document(*args))
    with make() as client:
        assert client.get("/openapi.json").content == client.get("/openapi.json").content
        assert client.get("/docs").text == client.get("/docs").text
    assert len(made) == 1
