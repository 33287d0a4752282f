"""Small questions to the Hub: JSON, and the beginnings of files; the standard library alone.

The Hub's own library takes longer to import than a command without torch may start. The token goes
to the Hub's own address only, never along with a redirect elsewhere.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urljoin, urlsplit

from poros._version import __version__
from poros.errors import PorosError, PorosHubError
from poros.hub_errors import NO_REPOSITORY, kind_of, not_the_hubs, refusal, unreachable
from poros.hub_names import HubName, checked_endpoint, token
from poros.os_errors import refused

_MOST_REDIRECTS = 5
_MOST_BYTES = 64_000_000
"""Of a small answer: larger ones are no config, list or header."""
_PIECE_BYTES = 1 << 20
_WRONG_TOKEN = "Invalid credentials in Authorization header"
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the HTTP status, the headers, the first bytes of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HubClient:
    """Asks about one repository.

    Args:
        model: The repository.
        timeout_s: For each answer to begin, and for each piece of it.

    Raises:
        PorosHubError: The user's token, or the Hub's address, can't be one.
    """

    def __init__(self, model: HubName, *, timeout_s: float = 15.0) -> None:
        """Nobody is asked yet."""
        self.model, self._timeout_s = model, timeout_s
        self.endpoint, self._token = checked_endpoint(), token()
        self._opener = urllib.request.build_opener(_NoRedirects, _Https)

    def info(self) -> dict[str, Any]:
        """What the Hub says of the revision: files with sizes, licence, terms.

        Raises:
            PorosHubError: It says no, or something else answers.
        """
        path = f"/api/models/{self.model.name}"
        if self.model.revision:
            path += f"/revision/{quote(self.model.revision, safe='')}"
        record = self._json(self._get(f"{self.endpoint}{path}?blobs=true", _MOST_BYTES).body)
        if not isinstance(record, dict) or not isinstance(record.get("siblings"), list):
            raise not_the_hubs("no list of files", self.model.where, self.endpoint)
        return record

    def ask(self, path: str) -> Any:
        """The JSON that an address below the Hub's gives.

        Raises:
            PorosHubError: It can't be had, or is no JSON.
        """
        return self._json(self._get(f"{self.endpoint}{path}", _MOST_BYTES).body)

    def knock(self, path: str) -> tuple[int, Any]:
        """The HTTP status of an address below the Hub's, and its JSON if it has any.

        Raises:
            PorosHubError: Nobody answers.
        """
        try:
            answer = self._follow(f"{self.endpoint}{path}", _MOST_BYTES, is_part=False)
        except PorosError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise unreachable(kind_of(error), self.model.where) from None
        try:
            return answer.status, json.loads(answer.body)
        except (ValueError, RecursionError):
            return answer.status, None

    def json(self, commit: str, file: str) -> Any:
        """A JSON file of a commit.

        Raises:
            PorosHubError: It can't be had, or is no JSON.
        """
        return self._json(self._get(self._address(commit, file), _MOST_BYTES).body)

    def beginning(self, commit: str, file: str, num_bytes: int) -> bytes:
        """The first bytes of a file, fewer if it is shorter.

        Raises:
            PorosHubError: They can't be had.
        """
        return self._get(self._address(commit, file), num_bytes, is_part=True).body

    def _address(self, commit: str, file: str) -> str:
        return f"{self.endpoint}/{self.model.name}/resolve/{quote(commit)}/{quote(file)}"

    def _json(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            kind = type(error).__name__
            raise not_the_hubs(kind, self.model.where, self.endpoint) from None

    def _get(self, address: str, num_bytes: int, *, is_part: bool = False) -> Answer:
        try:
            answer = self._follow(address, num_bytes, is_part=is_part)
        except PorosError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise unreachable(kind_of(error), self.model.where) from None
        if answer.status not in (200, 206):
            raise refusal(
                answer.status,
                _code(answer),
                self.model.name,
                self.model.revision or None,
                self.endpoint,
            )
        return answer

    def _follow(self, address: str, num_bytes: int, *, is_part: bool) -> Answer:
        for _ in range(_MOST_REDIRECTS):
            answer = self._once(address, num_bytes, is_part=is_part)
            place = answer.headers.get("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not place:
                return answer
            query = urlsplit(address).query
            address = urljoin(address, place)
            if query and not urlsplit(address).query:
                address += f"?{query}"  # a renamed repository is asked the same
            if urlsplit(address).scheme not in ("http", "https"):
                raise not_the_hubs("a redirect to no web address", self.model.where, self.endpoint)
        raise not_the_hubs("redirects without end", self.model.where, self.endpoint)

    def _once(self, address: str, num_bytes: int, *, is_part: bool) -> Answer:
        request = urllib.request.Request(address, headers={"User-Agent": f"poros/{__version__}"})
        if self._token and _origin(address) == _origin(self.endpoint):
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        if is_part:
            request.add_header("Range", f"bytes=0-{num_bytes - 1}")
        try:
            response = self._opener.open(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _headers(error), b"")
        with response:
            body = _read(response, num_bytes)
            return Answer(response.status, _headers(response), body)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like others: who follows it decides what goes along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


class _Https(urllib.request.HTTPSHandler):
    """Certificates are read, which takes a while, once and when an https address is asked first."""

    def __init__(self) -> None:
        """Not the parent's, which reads them at once."""
        urllib.request.AbstractHTTPHandler.__init__(self)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask with the certificates of the process's environment."""
        named = next((os.environ[name] for name in _CERTIFICATES if os.environ.get(name)), None)
        connection: Any = http.client.HTTPSConnection
        return self.do_open(connection, req, context=_tls(named))


@cache
def _tls(named: str | None) -> ssl.SSLContext:
    """Certificates as the user named them, the system's, or those that come with packages."""
    if named is None and not _has_system_certificates(ssl.get_default_verify_paths()):
        try:
            import certifi  # type: ignore[import-not-found,unused-ignore]  # where it is installed

            named = str(certifi.where())
        except ImportError:
            named = None
    is_folder = named is not None and Path(named).is_dir()
    try:
        return ssl.create_default_context(
            cafile=None if is_folder else named, capath=named if is_folder else None
        )
    except OSError as error:
        raise refused(
            PorosHubError,
            "certificates can't be read",
            error,
            where=str(named),
            remediation=f"correct or unset {', '.join(_CERTIFICATES)}",
        ) from None


def _has_system_certificates(paths: Any) -> bool:
    folder = Path(paths.capath or "/nowhere")
    return bool(paths.cafile) or (folder.is_dir() and any(folder.iterdir()))


def _code(answer: Answer) -> str:
    """The Hub's word for a refusal.

    Of a name that nobody has it says 401 to strangers, as of a private one, and no word.
    """
    code = answer.headers.get("X-Error-Code", "")
    is_token = answer.headers.get("X-Error-Message", "") == _WRONG_TOKEN
    return NO_REPOSITORY if answer.status == 401 and not code and not is_token else code


def _read(response: IO[bytes], num_bytes: int) -> bytes:
    """The first bytes of a body.

    Raises:
        http.client.IncompleteRead: It ended before it had said it would.
    """
    promised = _headers(response).get("Content-Length", "")
    wanted = min(num_bytes, int(promised)) if promised.isdigit() else num_bytes
    pieces, left = [], wanted
    while left and (piece := response.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if left and promised:
        raise http.client.IncompleteRead(b"".join(pieces), left)
    return b"".join(pieces)


def _headers(response: Any) -> Mapping[str, str]:
    headers: Mapping[str, str] = response.headers
    return headers


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port
