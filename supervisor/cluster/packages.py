"""Makes a bundle of Slurm from packages of Debian or Ubuntu, never as root and without installing any. (I/O)

apt downloads the packages and all that they depend on, as if nothing were installed. It has a configuration and folders of its own, and
verifies the packages by the keys of the machine's distribution. They are read as streams: nothing of them is written but the bundle. Which
libraries a program needs is read from its file, so no program of another architecture is run, and no path that a package names is used.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import pwd
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ftrun.hooks.cluster.survey import SLURM_PROGRAMS
from ftrun.hooks.cluster.unpack import MANIFEST, contents, write_bundle
from ftrun.slurm.client.releases import OLDEST, release_text
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cluster import elf
from ftrun.supervisor.cluster.findings import NEEDED, release
from ftrun.supervisor.model.errors import UserError

EXIT_FAILED = 1
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
SUITES = {"debian": "trixie", "ubuntu": "noble"}
"""Distribution -> its suite whose Slurm is taken where the user names none, whatever suite the machine has itself."""
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}
"""Architecture as the kernel calls it -> as packages call it."""
LOADED_LATER = ("libgcc_s.so.1", "libnss_compat.so.2")
"""Libraries that libc loads by itself when it has to: to end a thread, and for `passwd: compat`."""
APT_S = 900.0
ASK_S = 60.0
APT_CONF = """\
#clear APT::Update;
#clear DPkg;
#clear APT::Architectures;
APT::Architecture "{arch}";
APT::Architectures:: "{arch}";
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Debug::NoLocking "true";
Dir::State "{draft}/state";
Dir::State::status "{draft}/status";
Dir::Cache "{draft}/cache";
Dir::Etc::sourcelist "{draft}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"""
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """What the packages hold, by name: programs, plugins, libraries; and the links from one library's name to another's."""

    programs: dict[str, bytes]
    plugins: dict[str, bytes]
    libraries: dict[str, bytes]
    links: dict[str, str]


def made_bundle(arch: str, suite: str, told: Told) -> bytes:
    """A bundle for hosts of an architecture, from a suite of this machine's distribution ("": of SUITES). Raises UserError."""
    if os.geteuid() == 0:
        return as_apt(lambda: made_bundle(arch, suite, told))
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing or arch not in DEBIAN_NAMES:
        why = f"{missing[0]} is missing here" if missing else f"none is known for {arch}"
        raise _failed(
            f"{why}: make it on a Debian or Ubuntu (ftrun cluster bundle --out FILE), and name it by --bundle FILE"
        )
    with tempfile.TemporaryDirectory(prefix="ftrun-bundle-") as draft:
        packages = _downloaded(Path(draft), DEBIAN_NAMES[arch], suite, told)
        version = next(version for name, version in packages.values() if name == "slurmd")
        version = re.split(r"[-+~]", version)[0]
        number = release(version)
        if number is None or number < OLDEST:
            raise _failed(
                f"this suite has Slurm {version}, and {release_text(OLDEST)} is the oldest that works: name a newer one by --suite"
            )
        told(f"reading {len(packages)} packages of Slurm {version}")
        files, loader = chosen_files(_read(packages))
        packed = packed_bundle(
            files,
            {"version": version, "arch": arch, "loader": loader, "packages": dict(sorted(packages.values()))},
        )
        if arch == platform.machine():
            _try(packed, Path(draft) / "tried")
        return packed


def chosen_files(found: Found) -> tuple[dict[str, bytes], str]:
    """The files of a bundle by name, and the name of its loader: programs, each plugin whose libraries are all there, these libraries.

    Raises UserError where a program or a library of a program is missing.
    """
    missing = [name for name in NEEDED if name not in found.programs]
    if missing:
        raise _failed(f"the packages have no {', '.join(missing)}")
    files: dict[str, bytes] = {}
    libraries: set[str] = set()
    loader = elf.needed(found.programs["slurmd"])[1]
    for name, content in found.programs.items():
        needed, lacking = closure(found, content)
        if lacking:
            raise _failed(f"the packages lack {lacking}, which {name} needs")
        libraries |= needed
        files[f"real/{name}"] = content
    for name, content in found.plugins.items():
        needed, lacking = closure(found, content)
        if not lacking:
            libraries |= needed
            files[f"plugins/{name}"] = content
    for name in LOADED_LATER:
        libraries |= {name, *closure(found, found.libraries[name])[0]} if name in found.libraries else set()
    for name in libraries | {loader}:
        files[f"lib/{name}"] = _library(found, name) or b""
    return files, loader


def closure(found: Found, content: bytes) -> tuple[set[str], str]:
    """The libraries that a file needs, and that these need in turn; and the first of them that is not there ("" for none)."""
    names: set[str] = set()
    waiting = [content]
    while waiting:
        try:
            fresh = [name for name in elf.needed(waiting.pop())[0] if name not in names]
        except (ValueError, struct.error) as error:
            return names, str(error)
        for name in fresh:
            library = _library(found, name)
            if library is None:
                return names, name
            names.add(name)
            waiting.append(library)
    return names, ""


def packed_bundle(files: Mapping[str, bytes], facts: Mapping[str, object]) -> bytes:
    """The bytes of a bundle: the same for the same files and facts."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    manifest = json.dumps({**facts, "files": hashes}, indent=1, sort_keys=True).encode()
    output = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=output, mode="wb", compresslevel=6, mtime=0) as pressed,
        tarfile.open(fileobj=pressed, mode="w", format=tarfile.USTAR_FORMAT) as stream,
    ):
        for name, content in [(MANIFEST, manifest), *sorted(files.items())]:
            row = tarfile.TarInfo(name)
            row.size, row.mode = len(content), 0o755
            stream.addfile(row, io.BytesIO(content))
    return output.getvalue()


def as_apt(work: Callable[[], bytes]) -> bytes:
    """What `work` returns, done in a child process as the user of apt's own downloads: none of it is done as root. Raises UserError."""
    try:
        user = pwd.getpwnam("_apt")
    except KeyError:
        raise _failed(
            "there is no user _apt: make it as an ordinary user (ftrun cluster bundle --out FILE)"
        ) from None
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            os.chdir("/")
            try:
                answer = b"+" + work()
            except UserError as error:
                answer = error.message.encode()
            with open(theirs, "wb") as stream:
                stream.write(answer)
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    if not answer.startswith(b"+"):
        raise UserError(
            answer.decode() or "no bundle of Slurm can be made: the child process died", EXIT_FAILED
        )
    return answer[1:]


def _library(found: Found, name: str) -> bytes | None:
    for _ in range(5):  # a link to a link, but no circle
        if name in found.libraries:
            return found.libraries[name]
        name = found.links.get(name, "")
    return None


def _downloaded(draft: Path, arch: str, suite: str, told: Told) -> dict[Path, tuple[str, str]]:
    """The packages and all that they depend on, verified by apt: file -> (name, version)."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (draft / name).mkdir(parents=True)
    (draft / "status").touch()
    (draft / "apt.conf").write_text(APT_CONF.format(arch=arch, draft=draft))
    sources = _sources(arch, suite)
    (draft / "sources.list").write_text("".join(f"{line}\n" for line in sources))
    apt = ["apt-get", "-c", str(draft / "apt.conf"), "-q", "-y"]
    told(f"asking {sources[0].split()[-3]} for Slurm of {sources[0].split()[-2]}")
    # One source of several may fail: what matters is whether the packages can be had, verified.
    said = _ran([*apt, "update"], APT_S, check=False)
    told("downloading packages: some 30 MB")
    done = _ran([*apt, "--download-only", "install", *PACKAGES], APT_S, check=False)
    found = sorted((draft / "cache" / "archives").glob("*.deb"))
    if done.returncode or not found:
        lines = [line for one in (said, done) for line in one.stderr.decode("utf-8", "replace").splitlines()]
        raise _failed(
            f"apt-get: {next((line for line in lines if line.startswith('E:')), 'no packages came')}"
        )
    return {path: _name_and_version(path) for path in found}


def _name_and_version(path: Path) -> tuple[str, str]:
    name, version, _ = path.name.split("_", 2)
    return name, version.replace("%3a", ":").rpartition(":")[2]


def _sources(arch: str, suite: str) -> list[str]:
    """The machine's own sources of its distribution, with another suite in the place of its own."""
    told = platform.freedesktop_os_release()
    system, own = told.get("ID", ""), told.get("VERSION_CODENAME", "")
    if system not in SUITES or not own:
        raise _failed(
            f"{told.get('PRETTY_NAME', 'this system')} is not known: make it on a Debian or Ubuntu (ftrun cluster bundle --out FILE)"
        )
    keys = f"/usr/share/keyrings/{system}-archive-keyring.gpg"
    if not os.path.exists(keys):
        raise _failed(f"{keys} is missing: install {system}-archive-keyring")
    wanted = suite or SUITES[system]
    rows = _ran(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
        ASK_S,
    )
    lines = []
    for row in rows.stdout.decode("utf-8", "replace").splitlines():
        address, name, component = [*row.split(), "", "", ""][:3]
        if name in {own, f"{own}-updates", f"{own}-security"} and component in {"main", "universe"}:
            lines.append(
                f"deb [arch={arch} signed-by={keys}] {address} {wanted}{name.removeprefix(own)} {component}"
            )
    if not lines:
        raise _failed(f"apt has no source of {own} here")
    return sorted(set(lines), key=lambda line: (line.split()[-2], line))


def _read(packages: Sequence[Path] | Mapping[Path, object]) -> Found:
    """Programs, plugins and libraries of packages. Only the last part of each path is used, and as a key."""
    found = Found({}, {}, {}, {})
    for package in packages:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
        ) as unpacker:
            with tarfile.open(fileobj=unpacker.stdout, mode="r|") as stream:
                for row in stream:
                    _take(found, stream, row)
            if unpacker.stdout:
                unpacker.stdout.read()
        if unpacker.returncode:
            raise _failed(f"{package.name} is damaged")
    return found


def _take(found: Found, stream: tarfile.TarFile, row: tarfile.TarInfo) -> None:
    path = PurePosixPath(row.name)
    folder, name = path.parent.name, path.name
    # Debian calls the daemons slurmd-wlm and so on, and links them by a mechanism that runs at installation.
    program = name.removesuffix("-wlm") if folder in {"bin", "sbin"} else ""
    is_library = ".so" in name and (
        folder in {"lib", "lib64", "slurm", "slurm-wlm"} or folder.endswith("-linux-gnu")
    )
    if row.issym() and is_library:
        found.links[name] = PurePosixPath(row.linkname).name
    reader = stream.extractfile(row) if row.isfile() and (is_library or program in SLURM_PROGRAMS) else None
    if reader is None:
        return
    content = reader.read()
    if program:
        found.programs[program] = content
    elif folder.startswith("slurm") and not name.startswith("lib"):
        found.plugins[name] = content
    else:
        found.libraries[name] = content


def _try(packed: bytes, folder: Path) -> None:
    """Let the bundle's loader find all libraries of each program and plugin: all of them in the bundle, none of this machine's."""
    files = contents(packed)
    write_bundle(files, str(folder), str(folder))
    loader = folder / "lib" / json.loads(files[MANIFEST])["loader"]
    way = [str(loader), "--inhibit-cache", "--library-path", str(folder / "lib")]
    for name in files:
        if not name.startswith(("real/", "plugins/")):
            continue
        said = _ran([*way, "--list", str(folder / name)], ASK_S).stdout.decode("utf-8", "replace")
        outside = [
            line.strip() for line in said.splitlines() if "=>" in line and f"=> {folder}/lib/" not in line
        ]
        # The loader tells itself by the path in the program: it is the bundle's all the same.
        if outside := [line for line in outside if f"=> {loader}" not in line]:
            raise _failed(f"{name} finds {outside[0]}")
    _ran([*way, str(folder / "real" / "slurmd"), "-V"], ASK_S)


def _ran(words: list[str], limit_s: float, *, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    name = " ".join(os.path.basename(word) for word in words[:2])
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(f"{name}: {error}") from None
    if check and done.returncode:
        raise _failed(f"{name}: {' '.join((done.stderr or done.stdout).decode('utf-8', 'replace').split())}")
    return done


def _failed(why: str) -> UserError:
    return UserError(f"no bundle of Slurm can be made: {why}", EXIT_FAILED)
