"""/api: chat, generate and the descriptions of the served model in Ollama's protocol."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app import __version__
from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.http.security import read_json_body
from app.protocols.ollama import OllamaChatRequest, OllamaGenerateRequest, ShowRequest
from app.protocols.ollama_encoder import timestamp
from app.routes import authenticate_request, get_service
from app.routes.paced_route import PacedRoute
from app.routes.text import answer
from app.service import Service

# Version of Ollama whose API this is: clients refuse versions that are too old for their features.
API_VERSION = "0.13.0"
NEVER = timedelta(days=36500)
# What this server does not do, and what to do instead.
REFUSED = {
    "pull": "a model is fetched by `carousel fetch` or by the name that `carousel serve` is given",
    "push": "models are not published",
    "create": "a model is a folder that `carousel serve` is given; system prompts and options belong to requests",
    "copy": "the model's name is set by --served-model-name",
    "delete": "models are files of this machine's owner",
    "embed": "the served model writes text",
    "embeddings": "the served model writes text",
    "blobs": "models are not uploaded",
}


async def chat(request: Request) -> Response:
    """Answer a conversation, streamed (by default) or whole."""
    return await answer(request, OllamaChatRequest)


async def generate(request: Request) -> Response:
    """Answer a prompt, streamed (by default) or whole."""
    return await answer(request, OllamaGenerateRequest)


async def tags(request: Request) -> Response:
    """List the served model."""
    authenticate_request(request)
    service = get_service(request)
    return JSONResponse({"models": [_model(service) | {"modified_at": timestamp(service.started)}]})


async def running(request: Request) -> Response:
    """List the served model as loaded."""
    authenticate_request(request)
    service = get_service(request)
    info = service.info
    loaded = {
        "expires_at": timestamp((datetime.now(UTC) + NEVER).timestamp()),
        "size_vram": _model(service)["size"] if info.device.startswith("cuda") else 0,
        "context_length": info.max_model_len,
    }
    return JSONResponse({"models": [_model(service) | loaded]})


async def show(request: Request) -> Response:
    """Describe the served model."""
    caller, service = Caller(authenticate_request(request).id), get_service(request)
    with service.bodies.memory(caller.tenant) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(ShowRequest, body, caller)
    if (name := parsed.model or parsed.name) is not None:
        service.check_model(parsed.served_model(name))
    info, text = service.info, service.text
    can = {"completion": True, "tools": text.reads_tools, "thinking": text.writes_reasoning}
    return JSONResponse(
        {
            "details": _model(service)["details"],
            "model_info": {
                "general.architecture": info.family,
                "general.parameter_count": info.parameters,
                f"{info.family}.context_length": info.max_model_len,
                f"{info.family}.vocab_size": info.vocab_size,
            },
            "capabilities": [name for name, is_able in can.items() if is_able],
            "parameters": "\n".join(f"{name} {value}" for name, value in text.sampling_defaults.items()),
            "template": "",  # chat templates of other kinds cannot be shown as Ollama's
            "modified_at": timestamp(service.started),
        }
    )


async def version(request: Request) -> Response:
    """Return the version of Ollama whose API this is, and that of the server."""
    authenticate_request(request)
    return JSONResponse({"version": API_VERSION, "carousel": __version__})


async def refuse(request: Request) -> NoReturn:
    """Refuse to change the models of this server."""
    authenticate_request(request)
    name = request.url.path.partition("/api/")[2].partition("/")[0]
    raise ApiError(501, f"/api/{name} is not supported: {REFUSED[name]}.", code="unsupported_operation")


def _model(service: Service) -> dict[str, Any]:
    """Return the served model in the form of lists."""
    info = service.info
    return {
        "name": service.settings.model_name,
        "model": service.settings.model_name,
        "size": info.file_bytes,
        "digest": info.fingerprint,
        "details": {
            "parent_model": "",
            "format": info.format,
            "family": info.family,
            "families": [info.family],
            "parameter_size": _rounded(info.parameters),
            "quantization_level": info.storage,
        },
    }


def _rounded(parameters: int) -> str:
    """Return a number of parameters as people read it, such as 134.5M."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return str(parameters)


ROUTES = [
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
    PacedRoute("/api/tags", tags),
    PacedRoute("/api/ps", running),
    PacedRoute("/api/show", show, methods=["POST"]),
    PacedRoute("/api/version", version),
    PacedRoute("/api/delete", refuse, methods=["DELETE"]),
    PacedRoute("/api/blobs/{digest}", refuse, methods=["HEAD", "POST"]),
    *(PacedRoute(f"/api/{name}", refuse, methods=["POST"]) for name in REFUSED if name not in ("delete", "blobs")),
]
