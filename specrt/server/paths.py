"""Paths that clients write otherwise."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class TrailingSlashMiddleware:
    """A path with slashes at its end is the path without: a redirect would lose the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope["path"] = scope["path"].rstrip("/") or "/"
        await self.app(scope, receive, send)
