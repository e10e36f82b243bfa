"""Laws of known hosts: as OpenSSH reads them, and what is not understood is not trusted. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.hooks.ssh import config
from ftrun.hooks.ssh.known_hosts import KnownHosts

KEY, OTHER = ("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIKey"), ("ssh-rsa", "AAAAB3NzaC1yc2EAAAADOther")


def _keys(*lines: str, host: str = "gpu7", port: int = 22) -> tuple[tuple[str, str], ...]:
    return KnownHosts(lines).keys(host, port).trusted


def test_a_line_counts_where_a_pattern_of_it_matches() -> None:
    """Names, lists, ports, wildcards, exceptions; the bare name stands for a port that has no line of its own."""
    key, other = " ".join(KEY), " ".join(OTHER)

    assert (KEY,) == _keys(f"gpu7,10.0.0.7 {key}") == _keys(f"10.0.0.*,gpu? {key} a comment")
    assert (KEY,) == _keys(f"GPU7 {key}", host="gpu7") == _keys(f"gpu7 {key}", host="GPU7")
    assert () == _keys(f"gpu8 {key}") == _keys(f"gpu*,!gpu7 {key}") == _keys(f"# gpu7 {key}") == _keys("gpu7")
    assert (KEY,) == _keys(f"[gpu7]:2222 {key}", f"gpu7 {other}", port=2222)
    assert (OTHER,) == _keys(f"[gpu7]:2222 {key}", f"gpu7 {other}") == _keys(f"gpu7 {other}", port=2222)
    assert (KEY,) == _keys(f"[gpu*]:2222 {key}", port=2222)
    assert () == _keys("|1|not base64|at all " + key)


def test_what_is_revoked_is_refused_and_an_authority_is_not_believed() -> None:
    """A key marked @revoked is no key of the host; a line of @cert-authority names none."""
    keys = KnownHosts([f"gpu7 {' '.join(KEY)}", f"@revoked * {' '.join(KEY)}"]).keys("gpu7")

    assert ((), frozenset({KEY})) == (keys.trusted, keys.revoked)
    assert "revoked" in keys.objection(KEY, strict=False)
    assert () == _keys(f"@cert-authority * {' '.join(KEY)}")


def test_an_unknown_key_is_refused_unless_the_user_trusts_new_ones_and_a_changed_one_always() -> None:
    """A host shows one of its known keys, or a reason is given."""
    known, none = KnownHosts([f"gpu7 {' '.join(KEY)}"]).keys("gpu7"), KnownHosts([]).keys("gpu7")

    assert "" == known.objection(KEY, strict=True)
    assert "not the one" in known.objection((KEY[0], "AAAAchanged"), strict=False)
    assert "not known" in none.objection(KEY, strict=True)
    assert "" == none.objection(KEY, strict=False)
    assert ("ssh-ed25519", "rsa-sha2-256") == known.preferred(["rsa-sha2-256", "ssh-ed25519"])


def test_an_included_file_stands_in_its_place(tmp_path: Path) -> None:
    """Its lines come where it is named, and the block goes on behind them; a file that includes itself ends."""
    (tmp_path / "inner").write_text("Host b\nPort 2\n")
    (tmp_path / "outer").write_text(f"Host a\nInclude {tmp_path}/inn*\nPort 1\nInclude {tmp_path}/none\n")
    (tmp_path / "round").write_text(f"Port 3\nInclude {tmp_path}/round\n")

    lines = config.files_text(str(tmp_path / "outer")).splitlines()
    assert ["Host a", "Host b", "Port 2", "Host a", "Port 1", "Host a"] == lines
    assert config.files_text(str(tmp_path / "round")).count("Port 3") == config.INCLUDES_DEEP_MAX + 1


def test_a_configuration_that_another_user_could_have_written_is_refused(tmp_path: Path) -> None:
    """Named or included, for its ProxyCommand runs as this user; the reason names the file and the mend."""
    (tmp_path / "outer").write_text(f"Include {tmp_path}/inner\n")
    (tmp_path / "inner").write_text("Host b\nProxyCommand id\n")
    for name in ("inner", "outer"):
        (tmp_path / name).chmod(0o666)
        with pytest.raises(PermissionError, match="may be written by everybody") as refused:
            config.files_text(str(tmp_path / "outer"))
        assert f"{tmp_path}/{name}" == refused.value.filename
        (tmp_path / name).chmod(0o600)
    assert "ProxyCommand id" in config.files_text(str(tmp_path / "outer"))


def test_hosts_of_a_jump_are_read_as_people_write_them() -> None:
    """User, host, port, addresses of IPv6."""
    assert ("", "n0", "") == config.parts_of("n0")
    assert ("me", "n0", "2222") == config.parts_of("me@n0:2222")
    assert ("", "fe80::1", "22") == config.parts_of("[fe80::1]:22")
    assert ("", "fe80::1", "") == config.parts_of("fe80::1")
