"""The server of `normlab watch`: loopback only, read-only, a token in the address, Host and Origin checked.

Other pages in the same browser can send requests to this machine: what does not carry the token, comes from another origin
or names another host is answered 403, before anything is read. starlette and uvicorn are imported here only.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from normlab.errors import InputError, need, require
from normlab.report.page import environment, plotly_script
from normlab.report.terminal import finite
from normlab.results import Plain
from normlab.ui import view
from normlab.ui.feed import FolderFeed

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
Message = MutableMapping[str, object]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, object], Callable[[], Awaitable[Message]], Send], Awaitable[None]]
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the token stands in the address
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def application(feed: FolderFeed, *, token: str, port: int) -> Guard:
    """The ASGI application over a feed."""
    require("starlette", extra="watch", purpose="`normlab watch`")
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    template = environment(Path(__file__).parent / "templates").get_template("watch.html")
    folder = f"{feed.root.parent.name}/{feed.root.name}"

    def page(request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        text = template.render(token=token, nonce=nonce, folder=folder)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}' 'self'; style-src 'unsafe-inline'; img-src data: blob:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    def script(request: Request) -> Response:
        return Response(
            plotly_script(), media_type="text/javascript", headers={"Cache-Control": "private, max-age=3600"}
        )

    def state(request: Request) -> Response:
        revision = feed.refresh()
        if request.query_params.get("since") == str(revision):
            return Response(status_code=204)
        return answer(view.state(feed))

    def run(request: Request) -> Response:
        feed.refresh()
        found = feed.runs.get(request.query_params.get("id", ""))  # a name that was found, never a path
        return answer(None if found is None else view.one(found), 404 if found is None else 200)

    def answer(body: Plain, status: int = 200) -> Response:
        text = json.dumps(finite(body), allow_nan=False, separators=(",", ":"))
        return Response(text, status, media_type="application/json")

    routes = [Route("/", page), Route("/plotly.js", script), Route("/state", state), Route("/run", run)]
    return Guard(Starlette(routes=routes), token=token, port=port)


class Guard:
    """Who may ask. A plain ASGI wrapper, so that nothing behind it is reached by what it refuses."""

    def __init__(self, app: Starlette, *, token: str, port: int) -> None:
        self.app, self.token = app, token
        self.hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refused = "this is no page" if scope["type"] != "http" else self.refusal(scope)

        async def kept(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = list(message.get("headers", []))  # type: ignore[call-overload]
                given = {key.lower() for key, _ in known}
                more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in given]
                message["headers"] = known + more
            await send(message)

        if refused:
            status = 405 if refused == READ_ONLY else 403
            await kept({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
            await kept({"type": "http.response.body", "body": refused.encode()})
            return
        await self.app(scope, receive, kept)

    def refusal(self, scope: MutableMapping[str, object]) -> str:
        """Why not, or nothing."""
        headers: dict[bytes, str] = {}
        for key, value in scope["headers"]:  # type: ignore[attr-defined]
            headers[key.lower()] = value.decode("latin-1")
        if headers.get(b"host", "") not in self.hosts:
            return "another host was asked for: open the address that `normlab watch` printed"
        if headers.get(b"origin", next(iter(self.origins))) not in self.origins:
            return "requests of other pages are refused"
        if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            return "requests of other pages are refused"
        if scope["method"] not in ("GET", "HEAD"):
            return READ_ONLY
        given = parse_qs(bytes(scope["query_string"]).decode("latin-1")).get("token", [""])  # type: ignore[arg-type, call-overload]
        if len(given) != 1 or not secrets.compare_digest(given[0].encode(), self.token.encode()):
            return "the token is missing or wrong: open the address that `normlab watch` printed"
        return ""


READ_ONLY = "nothing is changed here: GET and HEAD only"


def serve(folder: Path, *, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `ready` is told the address. Port 0 takes a free one."""
    need("starlette", "jinja2", "plotly", extra="watch", purpose="`normlab watch`")
    uvicorn = require("uvicorn", extra="watch", purpose="`normlab watch`")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); give another --port, or 0 for a free one"
        ) from None
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    feed = FolderFeed(folder)
    threading.Thread(target=feed.refresh, daemon=True).start()  # long logs are read while the browser opens
    app = application(feed, token=token, port=port)
    ready(f"http://{LOOPBACK}:{port}/?token={token}")
    config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])
