"""Try ftrun on this machine's accelerator, and write what was seen: python3 -m tests.accelerators (docs/accelerators.md).

Each case says what is expected and what was seen. A machine without an accelerator is told so by each case that needs one, and the rest
runs. Settings of the device are changed with --own-machine only, and put back. Exit 1 where something was otherwise than expected. (I/O)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("checks", "failures", "behaviour", "loop")
WITHIN_S = 520.0


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tests.accelerators", description=__doc__)
    add = parser.add_argument
    add("--parts", default=",".join(PARTS), help=f"which of {', '.join(PARTS)} (default: all)")
    add("--cases", default="", help="only cases whose names hold one of these words, with commas between")
    add(
        "--own-machine",
        action="store_true",
        help="also cases that change settings of the device, and put them back",
    )
    add("--out", type=Path, help="the folder for accelerators.json and accelerators.md (default: a new one)")
    add(
        "--within",
        type=float,
        default=WITHIN_S,
        metavar="SECONDS",
        help=f"end within this time (default: {WITHIN_S:g})",
    )
    add(
        "--python",
        default="",
        help="the interpreter that has torch (default: that of make proofs, else this one)",
    )
    add(
        "--kit",
        type=Path,
        default=ROOT / ".cache" / "gpu-kit.tar.xz",
        help="what `make gpu-kit` made (default: .cache/gpu-kit.tar.xz)",
    )
    words = parser.parse_args()
    if strange := sorted(set(words.parts.split(",")) - set(PARTS)):
        parser.error(f"no part is called {strange[0]}; there are {', '.join(PARTS)}")
    return words


def main() -> int:
    """Arrange what is needed, run the cases, write the files."""
    words = _words()
    if sys.version_info < (3, 11):  # noqa: UP036  a machine whose python3 is older is told so
        print("ftrun needs Python 3.11; --python names an older one for the programs alone", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        draft = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftrun-gpu-")))
        from tests.accelerators import kit

        kit.use(words.kit, draft)
        return _tried(words, draft, stack)


def _tried(words: argparse.Namespace, draft: Path, stack: contextlib.ExitStack) -> int:
    from tests.accelerators import behaviour, cases, checks, failures, loop, settings
    from tests.accelerators.here import Here

    proofs = ROOT / ".tools" / "proofs" / "bin" / "python"
    python = words.python or (str(proofs) if proofs.exists() else sys.executable)
    out = words.out or Path(tempfile.mkdtemp(prefix="ftrun-accelerators-"))
    out.mkdir(parents=True, exist_ok=True)
    sandbox = loop.Slurm(draft)
    stack.callback(sandbox.down)
    here = Here(python, draft, sandbox.get, words.own_machine)
    modules = {"checks": checks, "failures": failures, "behaviour": behaviour, "loop": loop}
    wanted = words.parts.split(",")
    chosen = [case for part in PARTS if part in wanted for case in modules[part].CASES]
    chosen += settings.CASES if "checks" in wanted else []
    chosen = [case for case in chosen if any(word in case.name for word in words.cases.split(","))]

    def told(row: cases.Result) -> None:
        print(f"{row.verdict:<12} {row.part} {row.case}: {row.seen} [{row.took_s:g} s]", flush=True)

    results = cases.run(chosen, here, words.within, told)
    written = cases.write(out, here.words() | {"slurm": sandbox.words()}, results)
    _keep_logs(draft, out)
    print(cases.summary(results))
    print(f"written: {written[0]}, {written[1]}")
    return int(any(row.verdict in (cases.OTHERWISE, cases.BROKEN) for row in results))


def _keep_logs(draft: Path, out: Path) -> None:
    """The raw logs of the failing programs as one file: they are worth more than our reading of them."""
    with open(out / "logs.txt", "w", encoding="utf-8") as stream:
        for path in sorted(draft.glob("logs/*")):
            text = (
                path.read_text(errors="replace")
                .replace(str(Path(sys.prefix)), "PREFIX")
                .replace(os.getcwd(), ".")
            )
            stream.write(f"===== {path.name}\n{text}\n")


if __name__ == "__main__":
    sys.exit(main())
