"""The address of an endpoint that settings name. (pure)"""

from __future__ import annotations

import re

from ftrun.supervisor.model.errors import SettingError

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<place>(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?)"
    r"(?P<path>/[!-\"$->A-~]*)?"
)


def parse_endpoint_url(key: str, text: str) -> tuple[str, str, str]:
    """(address of chat completions, host, host and port) of `https://models.example.org/v1`. Raises
    SettingError.
    """
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise SettingError(f"{key}: no user or key in the address; see {key}-key-file")
    found = _URL.fullmatch(text)
    if found is None:
        raise SettingError(f"{key}: an address such as https://models.example.org/v1 is wanted")
    path = (found["path"] or "").rstrip("/")
    path = path if path.endswith("/chat/completions") else f"{path or '/v1'}/chat/completions"
    return f"{found['scheme']}://{found['place']}{path}", found["six"] or found["host"], found["place"]
