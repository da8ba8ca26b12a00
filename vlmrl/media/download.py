"""Files behind http(s) URLs: fetched once, within a deadline and a size, from public addresses only.

A data set's URLs are as untrusted as its files. A server that drips bytes runs into the deadline, one
that never ends into the size; a redirect may lead neither to another scheme nor, unless allowed, to
this machine or a private network, whatever a host name resolves to.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import os
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlmrl.errors import MediaError

CHUNK = 65536


class _Refused(OSError):
    """Where a URL leads is not allowed."""


def download(
    url: str, seconds: float, max_bytes: int, allow_private: bool, cache: str | None
) -> bytes:
    """Return the file behind a URL, from the cache if it was fetched before.

    `cache` is a folder; None: `vlmrl/urls` in the user's cache.

    Raises:
        MediaError: no http(s) URL, no answer, one that takes longer than `seconds` or is larger than
            `max_bytes`, or an address that is not allowed; the message names the URL.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise MediaError(f"{url}: only http and https URLs are fetched")
    kept = _cache_folder(cache) / hashlib.sha256(url.encode()).hexdigest()
    if kept.is_file():
        return kept.read_bytes()
    try:
        data = _fetch(url, seconds, max_bytes, allow_private)
    except urllib.error.HTTPError as error:
        raise MediaError(f"{url}: cannot be fetched: {error}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise MediaError(f"{url}: cannot be fetched: {reason}") from error
    part = kept.with_name(f"{kept.name}.{os.getpid()}.part")
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(data)
            part.replace(kept)
        finally:
            part.unlink(missing_ok=True)
    return data


def _cache_folder(cache: str | None) -> Path:
    if cache is not None:
        return Path(cache)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "vlmrl" / "urls"


def _fetch(url: str, seconds: float, max_bytes: int, allow_private: bool) -> bytes:
    end = time.monotonic() + seconds
    too_large = f"{url}: larger than data.max_media_mb ({max_bytes / 2**20:g} MiB)"
    data = bytearray()
    with _opener(allow_private).open(url, timeout=seconds) as reply:
        if int(reply.headers.get("Content-Length") or 0) > max_bytes:
            raise MediaError(too_large)
        while chunk := reply.read1(
            CHUNK
        ):  # what is there, not a full chunk: see the deadline below
            data += chunk
            if len(data) > max_bytes:
                raise MediaError(too_large)
            if time.monotonic() > end:
                raise MediaError(f"{url}: not fetched within data.url_timeout_s ({seconds:g} s)")
        if reply.length:
            raise MediaError(f"{url}: the connection ended {reply.length} bytes too early")
    return bytes(data)


def _opener(allow_private: bool) -> urllib.request.OpenerDirector:
    """Return an opener of http and https alone: urllib's own also opens files and ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
        _Public(allow_private),
    ):
        opener.add_handler(handler)
    return opener


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same scheme, and from http to https."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """See `HTTPRedirectHandler`."""
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after not in (before, "https"):
            raise _Refused(f"it redirects from {before} to {after}: {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Public(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, allow_private: bool) -> None:
        super().__init__()
        self._allow_private = allow_private

    def http_open(self, req: Any) -> Any:
        """See `HTTPHandler`."""
        return self.do_open(partial(_Connection, allow_private=self._allow_private), req)

    def https_open(self, req: Any) -> Any:
        """See `HTTPSHandler`."""
        return self.do_open(partial(_SecureConnection, allow_private=self._allow_private), req)


class _Connection(http.client.HTTPConnection):
    def __init__(self, *arguments: Any, allow_private: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._allow_private = allow_private

    def connect(self) -> None:
        """Connect, and go no further where the address is not allowed."""
        super().connect()
        _check_peer(self, self._allow_private)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""


def _check_peer(connection: http.client.HTTPConnection, allow_private: bool) -> None:
    """Raise if the address that was reached is private: a name may resolve to any address."""
    address = ipaddress.ip_address(connection.sock.getpeername()[0].partition("%")[0])
    public = (getattr(address, "ipv4_mapped", None) or address).is_global
    if not (public or allow_private):
        connection.close()
        raise _Refused(
            f"{connection.host} is the private address {address}; data.allow_private_urls allows it"
        )
