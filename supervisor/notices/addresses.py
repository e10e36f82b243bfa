"""The file that names who gets notices, and the URL of the dead man's switch. (I/O)

One address a line, and `#` begins a comment:

    mailto:ann@example.org                                  by the host's sendmail
    smtps://user:password@mail.example.org?from=ftrun@example.org&to=ann@example.org
    https://hooks.example.org/ftrun key=SECRET              a POST of JSON, signed by the key
    slack://...                                             any URL that apprise knows (the extra ftrun[notify])
    heartbeat-url https://hc-ping.com/...                   asked every 5 minutes while the supervisor works

URLs hold secrets. So nobody but their owner may read the file, and no message of ours repeats a part of a line: an
address is named by the number of its line and its scheme.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import stat
import urllib.parse

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.errors import UserError

FILE_BYTES = 1 << 16
ADDRESSES_MAX = 64
HEARTBEAT = "heartbeat-url"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_MAIL = re.compile(r"[A-Za-z0-9._%+=-]+@[A-Za-z0-9.-]+|[A-Za-z0-9._-]+")
_PRINTABLE = re.compile(r"[!-~]+")
_OWN = ("mailto", "smtp", "smtps", "http", "https")


class BadAddress(ValueError):
    """What is wrong with an address, without a part of it."""


@dataclass(frozen=True, slots=True)
class Address:
    """One receiver. `id`: the same as long as its URL is; `label`: its name in messages; `way`: how it is sent to."""

    id: str
    label: str
    way: str  # "sendmail", "smtp", "webhook", "apprise", "heartbeat"
    url: str
    key: str = ""


def read_addresses(path: str) -> list[Address]:
    """The addresses in the file. Raises UserError: it cannot be read, others can read it, or a line is none."""
    path = os.path.expanduser(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise UserError(f"notify: {path}: {getattr(error, 'strerror', error)}") from None
    try:
        fact = os.fstat(descriptor)
        if not stat.S_ISREG(fact.st_mode) or fact.st_uid != os.geteuid() or fact.st_mode & 0o077:
            raise UserError(f"notify: {path}: it must be a file of yours that only you can read (chmod 600)")
        content = os.read(descriptor, FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"notify: {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(content) > FILE_BYTES:
        raise UserError(f"notify: {path}: it has more than {FILE_BYTES // 1024} KiB")
    return parse_addresses(content.decode("utf-8", "replace"), path)


def parse_addresses(text: str, path: str) -> list[Address]:
    """The addresses in this text. Raises UserError, which names a line by its number alone."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            found.append(_address(number, words))
        except BadAddress as error:
            raise UserError(f"notify: {path}: line {number}: {error}") from None
        except ValueError:  # of a library: its text repeats the line
            raise UserError(f"notify: {path}: line {number}: it is no address that can be read") from None
    if len({one.id for one in found}) < len(found):
        raise UserError(f"notify: {path}: two lines name the same address")
    if len(found) > ADDRESSES_MAX:
        raise UserError(f"notify: {path}: more than {ADDRESSES_MAX} addresses")
    return found


def _address(number: int, words: list[str]) -> Address:
    beats = words[0].rstrip("=") == HEARTBEAT
    if beats:
        words = [word for word in words[1:] if word != "="]
    url, options = (words[0] if words else ""), dict(word.partition("=")[::2] for word in words[1:])
    scheme = url.partition(":")[0].lower()
    if not _PRINTABLE.fullmatch(url) or not _SCHEME.fullmatch(scheme) or ":" not in url:
        raise BadAddress("an address such as mailto:ann@example.org or https://... is wanted")
    own = scheme in _OWN and not url.lower().startswith("mailto://")  # mailto:// is a scheme of apprise
    way = (
        {"mailto": "sendmail", "http": "webhook", "https": "webhook"}.get(scheme, "smtp")
        if own
        else "apprise"
    )
    if beats:
        way = "heartbeat"
        if scheme not in ("http", "https"):
            raise BadAddress(f"{HEARTBEAT}: an address that begins with https:// is wanted")
    if unknown := set(options) - {"key", "plain-http"}:
        raise BadAddress(
            f"{len(unknown)} word(s) behind the address are unknown; there are key= and plain-http=yes"
        )
    if "key" in options and way != "webhook":
        raise BadAddress("key= is for addresses that begin with https://")
    if scheme == "http" and options.get("plain-http") != "yes" and not is_this_host(url):
        raise BadAddress("https is wanted for another host (or plain-http=yes behind the address)")
    if way == "sendmail":
        recipients(url)
    if way == "smtp":
        mail_route(url)
    urllib.parse.urlsplit(url)  # one that nobody can parse is refused here
    digest = hashlib.sha256(f"{way} {url}".encode()).hexdigest()[:12]
    return Address(
        digest, f"line {number} ({HEARTBEAT if beats else scheme})", way, url, options.get("key", "")
    )


def is_this_host(url: str) -> bool:
    """Whether the URL's host is the loopback of this one."""
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def recipients(text: str) -> list[str]:
    """Mail addresses of `mailto:a@example.org,b@example.org`. Raises BadAddress."""
    found = [one for one in urllib.parse.unquote(text.partition(":")[2]).split(",") if one]
    if not found or not all(_MAIL.fullmatch(one) for one in found):
        raise BadAddress("mail addresses such as mailto:ann@example.org are wanted")
    return found


@dataclass(frozen=True, slots=True)
class MailRoute:
    """A mail server and whom it is asked to send to."""

    host: str
    port: int
    user: str
    password: str
    sender: str
    to: tuple[str, ...]
    tls: bool  # from the first byte


def mail_route(url: str) -> MailRoute:
    """The route of smtp[s]://user:password@host:port?from=a@example.org&to=b@example.org. Raises BadAddress."""
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query))
    tls = parts.scheme.lower() == "smtps"
    port = parts.port or (465 if tls else 587 if parts.username else 25)
    sender, to = query.get("from", ""), tuple(recipients(f"mailto:{query.get('to', '')}"))
    if not parts.hostname or not _MAIL.fullmatch(sender):
        raise BadAddress(
            "a mail server such as smtps://user:password@host?from=a@example.org&to=b@example.org is wanted"
        )
    user, password = (urllib.parse.unquote(one or "") for one in (parts.username, parts.password))
    return MailRoute(parts.hostname, port, user, password, sender, to, tls)
