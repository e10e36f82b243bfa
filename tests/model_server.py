"""A real HTTP server on loopback that answers like a model server, or as badly as a test wants. (I/O)"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def completion(text: str) -> bytes:
    """A chat completion with this text."""
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


def opinion(**changes: Any) -> str:
    """The object that is asked for."""
    return json.dumps(
        {"class": "network", "retry": True, "node": "<node 1>", "reason": "its link is down"} | changes
    )


def says(body: bytes, status: int = 200, **headers: str) -> Answer:
    """An answer with this body."""

    def answer(to: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        to.send_response(status)
        for name, value in headers.items():
            to.send_header(name.replace("_", "-"), value)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        to.wfile.write(body)

    return answer


def drips(piece: bytes, every_s: float) -> Answer:
    """An answer that never ends and never pauses for long."""

    def answer(to: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        to.send_response(200)
        to.end_headers()
        try:
            for _piece in range(600):
                to.wfile.write(piece)
                to.wfile.flush()
                time.sleep(every_s)
        except OSError:
            pass

    return answer


def obeys(to: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
    """A model that does what the last line of the log that begins with `| SAY ` tells it to say."""
    lines = request["messages"][-1]["content"].splitlines()
    told = [line.partition("SAY ")[2] for line in lines if line.startswith("| SAY ")]
    says(completion(told[-1] if told else opinion()))(to, request)


@dataclass
class ModelServer:
    """The server: where it is, what it was asked, with which headers."""

    url: str
    answer: Answer
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def prompt(self) -> str:
        """The last question, as the model reads it."""
        return str(self.requests[-1]["messages"][-1]["content"])


@contextmanager
def model_server(answer: Answer | None = None) -> Iterator[ModelServer]:
    """Such a server while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            found.headers.append(dict(self.headers.items()))
            found.requests.append(json.loads(body))
            found.answer(self, found.requests[-1])

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = ModelServer(
        f"http://127.0.0.1:{server.server_address[1]}/v1", answer or says(completion(opinion()))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
