"""Commands on many nodes over SSH with paramiko: bounded in number, time and output, without passwords. (I/O)

Each node gets a thread, and the caller waits for it no longer than its limits: a name server, agent or server
that hangs costs one node its answer and no other. A failed connection says nothing about the node, only about
the way to it, so `unreachable` is no verdict. Host keys are checked against the user's own files, and unknown
hosts are refused: what is sent and believed here may decide where jobs run. Connections to jump hosts
(ProxyJump) are opened once and shared, since a thousand logins at one host look like an attack.

An abandoned command continues on its node: SSH has no way to end it that every server supports.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from ftrun.hooks.bundle import zipapp
from ftrun.hooks.checks.runner import BUDGETS_S
from ftrun.hooks.runtime.channel import (
    JumpChannel,
    OpenConnections,
    Refused,
    Unreachable,
    error_text,
    exchange,
    left_s,
    open_proxy_command,
)
from ftrun.hooks.runtime.node_report import parse_report
from ftrun.hooks.ssh import config
from ftrun.hooks.ssh.known_hosts import KnownHosts

ANSWERED, UNREACHABLE, REFUSED, TIMEOUT = "answered", "unreachable", "refused", "timeout"

GRACE_S = 1.0
"""How long a connection may exceed its limits before it is abandoned."""
WHY_CHARS = 300
START_S = 10.0
"""Sending the hooks, starting Python, and loading the checks, on a busy node."""


class Answer(NamedTuple):
    """The answer of a node. `state`: answered (the command ended: `exit_code`, -1 for a signal), unreachable
    (no connection, or it broke), refused (host key or login), timeout (connected, and the command did not
    end). `why`: one line, "" for answered.
    """

    node: str
    state: str
    exit_code: Optional[int]
    stdout: str
    stderr: str
    took_s: float
    why: str


class NodeReport(NamedTuple):
    """A node's checks: `report` as `ftrun-hook check --json` prints it, or None and `why` not."""

    node: str
    state: str
    report: Optional[dict[str, Any]]
    took_s: float
    why: str


class NodePool:
    """Runs commands on nodes. `ssh_config`: a file in place of ~/.ssh/config and /etc/ssh/ssh_config; at most
    `at_once` nodes in parallel; for each node, `connect_s` limits the login and `run_s` the command, in
    seconds.
    """

    def __init__(
        self, ssh_config: str = "", at_once: int = 32, connect_s: float = 5.0, run_s: float = 60.0
    ) -> None:
        self.ssh_config = ssh_config
        self.at_once = max(1, at_once)
        self.connect_s = connect_s
        self.run_s = run_s

    def run(
        self,
        nodes: Iterable[str],
        command: str,
        stdin: Union[bytes, Mapping[str, bytes]] = b"",
        told: Callable[[Answer], None] = lambda _answer: None,
    ) -> dict[str, Answer]:
        """Run one command in the login shell of each node, with `stdin` as its input, the same for all or by node. Calls
        `told` for each answer as it arrives.

        Returns an answer for every node, in the order given. Raises OSError if `ssh_config` cannot be read.
        """
        order = list(dict.fromkeys(nodes))
        site = _SharedState(self.ssh_config)
        done: dict[str, Answer] = {}
        try:
            for answer in self._answers(order, site, command, stdin):
                done[answer.node] = answer
                told(answer)
        finally:
            site.ways.close()
        return {node: done[node] for node in order}

    def address(self, node: str) -> str:
        """Where a node is reached, by the configuration. Raises OSError, ValueError."""
        return _SharedState(self.ssh_config).config.hop(node).host

    def _answers(
        self, order: Sequence[str], site: _SharedState, command: str, stdin: Union[bytes, Mapping[str, bytes]]
    ) -> Iterator[Answer]:
        waiting = deque(order)
        living: dict[str, _NodeConnection] = {}
        inbox: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        while waiting or living:
            while waiting and len(living) < self.at_once:
                node = waiting.popleft()
                own = stdin if isinstance(stdin, bytes) else stdin[node]
                living[node] = _NodeConnection(node, site, self, command, own)
                living[node].start(inbox)
            soonest = min(visit.give_up_s for visit in living.values()) - time.monotonic()
            try:
                answer = inbox.get(timeout=max(0.0, soonest))
            except queue.Empty:
                overdue = [one for one in living.values() if one.give_up_s <= time.monotonic()]
                if not overdue:
                    continue
                answer = overdue[0].given_up()
            # An abandoned thread may still answer; its answer is dropped.
            if living.pop(answer.node, None) is not None:
                yield answer


def check_nodes(
    nodes: Iterable[str],
    tier: str = "fast",
    settings: Optional[Mapping[str, Mapping[str, Any]]] = None,
    probes: Optional[NodePool] = None,
    *,
    kind: str = "check",
    names: Sequence[str] = (),
    told: Callable[[NodeReport], None] = lambda _report: None,
) -> dict[str, NodeReport]:
    """Run the checks of a tier (or those named) on nodes that need only Python 3.9; what is sent stays in
    memory there. `settings`: thresholds by check, over the node's own in /etc/ftrun; `kind`: the occasion
    that the reports name. The pool's `run_s` is raised to the time limit of the tier.
    """
    ways = probes or NodePool()
    budget_s = BUDGETS_S[tier]
    patient = NodePool(ways.ssh_config, ways.at_once, ways.connect_s, max(ways.run_s, budget_s + START_S))
    arguments = ["check", "--json", "--tier", tier, "--kind", kind, "--within", str(budget_s)]
    reports: dict[str, NodeReport] = {}

    def understood(answer: Answer) -> None:
        reports[answer.node] = _report_of(answer)
        told(reports[answer.node])

    order = list(dict.fromkeys(nodes))
    patient.run(
        order, zipapp.REMOTE_COMMAND, zipapp.remote_input([*arguments, *names], settings or {}), understood
    )
    return {node: reports[node] for node in order}


def _report_of(answer: Answer) -> NodeReport:
    if answer.state != ANSWERED:
        return NodeReport(answer.node, answer.state, None, answer.took_s, answer.why)
    report = parse_report(answer.stdout)
    if report is None:
        words = answer.stderr.strip().splitlines() or [f"exit code {answer.exit_code}, and no report"]
        return NodeReport(answer.node, ANSWERED, None, answer.took_s, words[-1][:WHY_CHARS])
    # The caller names the node in the report, not the node itself.
    return NodeReport(answer.node, ANSWERED, {**report, "node": answer.node}, answer.took_s, "")


class _SharedState:
    """What the connections of one run share: configuration, known hosts, keys, and jump hosts."""

    def __init__(self, config_path: str) -> None:
        import paramiko

        # The answer carries the error; the library would print tracebacks.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self.config = config.Config(config_path, paramiko.SSHConfig.from_text)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], KnownHosts] = {}
        self._keys: dict[str, Any] = {}
        self._jumps: dict[str, tuple[threading.Lock, list[Any]]] = {}
        self.ways = OpenConnections()

    def known(self, paths: tuple[str, ...]) -> KnownHosts:
        """The keys in these files, read once."""
        with self._lock:
            if paths not in self._known:
                self._known[paths] = config.known_hosts_of(paths)
            return self._known[paths]

    def key(self, path: str) -> Any:
        """The private key in a file, read once; None if it is missing or needs a pass phrase."""
        import paramiko

        with self._lock:
            if path not in self._keys:
                try:
                    self._keys[path] = paramiko.PKey.from_path(path)
                except (OSError, ValueError, TypeError, paramiko.SSHException, paramiko.pkey.UnknownKeyType):
                    self._keys[path] = None
            return self._keys[path]

    def jump(self, spec: str, give_up_s: float, through: tuple[str, ...]) -> Any:
        """The shared connection to a ProxyJump's last host. Raises Unreachable, Refused as at first."""
        if spec in through:
            raise Refused("ProxyJump goes in circles")
        with self._lock:
            lock, held = self._jumps.setdefault(spec, (threading.Lock(), []))
        if not lock.acquire(timeout=max(0.0, give_up_s - time.monotonic())):
            raise Unreachable(f"{spec} does not answer")
        try:
            if not held:
                before, _, last = spec.rpartition(",")
                try:
                    held.append(
                        _connected(
                            last, self, self.ways, give_up_s, jump=before or None, through=(*through, spec)
                        )
                    )
                except (Unreachable, Refused) as error:
                    held.append(type(error)(f"by way of {last}: {error}"))
        finally:
            lock.release()
        if isinstance(held[0], Exception):
            raise held[0]
        return held[0]


def _connected(
    name: str,
    site: _SharedState,
    ways: OpenConnections,
    give_up_s: float,
    *,
    jump: Optional[str] = None,
    through: tuple[str, ...] = (),
) -> Any:
    """A connection to a host, logged in. `jump` replaces the configured ProxyJump. Raises Lost or Refused."""
    import paramiko

    try:
        hop = site.config.hop(name)
    except ValueError as error:
        raise Refused(f"ssh configuration: {error}") from error
    try:
        sock = _socket(hop, site, ways, give_up_s, jump=hop.jump if jump is None else jump, through=through)
        transport = paramiko.Transport(sock)
        ways.add(transport.close)
        # Its thread reads with a time limit; this wakes it, so that closing does not wait for it.
        ways.add(lambda: sock.shutdown(socket.SHUT_RDWR))
        keys = site.known(hop.known_hosts).keys(hop.known_as or hop.host, 22 if hop.known_as else hop.port)
        options = transport.get_security_options()
        options.key_types = keys.preferred(options.key_types)
        left = left_s(give_up_s)
        transport.banner_timeout = transport.handshake_timeout = left
        transport.start_client(timeout=left)
        if not transport.initial_kex_done:
            raise Unreachable("it accepts connections and does not answer")
        shown = transport.get_remote_server_key()
        objection = keys.objection((shown.get_name(), shown.get_base64()), hop.strict)
        if objection:
            raise Refused(objection)
        _log_in(transport, hop, site, ways, give_up_s)
    except paramiko.BadAuthenticationType as error:
        raise Refused(f"it takes no keys for {hop.user}: {error.explanation}") from error
    except paramiko.ChannelException as error:
        raise (Refused if error.code == 1 else Unreachable)(error.text) from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise Unreachable(error_text(error)) from error
    return transport


def _socket(
    hop: config.Hop,
    site: _SharedState,
    ways: OpenConnections,
    give_up_s: float,
    *,
    jump: str,
    through: tuple[str, ...],
) -> Any:
    if jump:
        way = site.jump(jump, give_up_s, through)
        channel = way.open_channel(
            "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=left_s(give_up_s)
        )
        ways.add(channel.close)
        return JumpChannel(channel)
    if hop.command:
        return open_proxy_command(hop.command, ways)
    sock = socket.create_connection((hop.host, hop.port), timeout=left_s(give_up_s))
    ways.add(sock.close)
    return sock


def _log_in(
    transport: Any, hop: config.Hop, site: _SharedState, ways: OpenConnections, give_up_s: float
) -> None:
    import paramiko

    tried: set[bytes] = set()
    for key in _keys(hop, site, ways):
        blob = key.asbytes()
        if blob in tried:
            continue
        tried.add(blob)
        transport.auth_timeout = left_s(give_up_s)
        try:
            more = transport.auth_publickey(hop.user, key)
        except paramiko.BadAuthenticationType:
            raise
        except paramiko.AuthenticationException as error:
            if "timeout" in str(error).lower():
                raise Unreachable("it does not answer to a login") from error
            if (
                len(tried) == 1 and not transport.is_active()
            ):  # a server that refused one key would hear the next
                raise Unreachable("it closed the connection during the login") from error
            continue
        if more:
            raise Refused(f"it wants more than a key: {', '.join(more)}")
        return
    raise Refused(
        f"none of {len(tried)} keys lets {hop.user} in"
        if tried
        else "no key to log in with, from files or an agent"
    )


def _keys(hop: config.Hop, site: _SharedState, ways: OpenConnections) -> Iterator[Any]:
    """The keys to try: those of the agent that the configuration names, the agent's others, then files."""
    import paramiko

    held: tuple[Any, ...] = ()
    if hop.agent and os.environ.get("SSH_AUTH_SOCK"):
        agent = paramiko.Agent()
        ways.add(agent.close)
        held = agent.get_keys()
    named = {blob for path in hop.keys for blob in config.public_half(path)}
    yield from (key for key in held if key.asbytes() in named)
    if not hop.keys_only:
        yield from held
    yield from (key for path in hop.keys for key in [site.key(path)] if key is not None)


class _NodeConnection:
    """The connection to one node, in a thread of its own."""

    def __init__(self, node: str, site: _SharedState, limits: NodePool, command: str, stdin: bytes) -> None:
        self.node = node
        self.began_s = time.monotonic()
        self.give_up_s = self.began_s + limits.connect_s + GRACE_S
        self._site, self._limits, self._command, self._stdin = site, limits, command, stdin
        self._ways = OpenConnections()
        self._in = False

    def start(self, inbox: queue.SimpleQueue[Answer]) -> None:
        """Start; one answer will be put into `inbox`, unless something hangs."""
        threading.Thread(
            target=lambda: inbox.put(self._answer()), name=f"ssh {self.node}", daemon=True
        ).start()

    def given_up(self) -> Answer:
        """The answer for a connection that hangs; closes it."""
        threading.Thread(target=self._ways.close, daemon=True).start()
        if self._in:
            return self._said(TIMEOUT, why=f"no end within {self._limits.run_s:g} s")
        return self._said(UNREACHABLE, why=f"no login within {self._limits.connect_s:g} s")

    def _answer(self) -> Answer:
        try:
            transport = _connected(self.node, self._site, self._ways, self.began_s + self._limits.connect_s)
            self.give_up_s = time.monotonic() + self._limits.run_s + GRACE_S
            self._in = True
            return self._ran(transport, time.monotonic() + self._limits.run_s)
        except Refused as error:
            return self._said(REFUSED, why=str(error))
        except Unreachable as error:
            return self._said(UNREACHABLE, why=str(error))
        except Exception as error:  # noqa: BLE001  a defect of ours or of the library is no verdict on a node
            return self._said(UNREACHABLE, why=f"{type(error).__name__}: {error}")
        finally:
            self._ways.close()

    def _said(
        self, state: str, code: Optional[int] = None, texts: Sequence[bytes] = (b"", b""), why: str = ""
    ) -> Answer:
        out, err = (content.decode("utf-8", "replace") for content in texts)
        took_s = round(time.monotonic() - self.began_s, 3)
        return Answer(self.node, state, code, out, err, took_s, " ".join(why.split())[:WHY_CHARS])

    def _ran(self, transport: Any, give_up_s: float) -> Answer:
        import paramiko

        texts = (bytearray(), bytearray())
        try:
            channel = transport.open_session(timeout=left_s(give_up_s))
            channel.settimeout(left_s(give_up_s))
            channel.exec_command(self._command)
            code = exchange(channel, self._stdin, texts, give_up_s)
        except paramiko.ChannelException as error:
            raise Refused(f"no session: {error.text}") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            if time.monotonic() < give_up_s:
                raise Unreachable(f"the connection broke: {error_text(error)}") from error
            code = None
        kept = [bytes(text) for text in texts]
        if code is None:
            return self._said(TIMEOUT, None, kept, f"no end within {self._limits.run_s:g} s")
        if code < 0 and not transport.is_active():
            return self._said(UNREACHABLE, None, kept, "the connection broke before the command ended")
        return self._said(ANSWERED, code, kept)
