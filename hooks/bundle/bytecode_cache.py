"""The zipapp's modules compiled once for each Python, in a cache file beside the zipapp. (I/O)

Compiling its hundred modules takes longer than running them, and all nodes of a job would do it at the same
moment. So the first process writes the compiled modules to a file beside the zipapp, named after the zipapp
and the interpreter, and the others load from there. The file is trusted only if it belongs to the owner of
the zipapp (this user or root), no other user may write it, and it carries the zipapp's SHA-256. Otherwise the
sources in the zipapp are used.

A process reads the table at the front, and the code of a module when it imports it: the fence daemon needs
few modules, and it runs beside the ranks for days.
"""

from __future__ import annotations

import marshal
import os
import sys
import zlib
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, Optional


MAGIC = b"ftrun, compiled\n"
HEAD_BYTES = len(MAGIC) + 100
OTHERS_MAY_WRITE = 0o022
STALE_S = 60.0


def cache_path(packed: str) -> str:
    """The path of the cache file of a zipapp; each release of Python has its own."""
    return f"{packed}.{sys.implementation.cache_tag}-{sys.hexversion:08x}"


def install_or_compile(packed: str) -> bool:
    """Load modules from the cache file from now on; create it first if it is missing. A child process creates
    it, since an interpreter does not give that memory back.
    """
    if install_finder(packed):
        return True
    try:
        child = os.fork()
    except OSError:
        return False
    if not child:
        try:
            compile_modules(packed)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return install_finder(packed)


def install_finder(packed: str) -> bool:
    """Load modules from the cache file from now on. False if there is none that can be trusted."""
    try:
        owner = os.stat(packed)
        descriptor = os.open(cache_path(packed), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fact = os.fstat(descriptor)
        mine = fact.st_uid == owner.st_uid and fact.st_uid in (os.geteuid(), 0)
        if mine and not fact.st_mode & OTHERS_MAY_WRITE:
            head = os.pread(descriptor, HEAD_BYTES, 0)
            index_bytes = int(head[-9:], 16)
            index = os.pread(descriptor, index_bytes, HEAD_BYTES)
            if len(index) == index_bytes and head == _header(_digest(packed), fact.st_size, index):
                table = marshal.loads(index)  # noqa: S302  our own
                sys.meta_path.insert(0, _Finder(packed, descriptor, HEAD_BYTES + index_bytes, table))
                return True
    except (OSError, ValueError, EOFError, TypeError):
        pass
    os.close(descriptor)
    return False


def _header(digest: bytes, all_bytes: int, index: bytes) -> bytes:
    """The header: it exposes a truncated file, and one made from another zipapp."""
    return MAGIC + b"%s %08x %016x %08x\n" % (digest, zlib.crc32(index), all_bytes, len(index))


def _digest(packed: str) -> bytes:
    """The SHA-256 of a zipapp by the built-in module: hashlib's OpenSSL takes more than all else here."""
    known: Any = None
    for name in ("_sha2", "_sha256", "hashlib"):
        try:
            known = __import__(name)
            break
        except ImportError:
            continue
    with open(packed, "rb") as stream:
        return bytes(known.sha256(stream.read()).hexdigest(), "ascii")


class _Finder:
    """An import finder and loader for the modules of a cache file. `table`: name -> (whether it is a package,
    offset of its code behind `start`, its length, its CRC).
    """

    def __init__(
        self, packed: str, descriptor: int, start: int, table: dict[str, tuple[bool, int, int, int]]
    ) -> None:
        self._packed = packed
        self._descriptor, self._start = descriptor, start
        self._table = table

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Optional[ModuleSpec]:
        """The spec of a module; None for a foreign or damaged one: then the zipapp's source is used."""
        if name not in self._table:
            return None
        is_package, offset, size_bytes, checksum = self._table[name]
        try:
            code = os.pread(self._descriptor, size_bytes, self._start + offset)
        except OSError:
            return None
        if zlib.crc32(code) != checksum:
            return None
        place = os.path.join(self._packed, *name.split("."))
        spec = ModuleSpec(
            name,
            self,  # type: ignore[arg-type]  # it has the methods that the import system calls
            origin=f"{place}/__init__.py" if is_package else f"{place}.py",
            loader_state=code,
        )
        if is_package:
            spec.submodule_search_locations = [place]  # for damaged modules
        return spec

    def get_data(self, path: str) -> bytes:
        """A file of the zipapp. Raises OSError."""
        from zipimport import zipimporter

        return zipimporter(self._packed).get_data(path)

    def create_module(self, _spec: ModuleSpec) -> None:
        """The default module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code in it."""
        spec: Any = module.__spec__
        code: CodeType = marshal.loads(spec.loader_state)  # noqa: S302  our own
        spec.loader_state = None
        exec(code, module.__dict__)  # noqa: S102  our own


def compile_modules(packed: str) -> bool:
    """Compile a zipapp into the cache file; False if it is not ours, is being compiled or cannot be."""
    import contextlib
    import time
    import zipfile

    final = cache_path(packed)
    draft = f"{final}.tmp"
    with contextlib.suppress(OSError):
        if time.time() - os.stat(draft).st_mtime > STALE_S:
            os.unlink(draft)
    try:
        if os.stat(packed).st_uid != os.geteuid():
            return False
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(packed) as content:
            stream.write(_cache_bytes(_digest(packed), _code_of_modules(packed, content)))
        os.replace(draft, final)
    except (OSError, ValueError, SyntaxError, zipfile.BadZipFile):
        with contextlib.suppress(OSError):
            os.unlink(draft)
        return False
    return True


def _cache_bytes(digest: bytes, modules: dict[str, tuple[bool, bytes]]) -> bytes:
    """Header, table, and the code of all modules, one after the other."""
    table, offset = {}, 0
    for name, (is_package, code) in modules.items():
        table[name] = (is_package, offset, len(code), zlib.crc32(code))
        offset += len(code)
    index = marshal.dumps(table)
    head = _header(digest, HEAD_BYTES + len(index) + offset, index)
    return b"".join((head, index, *(code for _, code in modules.values())))


def _code_of_modules(packed: str, content: Any) -> dict[str, tuple[bool, bytes]]:
    modules = {}
    for file in content.namelist():
        name = file.replace("/", ".")
        for end, is_package in ((".__init__.py", True), (".py", False)):
            if name.endswith(end) and not name.startswith("__"):
                code = compile(content.read(file), f"{packed}/{file}", "exec", dont_inherit=True)
                modules[name[: -len(end)]] = (is_package, marshal.dumps(code))
                break
    return modules
