"""A Hub on the loopback interface that makes repositories and takes commits."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WritingHub(ThreadingHTTPServer):
    """What it was told, and how it fails.

    Attributes:
        repositories: Name to files.
        refusals: Part of a path to the status that a request there gets.
        tokens: All Authorization headers.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, int] = {}
        self.tokens: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: WritingHub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/")
        status = 404 if name.count("/") == 1 and name not in self.server.repositories else 200
        about = {"name": "me", "type": "user", "id": name, "sha": "0" * 40, "siblings": []}
        self._answer(about, status)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        token = self.headers.get("Authorization", "")
        self.server.tokens.add(token)
        for part, status in self.server.refusals.items():
            if part in self.path:
                self._answer({"error": f"no, {token}"}, status)
                return
        if self.path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about.get('organization') or 'me'}/{about['name']}"
            status = 409 if name in self.server.repositories else 200
            self.server.repositories.setdefault(name, {})
            self._answer({"url": f"{self.server.endpoint}/{name}", "id": name}, status)
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self._answer({"files": modes})
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in body.decode().splitlines():
                record = json.loads(line)
                if record["key"] == "file":
                    content = base64.b64decode(record["value"]["content"])
                    self.server.repositories[name][record["value"]["path"]] = content
            url = f"{self.server.endpoint}/{name}/commit/{'0' * 40}"
            self._answer({"commitUrl": url, "commitOid": "0" * 40})
        else:
            self._answer({}, 200)

    def _answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running_hub() -> Iterator[WritingHub]:
    """Serve until the block ends."""
    with WritingHub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
