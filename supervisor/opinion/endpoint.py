"""Asks an OpenAI-compatible endpoint: one POST of a chat completion, with a deadline. (I/O)

Only https leaves this host, unless the setting `second-opinion-plain-http` says otherwise; plain http to this host
itself is fine, and uses no proxy. Redirects are not followed: the key and the lines go to the address that the user
named and to no other. The key comes from a file that only the user can read, or from FTRUN_SECOND_OPINION_KEY, and
stands in no message.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import stat
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.endpoint_url import parse_endpoint_url
from ftrun.supervisor.model.errors import SettingError, UserError

KEY_VARIABLE = "FTRUN_SECOND_OPINION_KEY"
ANSWER_BYTES = 256 * 1024
KEY_BYTES = 4096
_CHUNK_BYTES = 16 * 1024


class NoAnswer(Exception):
    """The endpoint gave no answer; one line that says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask. `url` is the whole address of chat completions."""

    url: str
    host: str
    model: str = ""
    key_file: str = ""
    limit_s: float = 20.0
    per_day: int = 20

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Endpoint | None:
        """The endpoint of validated settings; None where none is set. Raises UserError."""
        text = str(settings.get("second-opinion", ""))
        if not text:
            return None
        try:
            url, host, place = parse_endpoint_url("second-opinion", text)
        except SettingError as error:
            raise UserError(str(error)) from None
        plain = bool(settings.get("second-opinion-plain-http"))
        if url.startswith("http:") and not _is_this_host(host) and not plain:
            raise UserError(
                "second-opinion: https is wanted for another host (or second-opinion-plain-http = true)"
            )
        return cls(
            url,
            place,
            str(settings.get("second-opinion-model", "")),
            str(settings.get("second-opinion-key-file", "")),
            float(settings.get("second-opinion-limit", 20.0)),
            int(settings.get("second-opinion-per-day", 20)),
        )

    @property
    def by(self) -> str:
        """Whom an answer is from, for people."""
        return f"{self.model} at {self.host}" if self.model else self.host


def _is_this_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_key(path: str, env: Mapping[str, str]) -> str:
    """The key; "" where none is set. Raises NoAnswer if the file is not the user's alone, or holds no key."""
    if not path:
        return _valid_key(env.get(KEY_VARIABLE, ""), KEY_VARIABLE)
    try:
        descriptor = os.open(
            os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        )
    except OSError as error:
        raise NoAnswer(f"second-opinion-key-file: {path}: {error.strerror}") from None
    try:
        fact = os.fstat(descriptor)
        if not stat.S_ISREG(fact.st_mode) or fact.st_uid != os.geteuid() or fact.st_mode & 0o077:
            raise NoAnswer(
                f"second-opinion-key-file: {path}: it must be a file of yours that only you can read (chmod 600)"
            )
        content = os.read(descriptor, KEY_BYTES)
    except OSError as error:
        raise NoAnswer(f"second-opinion-key-file: {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return _valid_key(content.decode("ascii", "replace").strip(), path)


def _valid_key(key: str, where: str) -> str:
    if any(not "!" <= sign <= "~" for sign in key):
        raise NoAnswer(f"{where}: one word is wanted, the key alone")
    return key


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """No redirect is followed."""


class Request(threading.Thread):
    """One POST, begun at once, beside the caller.

    `over` is true when there is an answer or will be none: `content` is the body, "" after a failure, and `why`
    says what failed. A server that does not keep to the limit is left to itself.
    """

    def __init__(self, endpoint: Endpoint, body: bytes, env: Mapping[str, str]) -> None:
        super().__init__(name="second-opinion", daemon=True)
        self._endpoint, self._body, self._env = endpoint, body, env
        self._begun_s = time.monotonic()
        self._content = b""
        self._why = ""
        self.start()

    @property
    def over(self) -> bool:
        """Whether it was answered, failed, or took too long."""
        return not self.is_alive() or self.waited_s >= self._endpoint.limit_s

    @property
    def waited_s(self) -> float:
        """How long it has been under way."""
        return time.monotonic() - self._begun_s

    @property
    def _too_late(self) -> str:
        return f"no answer within {self._endpoint.limit_s:g} s"

    def result(self) -> bytes:
        """The body of the answer, once it is `over`. Raises NoAnswer."""
        if self.is_alive():
            raise NoAnswer(self._too_late)
        if self._why:
            raise NoAnswer(self._why)
        return self._content

    def wait(self) -> None:
        """Wait until it is over."""
        self.join(max(0.0, self._endpoint.limit_s - self.waited_s))

    def run(self) -> None:
        """Send and read; every failure becomes one line."""
        try:
            self._content = self._ask()
        except NoAnswer as error:
            self._why = str(error)
        except urllib.error.HTTPError as error:
            moved = " (redirects are not followed)" if 300 <= error.code < 400 else ""
            self._why = f"it answered {error.code}{moved}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                self._why = self._too_late
                return
            words = getattr(reason, "strerror", None) or type(reason).__name__
            self._why = f"it cannot be asked: {words}"

    def _ask(self) -> bytes:
        endpoint = self._endpoint
        host = urllib.parse.urlsplit(endpoint.url).hostname or ""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "ftrun"}
        request = urllib.request.Request(endpoint.url, self._body, headers, method="POST")  # noqa: S310
        if key := read_key(endpoint.key_file, self._env):
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        proxies = urllib.request.ProxyHandler({} if _is_this_host(host) else None)
        opener = urllib.request.build_opener(proxies, _NoRedirect())
        found = b""
        with opener.open(request, timeout=endpoint.limit_s) as answer:
            while chunk := answer.read1(_CHUNK_BYTES):
                found += chunk
                if len(found) > ANSWER_BYTES:
                    raise NoAnswer(f"its answer is longer than {ANSWER_BYTES // 1024} KiB")
                if self.waited_s > endpoint.limit_s:
                    raise NoAnswer(self._too_late)
        if key and key.encode() in found:
            raise NoAnswer("its answer repeats the key")
        return found
