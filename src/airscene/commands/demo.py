"""`airscene demo`."""

import contextlib
import errno
import socket
import webbrowser
from dataclasses import dataclass
from typing import Annotated, Any

from airscene.commands.help import Help
from airscene.commands.options import parse
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

HELP = Help(
    "Serve a page to draw on. The model finds the objects while you draw. Press Ctrl-C to stop.",
    examples=("demo", "demo runs/cells --port 0"),
)


def demo(argv: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Demo:
        models: Annotated[tuple[str, ...], Positional] = ()
        """Models to list first: bundled models, run folders or weights files (default: digits)."""
        host: str = "127.0.0.1"
        """Address to listen on. With 0.0.0.0, others in your network can use the page."""
        port: int = 8000
        """Port to listen on; 0 picks a free one."""
        browser: bool = True
        """Open the page in a browser."""

    options = parse(Demo, "airscene demo", argv, HELP)
    uvicorn, make_app = _import_server()
    listening = _listen(options.host, options.port)
    with listening:
        use_compilation_cache()
        from airscene.demo.requests import load_models

        models = load_models(options.models)
        print("warming up …", flush=True)
        next(iter(models.values())).warm_up()
        loopback = options.host in ("localhost", "::1") or options.host.startswith("127.")
        address = _address(options.host, listening.getsockname()[1])
        print(f"airscene is at {address} (press Ctrl-C to stop)", flush=True)
        if options.browser:
            webbrowser.open(address)
        _serve(uvicorn, make_app(models, loopback_only=loopback), listening)
    return 0


def _import_server() -> tuple[Any, Any]:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise AirsceneError("the demo needs Starlette: pip install 'airscene[demo]'") from None
    from airscene.demo.server import make_app

    return uvicorn, make_app


def _listen(host: str, port: int) -> socket.socket:
    """Bind the port before anything slow happens."""
    if not 0 <= port <= 65535:
        raise AirsceneError(f"--port must be between 0 and 65535, not {port}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = "the port is taken; --port 0 picks a free one"
        reason = reason if error.errno == errno.EADDRINUSE else str(error.strerror or error)
        raise AirsceneError(f"cannot listen on {host}:{port} ({reason})") from None


def _address(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}/"


def _serve(uvicorn: Any, app: Any, listening: socket.socket) -> None:
    """Serve until Ctrl-C or a termination signal."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        limit_concurrency=128,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
