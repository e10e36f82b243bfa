"""Names, paths and records of staged checkpoints. (pure)

A *set* is one checkpoint over all nodes: a name at the top of FTRUN_STAGE_DIR. A node's share of it is its
*part*. Each start of the script has its own folder, so ranks or leftovers of an earlier start never mix with
what the next start saves. A part that is complete is *sealed*: a record lists its files, and hard links keep
them at no cost in memory, so a script that deletes an old checkpoint deletes nothing that is unpublished.

On each node, below `<stage-dir>/ftrun-<uid>/<run>.<job>` (the same path on all of them, 0700):

    stage/<token>/<set>                  what the script writes into FTRUN_STAGE_DIR; token = <launch>.<start>
    marks/<token>/<set>/<rank>.<word>    reported by `with stage(step):` for a rank: begin, done, failed
    held/<token>/<set>                   the sealed part, by hard links
    parts/<token>/<set>.json             its seal, written last; `.before` while the name is saved again
    partner/<node>/<token>/<set>[.json]  another node's sealed part and its seal; the seal is written last
    views/<...>                          folders of links that a start resumes from

On the shared file system, below the folder that sets are published to:

    .ftrun-publishing/<set>.<job>.<token>/
        owner.json                       the run and attempt that it belongs to
        incoming/<node>.<generation>/    a part from its first byte until the set is published
        parts/<node>.json                the part's seal with checksums: complete and synchronised
        data.<key>/<set>                 the set, linked from exactly these parts
        asked.json, words/<node>         for a name that is saved again: whether all parts are of one save
    .ftrun-sets/<set>.<sum>/             a set whose name is a link (see replace)
    <set>/.ftrun-manifest.json, <set>/.ftrun-complete

In the attempt's folder: `stage/<node>.json`, the report of a node.
"""

from __future__ import annotations

import json
import re
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
    """One file of a part as staged (size, time, inode); `sha256` is "" until it is known."""

    size_bytes: int
    mtime_ns: int = 0
    inode: int = 0
    sha256: str = ""


class Seal(NamedTuple):
    """A complete part: the files of `node` in set `name`, by path ("" for a set of one file). `is_file`: the
    set is a single file. `proven`: its ranks reported that they are done, or its writers are alive; otherwise
    only the layout can prove that it is complete. `sealed_s`: Unix seconds by the node's clock, for display
    only. `save`: how often this node saw the name saved in this start. A part without files means that this
    node has nothing of the set. `is_alone`: one rank saved for all nodes.
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
        """Its size in memory and on disk."""
        return sum(one.size_bytes for one in self.files.values())

    @property
    def has_sums(self) -> bool:
        """Whether all checksums are known."""
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
        """The copy of a sealed part of `node`."""
        return f"{self.base}/partner/{node}/{token}/{name}"

    def partner_seal(self, node: str, token: str, name: str) -> str:
        """The seal of that copy, written when the copy is complete."""
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
        """Everything of the set until it is published."""
        return f"{self.to}/{PUBLISHING}/{self.name}.{self.job}.{self.token}"

    @property
    def owner(self) -> str:
        """The file that names the run and attempt."""
        return f"{self.folder}/owner.json"

    def incoming(self, node: str, generation: str) -> str:
        """A part while it arrives; each content of it has its own folder (`merge.generation`)."""
        return f"{self.folder}/incoming/{node}.{generation}/{self.name}"

    @property
    def parts(self) -> str:
        """The folder of the records of complete parts."""
        return f"{self.folder}/parts"

    def part(self, node: str) -> str:
        """The record of a node's complete part."""
        return f"{self.parts}/{node}.json"

    def data(self, key: str) -> str:
        """The set while it is assembled (`merge.MergedSet.key`)."""
        return f"{self.folder}/data.{key}/{self.name}"

    def word(self, node: str) -> str:
        """A node's confirmation that its part belongs to the same save as the others (`merge`)."""
        return f"{self.folder}/words/{node}"

    @property
    def asked(self) -> str:
        """The parts whose nodes are asked for that confirmation (`merge`)."""
        return f"{self.folder}/asked.json"

    @property
    def final(self) -> str:
        """Its final path, if the name is free."""
        return f"{self.to}/{self.name}"

    @staticmethod
    def of(to: str, entry: str) -> Optional[Publishing]:
        """The set of a folder inside `.ftrun-publishing`; None for a folder that is not ours."""
        found = re.fullmatch(r"(.+)\.([0-9]+)\.([0-9]+\.[0-9]+)", entry, re.DOTALL)
        return Publishing(to, *found.groups()) if found else None


def base_of(stage_dir: str, uid: int, run: str, job: str) -> str:
    """The folder of a run's job on each of its nodes; batch.sh builds the same path."""
    return f"{stage_dir.rstrip('/')}/ftrun-{uid}/{run}.{job}"


def report_path(attempt_folder: str, node: str) -> str:
    """The report of one node."""
    return f"{attempt_folder}/stage/{node}.json"


def is_set_name(name: str) -> bool:
    """Whether a name at the top of FTRUN_STAGE_DIR is a checkpoint, and not a temporary name."""
    if not name or name.startswith(".") or name in TRACKERS or name.endswith(_OWN):
        return False
    return not is_temporary(name) and ".orbax-checkpoint-tmp" not in name


def is_set(name: str, *, is_folder: bool) -> bool:
    """As `is_set_name`, but a tracker's name counts as a checkpoint if it is a folder (`last`)."""
    return is_set_name(name) or (is_folder and name in TRACKERS)


def is_inner_path(path: str) -> bool:
    """Whether a path in a record stays inside its set; "" is the set itself."""
    return path == "" or (
        not path.startswith("/") and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
    )


def seal_json(seal: Seal) -> str:
    """The text of a seal."""
    table = seal._asdict()
    table["files"] = {path: list(one) for path, one in seal.files.items()}
    return json.dumps({"version": VERSION, **table}, separators=(",", ":"))


def read_seal(text: str) -> Optional[Seal]:
    """The seal in a record; None if the record is torn or of an unknown version."""
    try:
        table: Any = json.loads(text)
        if not isinstance(table, dict) or table.pop("version", None) != VERSION:
            return None
        files = {str(path): _file(row) for path, row in table.pop("files").items()}
        seal = Seal(files=files, **table)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
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
