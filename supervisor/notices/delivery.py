"""One delivery, in a process of its own: `python -m ftrun.supervisor.notices.delivery`. (I/O)

What to send and where comes on stdin as JSON, so no URL stands in the list of processes or in an environment; the
answer on stdout is one line of JSON with `why`, "" where it arrived. `why` is made of words of ours and of numbers,
never of an error's own text, which may repeat a URL. Whoever starts it (`Delivery`) ends it after `LIMIT_S`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import shutil
import smtplib
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from ftrun.supervisor.notices import addresses, message
from ftrun.supervisor.notices.addresses import Address
from ftrun.supervisor.notices.message import Letter

LIMIT_S = 30.0
WAIT_S = 20.0  # for one answer of a server, within the limit
SENDMAIL_PLACES = "/usr/sbin:/usr/lib:/sbin"


class Delivery:
    """A delivery under way; `look` tells how it stands and never waits."""

    def __init__(self, address: Address, letter: Letter | None) -> None:
        """Begin it; no letter for a heartbeat. Raises OSError."""
        self._until_s = time.monotonic() + LIMIT_S
        told = {"address": _as_dict(address), "letter": _as_dict(letter) if letter else None}
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "ftrun.supervisor.notices.delivery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._child.stdin as stream:
            stream.write(json.dumps(told).encode())

    def look(self) -> str | None:
        """None while it goes on, "" once it arrived, else why it did not."""
        if self._child.poll() is None:
            if time.monotonic() < self._until_s:
                return None
            self._child.kill()
            self._child.wait(5)
            self._close()
            return f"no answer within {LIMIT_S:.0f} s"
        assert self._child.stdout is not None
        try:
            return str(json.loads(self._child.stdout.read(4096))["why"])
        except (OSError, ValueError, KeyError, TypeError):
            return f"the process that sends ended with {self._child.returncode}"
        finally:
            self._close()

    def wait(self, limit_s: float) -> str | None:
        """Wait until it is over, for so long at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(limit_s)
        return self.look()

    def _close(self) -> None:
        assert self._child.stdout is not None
        self._child.stdout.close()


def _as_dict(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def send(address: Address, letter: Letter | None, now_s: float) -> str:
    """Send it; "" or why that failed. Waits for servers."""
    try:
        if letter is None:
            return _ask(address, None, now_s)
        if address.way == "webhook":
            return _ask(address, letter, now_s)
        if address.way == "sendmail":
            return _sendmail(address, letter, now_s)
        if address.way == "smtp":
            return _smtp(address, letter, now_s)
        return _by_apprise(address.url, letter)
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}{' (redirects are not followed)' if 300 <= error.code < 400 else ''}"
    except smtplib.SMTPResponseException as error:
        return f"the mail server answered {error.smtp_code}"
    except smtplib.SMTPException as error:
        return f"the mail server refused ({type(error).__name__})"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _words(error)


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within {WAIT_S:.0f} s"
    if isinstance(reason, ssl.SSLError):
        return "its certificate is not trusted, or it speaks no TLS"
    if isinstance(reason, socket.gaierror):
        return "its name is not known"
    number = getattr(reason, "errno", None)
    return f"it cannot be reached: {os.strerror(number) if number else type(reason).__name__}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """No redirect is followed: the message is for the address that the user named."""


def _by_apprise(url: str, letter: Letter) -> str:
    """By a service that apprise knows: the extra ftrun[notify]. Its log names URLs."""
    try:
        import apprise
    except ImportError:
        return f"this scheme needs apprise: {sys.executable} -m pip install apprise"
    logging.disable(logging.CRITICAL)
    service = apprise.Apprise()
    if not service.add(url):
        return "apprise does not know this address"
    sent = service.notify(body=letter.text, title=letter.subject, body_format=apprise.NotifyFormat.TEXT)
    return "" if sent else "apprise could not send it"


def _ask(address: Address, letter: Letter | None, now_s: float) -> str:
    headers, body = {"User-Agent": "ftrun"}, None
    if letter is not None:
        body = letter.body.encode()
        headers |= {"Content-Type": "application/json", "X-Ftrun-Id": letter.id}
        if address.key:
            timestamp = f"{now_s:.0f}"
            signed = message.signature(address.key, timestamp, body)
            headers |= {"X-Ftrun-Timestamp": timestamp, "X-Ftrun-Signature": f"sha256={signed}"}
    request = urllib.request.Request(address.url, body, headers)  # noqa: S310 - http or https: addresses
    proxies = urllib.request.ProxyHandler({} if addresses.is_this_host(address.url) else None)
    with urllib.request.build_opener(proxies, _NoRedirect()).open(request, timeout=WAIT_S) as answer:
        answer.read(4096)
    return ""


def _sendmail(address: Address, letter: Letter, now_s: float) -> str:
    program = shutil.which("sendmail") or shutil.which("sendmail", path=SENDMAIL_PLACES)
    if program is None:
        return "there is no sendmail on this host; smtp://... names a mail server"
    mail = message.mail_of(letter, "", tuple(addresses.recipients(address.url)), now_s)
    # -t: it reads whom to send to from the mail, so that nobody stands in the list of processes.
    done = subprocess.run(
        [program, "-i", "-t"], input=mail.as_bytes(), capture_output=True, timeout=WAIT_S, check=False
    )
    return f"sendmail ended with {done.returncode}" if done.returncode else ""


def _smtp(address: Address, letter: Letter, now_s: float) -> str:
    route = addresses.mail_route(address.url)
    context = ssl.create_default_context()
    if route.tls:
        server: smtplib.SMTP = smtplib.SMTP_SSL(route.host, route.port, timeout=WAIT_S, context=context)
    else:
        server = smtplib.SMTP(route.host, route.port, timeout=WAIT_S)
    with server:
        server.ehlo()
        if not route.tls and server.has_extn("starttls"):
            server.starttls(context=context)
            server.ehlo()
        elif not route.tls and route.user and not addresses.is_this_host(address.url):
            return "it offers no TLS, and the password is not sent without"
        if route.user:
            server.login(route.user, route.password)
        server.send_message(message.mail_of(letter, route.sender, route.to, now_s))
    return ""


def main() -> int:
    """Do what stdin says."""
    told = json.load(sys.stdin)
    letter = Letter(**told["letter"]) if told["letter"] else None
    try:
        why = send(Address(**told["address"]), letter, time.time())
    except subprocess.TimeoutExpired:
        why = f"no end within {WAIT_S:.0f} s"
    print(json.dumps({"why": why}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
