"""A message reaches a real server, and what does not is one line without a word of the URL: HTTP, SMTP, sendmail, apprise."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.notices import addresses
from ftrun.supervisor.notices.addresses import Address, parse_addresses, read_addresses
from ftrun.supervisor.notices.delivery import Delivery, send
from ftrun.supervisor.notices.message import Letter, letter_of, signature
from ftrun.supervisor.notices.notice import Notice
from ftrun.supervisor.notices.schedule import Message

SECRET = "s3cr3t-path"
EVIL = Notice("r 1", "gave-up", "r", 1.0, "r: gave up: naïve\u2028", "Done: x. Cost: y. You: z.")


@pytest.fixture
def letter() -> Letter:
    return letter_of(Message((EVIL,)), "ann@login1")


class Site(HTTPServer):
    """A web server that notes what it gets, and answers as the path says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, str, dict[str, str], bytes]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.got.append((self.command, self.path, dict(self.headers), body))
        code = int(self.path.rpartition("/")[2]) if self.path.rpartition("/")[2].isdigit() else 200
        self.send_response(code)
        if code == 302:
            self.send_header("Location", self.server.url("elsewhere"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


class Mail(socketserver.TCPServer):
    """A mail server of a few lines: what it was told, and the mails."""

    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.said: list[str] = []
        self.mails: list[bytes] = []
        self.refuses = b""


class _Mail(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.wfile.write(b"220 sink\r\n")
        while line := self.rfile.readline():
            verb = line.split()[0].upper() if line.split() else b""
            self.server.said.append(line.decode().strip())
            if verb == self.server.refuses:
                self.wfile.write(b"550 not here\r\n")
            elif verb == b"EHLO":
                self.wfile.write(b"250-sink\r\n250 AUTH PLAIN\r\n")
            elif verb == b"AUTH":
                self.wfile.write(b"235 ok\r\n")
            elif verb == b"DATA":
                self.wfile.write(b"354 go\r\n")
                mail = b""
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    mail += part
                self.server.mails.append(mail)
                self.wfile.write(b"250 ok\r\n")
            elif verb == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    for _ in serving(one):
        yield one


@pytest.fixture
def mail() -> Iterator[Mail]:
    one = Mail()
    for _ in serving(one):
        yield one


def address(line: str) -> Address:
    return parse_addresses(line, "FILE")[0]


def test_a_webhook_gets_json_that_is_signed_by_its_key(site: Site, letter: Letter) -> None:
    assert "" == send(address(f"{site.url(SECRET)} key=k"), letter, 17.0)
    (_, path, headers, body), *_ = site.got

    assert f"/{SECRET}" == path
    assert f"sha256={signature('k', '17', body)}" == headers["X-Ftrun-Signature"]
    assert ("17", "application/json") == (headers["X-Ftrun-Timestamp"], headers["Content-Type"])
    told = json.loads(body)
    assert (letter.id, EVIL.facts) == (told["id"], told["notices"][0])
    assert letter.id == headers["X-Ftrun-Id"]


def test_a_webhook_without_a_key_is_not_signed(site: Site, letter: Letter) -> None:
    send(address(site.url("x")), letter, 17.0)

    assert [] == [name for name in site.got[0][2] if "Signature" in name]


@pytest.mark.parametrize("code", [302, 404, 500])
def test_what_a_server_does_not_take_is_one_line_and_goes_nowhere_else(
    site: Site, letter: Letter, code: int
) -> None:
    """A redirect is not followed: the message is for the address that the user named."""
    why = send(address(site.url(f"{SECRET}/{code}")), letter, 17.0)

    assert f"it answered {code}" in why
    assert SECRET not in why
    assert 1 == len(site.got)


@pytest.mark.parametrize(
    "line",
    [
        f"http://127.0.0.1:9/{SECRET}",
        f"https://127.0.0.1:9/{SECRET} key=k",
        f"http://[::1]:9/{SECRET}",
        f"smtp://u:{SECRET}@127.0.0.1:9?from=a@b&to=c@d",
        f"nosuch://{SECRET}",
        f"json://127.0.0.1:9/{SECRET}",
    ],
)
def test_what_cannot_be_reached_is_a_line_without_the_url(letter: Letter, line: str) -> None:
    why = Delivery(address(line), letter).wait(60)

    assert why
    assert SECRET not in why
    assert "127.0.0.1" not in why


def test_a_mail_server_gets_a_mail_whose_headers_no_log_wrote(mail: Mail, letter: Letter) -> None:
    port = mail.server_address[1]
    line = (
        f"smtp://ann:pass%20word@127.0.0.1:{port}?from=ftrun@example.org&to=ann@example.org,bob@example.org"
    )
    assert "" == send(address(line), letter, 0.0)
    got = message_from_bytes(mail.mails[0])

    assert ("ftrun@example.org", "ann@example.org, bob@example.org") == (got["From"], got["To"])
    assert "rcpt TO:<bob@example.org>" in mail.said
    assert any(one.startswith("AUTH PLAIN") for one in mail.said)
    assert "Done: x. Cost: y. You: z." in got.get_payload(decode=True).decode()  # type: ignore[union-attr]


def test_a_mail_server_that_refuses_is_told_by_its_number(mail: Mail, letter: Letter) -> None:
    mail.refuses = b"DATA"
    line = f"smtp://127.0.0.1:{mail.server_address[1]}?from=a@b&to=c@d"

    assert "the mail server answered 550" == send(address(line), letter, 0.0)


@pytest.mark.parametrize("code", [0, 75])
def test_sendmail_gets_the_mail_on_stdin_and_nobody_in_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: Letter, code: int
) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\ncat >{tmp_path}/mail\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    why = Delivery(address("mailto:ann@example.org"), letter).wait(60)

    assert (f"sendmail ended with {code}" if code else "") == why
    assert "-i -t\n" == (tmp_path / "arguments").read_text()
    assert "ann@example.org" == message_from_bytes((tmp_path / "mail").read_bytes())["To"]


def test_a_service_of_apprise_gets_the_same_text(site: Site, letter: Letter) -> None:
    port = site.server_address[1]
    assert "" == Delivery(address(f"json://127.0.0.1:{port}/hook"), letter).wait(60)
    told = json.loads(site.got[0][3])

    assert (letter.subject, True) == (told["title"], EVIL.then in told["message"])


def test_no_url_stands_in_the_list_of_processes_or_in_an_environment(letter: Letter) -> None:
    """The child is looked at while it waits for a server: its arguments and its variables."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/{SECRET} key={SECRET}"
        delivery = Delivery(address(url), letter)
        called, _ = silent.accept()
        place = Path(f"/proc/{delivery._child.pid}")
        seen = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        called.close()
    delivery.wait(60)

    assert b"notices.delivery" in seen
    assert SECRET.encode() not in seen


def test_a_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, letter: Letter) -> None:
    monkeypatch.setattr("ftrun.supervisor.notices.delivery.LIMIT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        delivery = Delivery(address(f"http://127.0.0.1:{silent.getsockname()[1]}/x"), letter)
        why = delivery.wait(1)
        assert "no answer within" in str(why)
        assert delivery._child.returncode


# ---------------------------------------------------------------------- the file


def test_each_line_is_an_address_with_a_name_that_says_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    path.write_text(
        f"# who\nmailto:ann@example.org\n\nhttps://hooks.example.org/{SECRET} key={SECRET}\n"
        f"slack://{SECRET}\nheartbeat-url = https://hc.example.org/{SECRET}\nmailto://u:{SECRET}@gmail.com\n"
    )
    path.chmod(0o600)
    found = read_addresses(str(path))

    assert ["sendmail", "webhook", "apprise", "heartbeat", "apprise"] == [one.way for one in found]
    assert "line 4 (https)" == found[1].label
    assert SECRET == found[1].key
    assert SECRET not in " ".join(one.label + one.id for one in found)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "notify"
    path.write_text(f"https://hooks.example.org/{SECRET}\n")
    path.chmod(mode)

    with pytest.raises(UserError, match="chmod 600") as refused:
        read_addresses(str(path))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        SECRET,
        f"http://hooks.example.org/{SECRET}",
        f"https://hooks.example.org/{SECRET} {SECRET}",
        f"mailto:{SECRET}@a\x0bBcc: x",
        f"mailto:a@b%0ABcc:{SECRET}",
        f"smtp://host/?to={SECRET}@b",
        f"smtp://host:{SECRET}?from=a@b&to=c@d",
        f"slack://{SECRET} key=x",
        f"heartbeat-url mailto:{SECRET}@b",
        "heartbeat-url",
        f"https://a.example.org/{SECRET}\nhttps://a.example.org/{SECRET}",
        f"https://[{SECRET}/",
    ],
)
def test_a_wrong_line_is_named_by_its_number_alone(line: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_addresses(f"# first\n{line}\n", "FILE")
    assert SECRET not in str(refused.value)


def test_a_heartbeat_is_a_plain_request(site: Site) -> None:
    assert "" == send(address(f"heartbeat-url {site.url('beat')}"), None, 0.0)
    assert ("GET", "/beat") == site.got[0][:2]


def test_this_host_is_its_loopback() -> None:
    assert addresses.is_this_host("http://localhost/x")
    assert not addresses.is_this_host("http://10.0.0.1/x")
