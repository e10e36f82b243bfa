"""The address of an endpoint that settings name. (pure)"""

from __future__ import annotations

from ftrun.supervisor.model.errors import SettingError


def parse_endpoint_url(key: str, text: str) -> tuple[str, str, str]:
    """(address of chat completions, host, host and port) of `https://models.example.org/v1`. Raises
    SettingError.
    """
    import urllib.parse

    wanted = f"{key}: an address such as https://models.example.org/v1 is wanted"
    try:
        parts = urllib.parse.urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise SettingError(wanted) from None
    if parts.username is not None or parts.password is not None:
        raise SettingError(f"{key}: no user or key in the address; see {key}-key-file")
    plain = all("!" <= sign <= "~" for sign in text)
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or not plain:
        raise SettingError(wanted)
    path = parts.path.rstrip("/")
    path = path if path.endswith("/chat/completions") else f"{path or '/v1'}/chat/completions"
    return f"{parts.scheme}://{parts.netloc}{path}", host, parts.netloc
