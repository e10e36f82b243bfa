"""Makes the pictures of README and the documents from a real run: `make pictures`.

A drill (the first of `./demo`) runs on a real Slurm of this machine. What it, `ftrun explain` and `ftrun stats` print
is drawn as a terminal, the board of `ftrun top` as it is, and the band of the run's report is taken out of its page. Nothing is retouched but the folder
of the drill, and no picture fetches a font.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ftrun.supervisor.board.reading import Told, Watch
from ftrun.supervisor.board.screen import Board
from ftrun.supervisor.cli import runs

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
FTRUN = Path(sys.executable).with_name("ftrun")
WIDTH = 124
SIZE_MAX_BYTES = 60_000
SHOWN_AFTER_S = 45.0
"""So long the runs of the board have trained."""


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
    return without_fonts(console.export_svg(title=title))


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


def without_fonts(drawn: str) -> str:
    """The SVG of a terminal that fetches no font."""
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return drawn.replace("Fira Code,", "ui-monospace,DejaVu Sans Mono,")


def board(folder: str) -> str:
    """The board of `ftrun top` on a real Slurm: a training that lost a GPU, one that goes well, one with an error, one in the queue."""
    box, work = Path(folder) / "box", Path(folder) / "work"
    shutil.copytree(ROOT / "tests/first_days/scripts", work)
    env = {**os.environ, "FTRUN_HOME": str(Path(folder) / "home")}
    train = "srun python3 train.py --steps 900 --pace 0.5"

    def said(*words: str) -> None:
        command = [FTRUN, "sandbox", "run", "--folder", box, "--", FTRUN, *words]
        subprocess.run(command, env=env, cwd=work, check=True, capture_output=True)

    subprocess.run([FTRUN, "sandbox", "up", "--folder", box, "--nodes", "6"], check=True, capture_output=True)
    try:
        (work / "train.py").write_text(
            (work / "train.py")
            .read_text()
            .replace('"--steps", type=int, default=20', '"--steps", type=int, default=600')
        )
        said("sbatch", "-Jllm-7b", "07-gpu-lost.sh")
        said("sbatch", "-Jvision", "-N2", f"--wrap={train} --out vision")
        said("sbatch", "-Jtokenizer", "03-bug.sh")
        said("sbatch", "-Jablation", "-N6", f"--wrap={train} --out ablation")
        time.sleep(SHOWN_AFTER_S)
        return asyncio.run(_shot(env["FTRUN_HOME"]))
    finally:
        subprocess.run([FTRUN, "sandbox", "down", "--folder", box], check=False, capture_output=True)


async def _shot(home: str) -> str:
    by = runs.told_by(home)
    told = Told(
        home, lambda _: Watch(True, ("watched from login1",)), by.explain, by.nodes, lambda words: words
    )
    app = Board(told, every=True)
    async with app.run_test(size=(WIDTH, 12)) as pilot:
        while not (app.reader.whole and app.watch_now.lines):
            await pilot.pause(0.1)
        await pilot.pause(3)
        return without_fonts(app.export_screenshot(title="ftrun top --all"))


def main() -> int:
    """Run the drill and draw."""
    with tempfile.TemporaryDirectory(prefix="ftrun-pictures-") as folder:
        save("top.svg", board(folder))
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
