"""HTML pages: Jinja2 shells whose dynamic parts are in static/."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.templating import Jinja2Templates

from app import __version__
from app.generation.assembly import MAX_RESUME_SECONDS
from app.generation.request import effective_defaults
from app.http.assets import bundled, version
from app.resources import demo_model, static_dir, templates_dir
from app.routes import get_service
from app.settings import Settings

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(self), geolocation=()",  # for dictation
    "Cache-Control": "no-cache",
}
# A document of a model has scripts and styles of its own, and nothing else: no origin, no network, no forms.
PREVIEW_HEADERS = {
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; font-src data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}
# A diagram is drawn by the server's own scripts, which a nonce allows; its text has none.
DIAGRAM_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
# Questions that an empty conversation offers: those of the subjects of the bundled model, and those that the default
# model, and any larger one, answers well.
DEMO_EXAMPLES = [
    "Tell me a story about a fox",
    "How does continuous batching work?",
    "Write a table of the planets",
    "Write a Python function that checks for primes",
]
EXAMPLES = [
    "Explain what an algorithm is",
    "Give me three tips for sleeping better",
    "Describe a sunset at the beach in one paragraph",
    "What are the benefits of regular exercise?",
]

_templates = Jinja2Templates(templates_dir())


def render_page(request: Request, name: str, **variables: Any) -> Response:
    """Return a page. variables: those of its template beside the common ones."""
    service = get_service(request)
    settings = service.settings
    base = settings.root_path
    context = {
        "version": __version__,
        "model": settings.model_name,
        "base": base,
        "page": name,
        "title": settings.page_title,
        "examples": _examples(settings),
        "system_prompt": settings.page_system_prompt,
        "sampling": effective_defaults(service.text.sampling_defaults),
        "resume_seconds": int(MAX_RESUME_SECONDS),
        "keeps_rows": service.state_file is not None,
        "has_tools": bool(settings.mcp),
        "asset": lambda path: f"{base}/static/{version()}/{path}",
        "bundled": bundled,
        **variables,
    }
    return _templates.TemplateResponse(request, f"{name}.html", context, headers=SECURITY_HEADERS)


def _examples(settings: Settings) -> list[str]:
    """Return the operator's example questions, or those that suit the model."""
    if settings.page_examples is None:
        return DEMO_EXAMPLES if Path(settings.engine.model).resolve() == demo_model() else EXAMPLES
    return [line.strip() for line in settings.page_examples.splitlines() if line.strip()]


async def chat_page(request: Request) -> Response:
    """GET /: the chat page."""
    return render_page(request, "chat")


async def engine_page(request: Request) -> Response:
    """GET /engine: the engine page."""
    return render_page(request, "engine")


async def preview(_: Request) -> Response:
    """GET /preview: a frame that shows one document, which the chat page sends to it."""
    return FileResponse(templates_dir() / "preview.html", headers=PREVIEW_HEADERS)


async def mermaid_preview(request: Request) -> Response:
    """GET /preview/mermaid: a frame that draws one diagram, whose text the chat page sends to it."""
    nonce = secrets.token_urlsafe(16)
    base = get_service(request).settings.root_path
    library = f"{base}/static/{version()}/vendor/mermaid/mermaid.tiny.js"
    headers = PREVIEW_HEADERS | {"Content-Security-Policy": DIAGRAM_POLICY.format(nonce=nonce)}
    context = {"nonce": nonce, "library": library}
    return _templates.TemplateResponse(request, "preview_mermaid.html", context, headers=headers)


async def manifest(request: Request) -> Response:
    """GET /manifest.webmanifest: the name and the icons with which browsers install the chat page."""
    settings = get_service(request).settings
    base, name = settings.root_path, settings.page_title
    icons = [
        {"src": f"{base}/static/{version()}/favicon.svg", "sizes": "any", "type": "image/svg+xml", "purpose": purpose}
        for purpose in ("any", "maskable")
    ]
    body = {"name": name, "short_name": name, "start_url": f"{base}/", "scope": f"{base}/", "display": "standalone"}
    colors = {"background_color": "#f4f5f8", "theme_color": "#f4f5f8"}
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return JSONResponse(body | colors | {"icons": icons}, headers=headers, media_type="application/manifest+json")


async def service_worker(_: Request) -> Response:
    """GET /service_worker.js: the chat page's service worker, whose address bounds the pages that it serves."""
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return FileResponse(static_dir() / "js" / "service_worker.js", headers=headers, media_type="text/javascript")


async def icon(_: Request) -> Response:
    """GET /favicon.ico: the icon that pages link, for browsers that ignore the link or have no page."""
    headers = {"Cache-Control": "public, max-age=86400", "X-Content-Type-Options": "nosniff"}
    return FileResponse(static_dir() / "favicon.svg", headers=headers)
