"""Builds the documents as a site that is read in a browser, with search: `make docs-site`.

The order of the pages is that of docs/index.md, and the front page is README.md: nothing is listed twice. The pages
keep their places beside each other, so that their links hold here as in the repository. A link that leads nowhere,
a page that the index does not name, and anything that a page would fetch from elsewhere fail the build.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#[^)]*)?\)")
ENTRY = re.compile(r"^- .*?\[([^\]]+)\]\(([^)#]+)\)")
FETCHED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)|url\((https?://[^)]+)"
)


def navigation(index: Path) -> list[dict[str, object]]:
    """The headings of the index with the pages of each: every first link of an entry, and further pages in it."""
    found: list[dict[str, object]] = [{"ftrun": "README.md"}]
    named = {"README.md"}
    pages: list[dict[str, object]] = []
    for line in index.read_text().splitlines():
        if line.startswith("## "):
            pages = []
            found.append({line.removeprefix("## "): pages})
        elif ENTRY.match(line):
            for title, target in LINK.findall(line):
                place = (index.parent / target).resolve().relative_to(ROOT).as_posix()
                if place.endswith(".md") and place not in named:
                    named.add(place)
                    pages.append({title.replace("`", ""): place})
    return [*found, {"All documents": "docs/index.md"}]


def with_blank_lines(text: str) -> str:
    """A blank line before each list and table: other readers of Markdown need none there."""
    told: list[str] = []
    fenced = False
    for line in text.splitlines():
        begins = re.match(r"(?:[-*] |\d+\. |\| )", line)
        before = told[-1] if told else ""
        inside = not before.strip() or re.match(r"\s|[-*] |\d+\. |\||#|<!--", before)
        if begins and not fenced and not inside:
            told.append("")
        fenced ^= line.lstrip().startswith("```")
        told.append(line)
    return "\n".join(told) + "\n"


def stage(folder: Path) -> None:
    """Copy the documents, and the files that they link to, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    index = ROOT / "docs" / "index.md"
    named = {
        (index.parent / link).resolve() for _, link in LINK.findall(index.read_text()) if link.endswith(".md")
    }
    for page in sorted({index, *named, *ROOT.glob("docs/*.md")}):
        text = page.read_text()
        target = folder / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_blank_lines(text))
        for _, link in LINK.findall(text):
            linked = (page.parent / link).resolve()
            if linked.is_file() and linked.suffix != ".md" and linked.is_relative_to(ROOT):
                copy = folder / linked.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, copy)


def main(out: Path) -> int:
    """Build the site into `out`. Returns 0, or 1 where something was wrong."""
    source = ROOT / ".cache" / "site-source"
    stage(source)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    slug = slugify(case="lower")
    config = load_config(
        config_file=str(ROOT / ".ci" / "docs_site.yml"),
        docs_dir=str(source),
        site_dir=str(out),
        nav=navigation(ROOT / "docs" / "index.md"),
        markdown_extensions=[{"toc": {"slugify": slug, "permalink": True}}, "tables", "attr_list"],
    )
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()
    elsewhere = {
        (page.relative_to(out).as_posix(), *filter(None, found))
        for page in out.rglob("*.html")
        for found in FETCHED.findall(page.read_text())
        if "canonical" not in found[0]
    }
    for page, address in sorted(elsewhere):
        print(f"{page}: fetches {address}", file=sys.stderr)
    print(f"{sum(1 for _ in out.rglob('*.html'))} pages: {out / 'index.html'}")
    return 1 if elsewhere else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".cache" / "site").resolve()))
