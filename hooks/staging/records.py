"""Where staged checkpoints lie and what is written down of them: names, paths and records. (pure)

A *set* is one checkpoint over all nodes: a name at the top of FTRUN_STAGE_DIR. What one node
has of it is its *part*. Each start of the script has a folder of its own, so that ranks that outlive their
start, and leftovers of one that died, never mix with what the next start saves. A part that will not change
any more is *sealed*: a record says what is in it, and its files are held by hard links, which cost no memory;
a script that deletes its old checkpoints deletes nothing that was not published yet.

On each node, below `<stage-dir>/ftrun-<uid>/<run>.<job>` (the same path on all of them, 0700):

    stage/<token>/<set>                  what the script writes into FTRUN_STAGE_DIR; token = <launch>.<start>
    marks/<token>/<set>/<rank>.<word>    what `with stage(step):` says of a rank: begin, done, failed
    held/<token>/<set>                   the sealed part, by hard links
    parts/<token>/<set>.json             its seal; written last; `.before` while the name is saved again
    partner/<node>/<token>/<set>[.json]  another node's sealed part and its seal; the seal is written last
    views/<...>                          folders of links that a start resumes from

On the shared file system, below the folder that sets are published to:

    .ftrun-publishing/<set>.<job>.<token>/
        owner.json                       the run and attempt that this belongs to
        incoming/<node>.<generation>/    a part while it arrives and until the set is put together
        parts/<node>.json                the part is there, whole and safe on disk: its seal, with sums
        data.<key>/<set>                 the set while it is put together from just these parts
        asked.json, words/<node>         of a name that is saved again: whether all parts are of one save
    .ftrun-sets/<set>.<sum>/             a set whose name is a link (see replace)
    <set>/.ftrun-manifest.json, <set>/.ftrun-complete

In the attempt's folder: `stage/<node>.json`, the report of a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checkpoints.names import is_temporary

VERSION = 1
BEGIN, DONE, FAILED = "begin", "done", "failed"
PUBLISHING = ".ftrun-publishing"
# Top-level names that are no checkpoint: frameworks note the newest one there. A view has its own.
TRACKERS = frozenset({
    "latest", "latest_universal", "latest_checkpointed_iteration.txt", "checkpoint", "last", "meta.json",
    "progress.txt",
})  # fmt: skip
_OWN = (".ftrun-manifest.json", ".ftrun-complete")


class File(NamedTuple):
    """One file of a part. `mtime_ns` and `inode` are the staged file's own.

    `sha256` is "" until it is known.
    """

    size_bytes: int
    mtime_ns: int = 0
    inode: int = 0
    sha256: str = ""


class Seal(NamedTuple):
    """A part that will not change: the files of `node` in set `name`, by path ("" for a set of one file).

    `is_file`: the set is a single file. `proven`: its ranks said so, or whoever wrote it lived on; else only
    its layout can tell that it is whole. `sealed_s`: Unix seconds by the node's clock, for people only.
    `save`: how often this node has seen the name saved in this start. A part without files says: nothing of
    this set is here. `is_alone`: its one rank saved for all nodes, so no other has anything of it.
    """

    name: str
    token: str
    node: str
    files: Mapping[str, File]
    is_file: bool = False
    proven: bool = True
    sealed_s: float = 0.0
    save: int = 1
    is_alone: bool = False

    @property
    def size_bytes(self) -> int:
        """What it takes, in memory and on disk."""
        return sum(one.size_bytes for one in self.files.values())

    @property
    def has_sums(self) -> bool:
        """Whether every file's checksum is known."""
        return all(one.sha256 for one in self.files.values())


class Home(NamedTuple):
    """The folder of a job on each of its nodes."""

    base: str

    def stage(self, token: str) -> str:
        """FTRUN_STAGE_DIR of a start."""
        return f"{self.base}/stage/{token}"

    def marks(self, token: str, name: str = "") -> str:
        """The marks of a start, or of one set of it."""
        return f"{self.base}/marks/{token}" + (f"/{name}" if name else "")

    def held(self, token: str, name: str) -> str:
        """A sealed part: a folder, or a file where the set is one file."""
        return f"{self.base}/held/{token}/{name}"

    def seals(self, token: str) -> str:
        """The folder of the seals of a start."""
        return f"{self.base}/parts/{token}"

    def seal(self, token: str, name: str) -> str:
        """The seal of a part of this node."""
        return f"{self.seals(token)}/{name}.json"

    def seal_before(self, token: str, name: str) -> str:
        """The last seal of a part that is being saved again."""
        return f"{self.seals(token)}/{name}.before"

    def partner(self, node: str, token: str, name: str) -> str:
        """The copy of another node's sealed part."""
        return f"{self.base}/partner/{node}/{token}/{name}"

    def partner_seal(self, node: str, token: str, name: str) -> str:
        """Its seal, which is there once the copy is whole."""
        return f"{self.partner(node, token, name)}.json"

    @property
    def views(self) -> str:
        """Folders of links that starts resume from."""
        return f"{self.base}/views"


class Publishing(NamedTuple):
    """A set on its way to folder `to`: `name` of start `token` of Slurm job `job`."""

    to: str
    name: str
    job: str
    token: str

    @property
    def folder(self) -> str:
        """All that lies there until it is published."""
        return f"{self.to}/{PUBLISHING}/{self.name}.{self.job}.{self.token}"

    @property
    def owner(self) -> str:
        """Whose it is."""
        return f"{self.folder}/owner.json"

    def incoming(self, node: str, generation: str) -> str:
        """A part while it arrives; sealed anew with other content it is another one (`merge.generation`)."""
        return f"{self.folder}/incoming/{node}.{generation}/{self.name}"

    @property
    def parts(self) -> str:
        """The folder of the records of parts that are there."""
        return f"{self.folder}/parts"

    def part(self, node: str) -> str:
        """The record of a part that is there."""
        return f"{self.parts}/{node}.json"

    def data(self, key: str) -> str:
        """The set while it is put together (`merge.MergedSet.key`)."""
        return f"{self.folder}/data.{key}/{self.name}"

    def word(self, node: str) -> str:
        """The record of a node's word that its part belongs to the save that others have (`merge`)."""
        return f"{self.folder}/words/{node}"

    @property
    def asked(self) -> str:
        """Which parts are about to be put together (`merge`)."""
        return f"{self.folder}/asked.json"

    @property
    def final(self) -> str:
        """Where it will be, if the name is free."""
        return f"{self.to}/{self.name}"

    @staticmethod
    def of(to: str, entry: str) -> Optional[Publishing]:
        """What a name inside `.ftrun-publishing` means; None for one that is not ours."""
        words = entry.rsplit(".", 3)
        if (
            len(words) != 4
            or not words[0]
            or not all(word.isascii() and word.isdigit() for word in words[1:])
        ):
            return None
        return Publishing(to, words[0], words[1], f"{words[2]}.{words[3]}")


def base_of(stage_dir: str, uid: int, run: str, job: str) -> str:
    """The folder of a job of a run on each of its nodes; batch.sh makes the same path."""
    return f"{stage_dir.rstrip('/')}/ftrun-{uid}/{run}.{job}"


def report_path(attempt_folder: str, node: str) -> str:
    """The report of one node."""
    return f"{attempt_folder}/stage/{node}.json"


def is_set_name(name: str) -> bool:
    """Whether a name at the top of FTRUN_STAGE_DIR is a checkpoint, finished by its name."""
    if not name or name.startswith(".") or name in TRACKERS or name.endswith(_OWN):
        return False
    return not is_temporary(name) and ".orbax-checkpoint-tmp" not in name


def is_set(name: str, *, is_folder: bool) -> bool:
    """Whether what lies there is a checkpoint: a tracker's name is one where it is a folder (`last`)."""
    return is_set_name(name) or (is_folder and name in TRACKERS)


def is_inner_path(path: str) -> bool:
    """Whether a path of a record stays inside its set; "" is the set itself."""
    return path == "" or (
        not path.startswith("/") and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
    )


def seal_json(seal: Seal) -> str:
    """The record of a seal, or of a part that is there."""
    table = seal._asdict()
    table["files"] = {path: list(one) for path, one in seal.files.items()}
    return json.dumps({"version": VERSION, **table}, separators=(",", ":"))


def read_seal(text: str) -> Optional[Seal]:
    """The seal that a record tells; None where it is torn, or of a version that is not understood."""
    try:
        table: Any = json.loads(text)
        if not isinstance(table, dict) or table.pop("version", None) != VERSION:
            return None
        files = {str(path): _file(row) for path, row in table.pop("files").items()}
        seal = Seal(files=files, **table)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    texts = (seal.name, seal.token, seal.node)
    if not all(isinstance(text, str) and text for text in texts) or "/" in "".join(texts):
        return None
    return seal if all(is_inner_path(path) for path in files) else None


def _file(row: list[Any]) -> File:
    one = File(*row)
    if not all(isinstance(number, int) and number >= 0 for number in one[:3]) or not isinstance(
        one.sha256, str
    ):
        raise ValueError("no file")
    return one
