"""Makes the pictures of README and the documents from a real run: `make pictures`.

A drill (the first of `./demo`) runs on a real Slurm of this machine. What it, `ftrun explain` and `ftrun stats` print
is drawn as a terminal, and the band of the run's report is taken out of its page. Nothing is retouched but the folder
of the drill, and no picture fetches a font.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
FTRUN = Path(sys.executable).with_name("ftrun")
WIDTH = 124
SIZE_MAX_BYTES = 60_000


def save(name: str, text: str) -> None:
    """Write a picture. Raises ValueError for one that is too large for a page."""
    if len(text.encode()) > SIZE_MAX_BYTES:
        raise ValueError(f"{name}: {len(text.encode())} bytes")
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / name).write_text(text)
    print(f"{PICTURES / name}: {len(text.encode())} bytes")


def terminal(title: str, printed: str) -> str:
    """The SVG of a terminal that shows a text."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in printed.rstrip().splitlines():
        console.print(Text(line))
    drawn = console.export_svg(title=title)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return drawn.replace("Fira Code,", "ui-monospace,DejaVu Sans Mono,")


def band(page: str) -> str:
    """The picture of the run over time, out of a report, with the report's colours."""
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    figure = re.search(r"<figure>(<svg .*?</svg>)</figure>", page, re.DOTALL)
    if style is None or figure is None:
        raise ValueError("the report has no band")
    shown = set(re.findall(r'class="([\w -]+)"', figure[1]))
    rules = [
        rule
        for rule in re.findall(
            r"[^{}]+\{[^{}]*\}", re.sub(r"@media [^{]*\{(?:[^{}]+\{[^{}]*\})*\}", "", style[1])
        )
        if rule.lstrip().startswith(":root") or any(f".{one}" in rule.partition("{")[0] for one in shown)
    ]
    paper = ":root{background:#fff;font-family:system-ui,sans-serif}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="1070"><style>{"".join(rules)}{paper}</style>'
    return (
        figure[1]
        .replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" width="1070"', 1)
        .replace(">", ">" + head.partition(">")[2], 1)
    )


def main() -> int:
    """Run the drill and draw."""
    home: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="ftrun-pictures-") as folder:
        words = [FTRUN, "drill", "--keep", "--folder", folder, "--report", folder]
        shown = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        events = shown.partition("DRILL ")[0]
        save("demo.svg", terminal("./demo", events))
        (report,) = Path(folder).glob("*.html")
        save("report-band.svg", band(report.read_text()))
        home = [path.parent for path in Path(folder).rglob("runs") if path.is_dir()]
        env = {**os.environ, "FTRUN_HOME": str(home[0])}
        (run,) = (path.name for path in (home[0] / "runs").iterdir())
        for name in ("explain", "stats"):
            told = subprocess.run(
                [FTRUN, name, run], env=env, capture_output=True, text=True, check=True
            ).stdout
            told = re.sub(rf"{re.escape(folder)}/[\w./-]*/", "", told)
            save(f"{name}.svg", terminal(f"ftrun {name} {run}", told))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
