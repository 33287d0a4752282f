"""A small Hub on the loopback interface, which can be told to fail."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/tiny"
WRONG_TOKEN = "Invalid credentials in Authorization header"


class Stub(ThreadingHTTPServer):
    """What it serves, and how it fails.

    Attributes:
        files: Name to content, of the one repository.
        failure: Sent in place of everything: ``401``, ``token``, ``gated``, ``404``,
            ``revision``, ``503``, ``cut``, ``html`` or ``json``; empty: none.
        fail_files_only: Let the listing pass.
        cuts: The next answers with a file's content end after so many bytes.
        lfs: Files whose tag is their sha256.
        damaged: What is sent in place of some files, under their tags.
        ranges: Of all requests that had one.
        sizes: What the listing says of files' sizes where it isn't so.
        stalls: The bytes of a file that are sent; then nothing comes. -1: all.
        facts: What the listing says beside files and commit.
        found: The answer to a search.
        renamed: Old name to new: asked for the old one, it redirects to the new one's listing.
        elsewhere: Where files are redirected to; empty: they are sent.
        asked: The paths of all requests.
        tokens: What each request carried in ``Authorization``.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.failure = ""
        self.fail_files_only = False
        self.cuts: list[int] = []
        self.lfs: set[str] = set()
        self.damaged: dict[str, bytes] = {}
        self.ranges: list[str] = []
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.sizes: dict[str, int] = {}
        self.stalls = -1
        self.facts: dict[str, object] = {}
        self.renamed: dict[str, str] = {}
        self.found: object = []
        self.elsewhere = ""
        self.let_go = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, *args: object) -> None:
        pass

    def _serve(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        self.server.tokens.append(self.headers.get("Authorization", ""))
        listing = path.startswith("/api/")
        if self.server.failure and not (listing and self.server.fail_files_only):
            self._fail(self.server.failure)
        elif (name := path.removeprefix("/api/models/")) in self.server.renamed:
            place = f"/api/models/{self.server.renamed[name]}"
            self._send(b"", 307, {"Location": place})
        elif self.server.elsewhere and "/resolve/" in path:
            self._send(b"", 302, {"Location": f"{self.server.elsewhere}{self.path}"})
        elif path == "/api/models":
            self._send(json.dumps(self.server.found).encode())
        elif "/tree/" in path:
            self._send(json.dumps([self._tree_entry(name) for name in self.server.files]).encode())
        elif listing:
            self._send(json.dumps(self._info()).encode())
        elif (name := path.rpartition("/")[2]) in self.server.files:
            self._send_file(name, self.server.files[name])
        else:
            self._send(b"Entry not found", 404, {"X-Error-Code": "EntryNotFound"})

    def _info(self) -> dict[str, object]:
        files = self.server.files
        siblings: list[dict[str, object]] = [{"rfilename": name} for name in files]
        if "blobs=true" in self.path:
            sizes = {name: len(files[name]) for name in files} | self.server.sizes
            siblings = [{"rfilename": name, "size": sizes[name]} for name in files]
        record = {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings, "private": False}
        return record | self.server.facts

    def _tree_entry(self, name: str) -> dict[str, object]:
        content = self.server.files[name]
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}

    def _send_file(self, name: str, content: bytes) -> None:
        digest = hashlib.sha256 if name in self.server.lfs else hashlib.sha1
        headers = {"ETag": f'"{digest(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        content = self.server.damaged.get(name, content)
        if self.headers.get("Range"):
            self.server.ranges.append(self.headers["Range"])
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
            span = f"bytes {start}-{end}/{len(content)}"
            self._send(content[start : end + 1], 206, headers | {"Content-Range": span})
        else:
            self._send(content, 200, headers)

    def _fail(self, failure: str) -> None:
        token = self.headers.get("Authorization", "")
        answers: dict[str, tuple[int, bytes, dict[str, str]]] = {
            "401": (401, b"{}", {"X-Error-Message": f"bad {token}"}),
            "token": (401, b"{}", {"X-Error-Message": WRONG_TOKEN}),
            "gated": (403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": token}),
            "404": (404, b"{}", {"X-Error-Code": "RepoNotFound"}),
            "revision": (404, b"{}", {"X-Error-Code": "RevisionNotFound"}),
            "503": (503, b"busy", {}),
            "html": (200, b"<html>Please sign in to the network</html>", {}),
            "json": (200, b"[1, 2]", {}),
        }
        if failure == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.send_header("ETag", '"x"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            self.wfile.write(b"0123456789")
            self.close_connection = True
            return
        status, body, headers = answers[failure]
        self._send(body, status, headers)

    def _send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.server.cuts
        if status in (200, 206) and "/resolve/" in self.path and cuts and cuts[0] < len(body):
            body = body[: cuts.pop(0)]
            self.close_connection = True
        if 0 <= self.server.stalls < len(body) and "/resolve/" in self.path:
            self.wfile.write(body[: self.server.stalls])
            self.wfile.flush()
            self.server.let_go.wait()
            self.close_connection = True
            return
        self.wfile.write(body)


@contextmanager
def running_stub() -> Iterator[Stub]:
    """Serve until the block ends."""
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            stub.let_go.set()
            stub.shutdown()
            thread.join()
