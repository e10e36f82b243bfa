"""The host keys in a user's known_hosts files, as OpenSSH reads them. (pure)

A line counts for a host if one of its patterns matches and none of its negated ones does; a hashed name is
one pattern. Keys marked `@revoked` are kept: such a key is refused whatever else is known. Certificate
authorities are not supported, so a host that shows only a certificate is unknown, which is refused, never
trusted.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

HASHED = "|1|"  # HMAC-SHA1 with a salt, the only kind there is
RSA = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # one kind of key, two kinds of signature
PATTERN_LETTERS = frozenset("*?!")


class Keys(NamedTuple):
    """The keys of a host, each as (type, base64), in the order of the files, and its revoked ones."""

    trusted: tuple[tuple[str, str], ...]
    revoked: frozenset[tuple[str, str]]

    def preferred(self, offered: Iterable[str]) -> tuple[str, ...]:
        """The kinds of host key to request, known kinds first, since a host may have others as well."""
        kinds = {name for kind, _ in self.trusted for name in RSA.get(kind, (kind,))}
        return tuple(sorted(offered, key=lambda name: name not in kinds))

    def objection(self, shown: tuple[str, str], strict: bool) -> str:
        """Why a presented key is refused; "" if not. `strict`: refuse one of a host without any."""
        if shown in self.revoked:
            return "its host key is marked as revoked"
        if shown in self.trusted:
            return ""
        if any(kind == shown[0] for kind, _ in self.trusted):
            return "its host key is not the one in the known hosts: somebody else may answer there"
        return (
            "its host key is not known; connect once by `ssh`, or add it to the known hosts" if strict else ""
        )


class _Line(NamedTuple):
    patterns: tuple[str, ...]
    key: tuple[str, str]
    revoked: bool


class KnownHosts:
    """The lines of known_hosts files: plain names are indexed, patterns and hashes are tried one by one."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._plain: dict[str, list[_Line]] = {}
        self._other: list[_Line] = []
        for line in lines:
            self._add(line)

    def keys(self, host: str, port: int = 22) -> Keys:
        """The keys of a host and port; without own ones for another port than 22 those of the host."""
        bare = host.lower()
        if port == 22:
            return self._of(bare)
        own = self._of(f"[{bare}]:{port}")
        return own if own.trusted else self._of(bare)._replace(revoked=own.revoked | self._of(bare).revoked)

    def _add(self, line: str) -> None:
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in {"", "@revoked"}:
            return
        row = _Line(tuple(words[0].lower().split(",")), (words[1], words[2]), bool(marker))
        if words[0].startswith(HASHED):
            row = row._replace(patterns=(words[0],))
        if words[0].startswith(HASHED) or PATTERN_LETTERS.intersection(words[0]):
            self._other.append(row)
        else:
            for name in row.patterns:
                self._plain.setdefault(name, []).append(row)

    def _of(self, name: str) -> Keys:
        found = [*self._plain.get(name, ()), *(row for row in self._other if _matches(row.patterns, name))]
        trusted = dict.fromkeys(row.key for row in found if not row.revoked)
        revoked = frozenset(row.key for row in found if row.revoked)
        return Keys(tuple(key for key in trusted if key not in revoked), revoked)


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    if patterns[0].startswith(HASHED):
        return _is_hash_of(patterns[0], name)
    if any(one.startswith("!") and fnmatch.fnmatchcase(name, _escaped(one[1:])) for one in patterns):
        return False
    return any(fnmatch.fnmatchcase(name, _escaped(one)) for one in patterns if not one.startswith("!"))


def _escaped(pattern: str) -> str:
    return pattern.replace("[", "[[]")  # [host]:port is a name here, and no set of letters


def _is_hash_of(pattern: str, name: str) -> bool:
    try:
        salt, told = (base64.b64decode(part) for part in pattern[len(HASHED) :].split("|"))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), told)
