"""The demo's server: routes, limits and headers around `kinds.served.Served`.

The server trusts no client. It measures bodies while they arrive, works in a few threads behind a
bounded queue, answers malformed requests with a 4xx status and a one-line error, and writes nothing
to disk.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airscene.demo.requests import Served, image_from_json, read_image, read_json
from airscene.demo.schema import openapi
from airscene.errors import AirsceneError

MOST_BYTES = 10_000_000
MOST_JSON = 4_000_000
"""Maximum bytes of a JSON body. Parsing takes up to fifty times as much memory."""
AT_A_TIME = 2
WAITING = 16
SECONDS = 30.0
"""Time limit for a body to arrive, and again for the answer."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PAGE = {
    "/": ("index.html", "text/html"),
    "/api": ("api.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Desk:
    """Bounded queue of work for a few threads; rejects requests when it is full."""

    def __init__(self, at_a_time: int = AT_A_TIME, waiting: int = WAITING):
        self.most, self.taken = at_a_time + waiting, 0
        self.threads = ThreadPoolExecutor(at_a_time, thread_name_prefix="airscene")

    async def __call__(self, request: Request, work: Callable[[bytes], Any]) -> Any:
        """Reserve a place, read the body, then do the work in a thread."""
        if self.taken >= self.most:
            await _body(request, keep=False)  # a client cut off while sending sees no answer
            raise HTTPException(503, "too many requests; try again later", {"Retry-After": "1"})
        self.taken += 1
        try:
            body = await _body(request)
            job = asyncio.get_running_loop().run_in_executor(self.threads, work, body)
        except BaseException:
            self._done()
            raise
        job.add_done_callback(self._done)  # even after a timeout
        try:
            return await asyncio.wait_for(asyncio.shield(job), SECONDS)
        except TimeoutError:
            raise HTTPException(503, f"no answer within {SECONDS:g} seconds") from None

    def _done(self, job: "asyncio.Future[Any] | None" = None) -> None:
        self.taken -= 1
        if job is not None and not job.cancelled():
            job.exception()  # mark it as retrieved, even after a timeout


def make_app(
    models: Mapping[str, Served], loopback_only: bool = True, desk: Desk | None = None
) -> Any:
    """Make the application. Requests that name no model get the first one."""
    demo = Demo(models, desk or Desk())
    routes = [
        Route("/models", demo.list_models, methods=["GET"]),
        Route("/infer", demo.infer, methods=["POST"]),
        Route("/render", demo.render, methods=["POST"]),
        Route("/sample", demo.sample, methods=["GET"]),
        Route("/openapi.json", demo.schema, methods=["GET"]),
        *(_static(path, name, kind) for path, (name, kind) in PAGE.items()),
    ]
    handlers: Any = {
        HTTPException: _http_error,
        AirsceneError: _bad_request,
        ClientDisconnect: _gone,
        Exception: _our_fault,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), loopback_only)


class Demo:
    """The endpoints of the API."""

    def __init__(self, models: Mapping[str, Served], desk: Desk):
        self.models, self.desk = models, desk

    async def list_models(self, request: Request) -> Response:
        """List the models."""
        return JSONResponse([model.about() for model in self.models.values()])

    async def schema(self, request: Request) -> Response:
        """Return the description of the API."""
        return JSONResponse(openapi(list(self.models)))

    async def infer(self, request: Request) -> Response:
        """Find the objects in the image in the body."""
        model, kind = self._model(request), _content_type(request)
        names = ("patches", "preview", "invert", "seen", "outlines")
        patches, shown, inverted, seen, outlines = (_flag(request, name) for name in names)
        whole = _flag(request, "whole") if "whole" in request.query_params else None
        tile = _number(request, "tile", 2, 10_000)

        def work(body: bytes) -> dict[str, Any]:
            as_json = kind == "application/json"
            image = image_from_json(_json(body)) if as_json else read_image(body)
            image = 1 - image if inverted else image
            answer = model.infer(image, patches, seen, whole=whole, tile=tile, outlines=outlines)
            if shown:
                asked = whole if tile is None else True
                answer["image"] = model.preview(image, seen, asked)
            return answer

        return JSONResponse(await self.desk(request, work))

    async def render(self, request: Request) -> Response:
        """Render the scene that the body describes."""
        model = self._model(request)
        if _content_type(request) != "application/json":
            raise HTTPException(415, "send the scene as application/json")
        answer = await self.desk(request, lambda body: model.render(_json(body)))
        return JSONResponse(answer)

    async def sample(self, request: Request) -> Response:
        """Sample a random scene."""
        model, patches = self._model(request), _flag(request, "patches")
        n = _number(request, "n", 0, 1000)
        seed = _number(request, "seed", 0, 2**31 - 1) or 0
        return JSONResponse(await self.desk(request, lambda _: model.sample(n, seed, patches)))

    def _model(self, request: Request) -> Served:
        name = request.query_params.get("model", next(iter(self.models)))
        if name not in self.models:
            names = ", ".join(self.models)
            raise HTTPException(404, f"no model {name[:60]!r}; available: {names}")
        return self.models[name]


# --- Requests --------------------------------------------------------------------------------


def _content_type(request: Request) -> str:
    """Return the media type of the body. The format of an image is read from its first bytes."""
    kind = request.headers.get("content-type", "application/octet-stream")
    kind = kind.partition(";")[0].strip().lower()
    known = ("application/json", "application/octet-stream", "application/x-npy")
    if kind not in known and not kind.startswith("image/"):
        raise HTTPException(415, "send an image as image/* or application/octet-stream, or JSON")
    return kind


async def _body(request: Request, keep: bool = True) -> bytes:
    """Read the body within the limits on size and time. Content-Length is ignored."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise HTTPException(413, f"the body is larger than {MOST_BYTES // 10**6} MB")
                if keep:
                    parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {SECONDS:g} seconds") from None
    return b"".join(parts)


def _json(body: bytes) -> Any:
    if len(body) > MOST_JSON:
        raise HTTPException(413, f"the JSON is larger than {MOST_JSON // 10**6} MB")
    return read_json(body)


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "0").lower()
    if value not in ("0", "1", "false", "true"):
        raise HTTPException(400, f"{name} must be 0 or 1")
    return value in ("1", "true")


def _number(request: Request, name: str, least: int, most: int) -> int | None:
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise HTTPException(400, f"{name} must be a whole number from {least} to {most}")
    return int(text)


# --- Answers ---------------------------------------------------------------------------------


def _static(path: str, name: str, kind: str) -> Route:
    content = (Path(str(files("airscene"))) / "demo" / "page" / name).read_bytes()

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(path, serve, methods=["GET"])


def error(status: int, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a one-line error."""
    return JSONResponse({"error": " ".join(line.split())}, status, headers)


async def _http_error(request: Request, problem: HTTPException) -> Response:
    return error(problem.status_code, problem.detail, problem.headers)


async def _bad_request(request: Request, problem: AirsceneError) -> Response:
    return error(400, str(problem))


async def _gone(request: Request, problem: ClientDisconnect) -> Response:
    return error(400, "the client disconnected")


async def _our_fault(request: Request, problem: Exception) -> Response:
    return error(500, "internal error; see the output of the server")


class Guard:
    """Wrapper that rejects foreign requests, adds headers and logs unexpected errors."""

    def __init__(self, app: ASGIApp, loopback_only: bool):
        self.app, self.loopback_only = app, loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, even if the application raises."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer: Callable[[Scope, Receive, Send], Awaitable[None]]
        answer = _refusal(Headers(scope=scope), self.loopback_only) or self.app
        try:
            await answer(scope, receive, send_with_headers)
        except Exception:  # the answer was already sent
            traceback.print_exc(file=sys.stderr)


def _refusal(headers: Headers, loopback_only: bool) -> Response | None:
    """Reject foreign pages: by host name (against DNS rebinding) or by origin."""
    host = headers.get("host", "")
    if loopback_only and _name(f"//{host}") not in LOOPBACK:
        return error(421, "this server only accepts requests to localhost")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return error(403, "this server only accepts requests from its own page")
    return None


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
