"""Builds the documentation's site: stages the pages, runs Zensical on them, and checks what came out.

Runs in the environment of ``make docs``, with the standard library and Zensical alone. Staged are the files
of ``docs/`` and the changelog, whose links are relative to the root of the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
STAGED = ROOT / CONFIG["docs_dir"]
SITE = ROOT / CONFIG["site_dir"]
OUTSIDE = {"CHANGELOG.md": "changelog.md"}
"""Pages of the site that are not in ``docs/``: where they are, and their name there."""

_FILE_FENCE = re.compile(r"^```(\w+) (?:file|append)=(\S+)$", re.MULTILINE)
_CSS_URL = re.compile(r"""(?:@import|url\()\s*["']?(https?:)?//""")
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


def list_pages() -> dict[str, Path]:
    """Every file of the site's source, by its path there."""
    docs = ROOT / "docs"
    found = {path.relative_to(docs).as_posix(): path for path in docs.rglob("*") if path.is_file()}
    return found | {name: ROOT / home for home, name in OUTSIDE.items()}


def convert_page(text: str, name: str) -> str:
    """A page as Zensical wants it: titles of files in code, links of pages that move, a wide start page."""
    if name in OUTSIDE.values():
        text = text.replace("](docs/", "](")
    for home, moved in OUTSIDE.items():
        text = re.sub(rf"\]\((\.\./)+{re.escape(home)}", f"]({'../' * name.count('/')}{moved}", text)
    text = _FILE_FENCE.sub(r'```\1 title="\2"', text)
    return f"---\nhide:\n  - toc\n---\n\n{text}" if name == "index.md" else text


def stage() -> None:
    """Bring the staged files up to date; those that stay as they are keep their times."""
    pages = list_pages()
    if STAGED.exists():
        for path in STAGED.rglob("*"):
            if path.is_file() and path.relative_to(STAGED).as_posix() not in pages:
                path.unlink()
    for name, source in pages.items():
        content = source.read_bytes()
        if source.suffix == ".md":
            content = convert_page(content.decode("utf-8"), name).encode("utf-8")
        path = STAGED / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_offline_index(site: Path) -> None:
    """Give pages that are opened as files the index as a script, since they may not fetch it."""
    index = (site / "search.json").read_text(encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {index}", encoding="utf-8")


class PageLinks(HTMLParser):
    """What a built page links to, what its elements are called, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {name for name in (given.get("id"), given.get("name")) if name}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"] or "")
        fetched = given.get("href") if tag == "link" else given.get(_LOADS.get(tag, ""))
        if fetched:
            self.fetched.add(fetched)


def check_site(site: Path) -> list[str]:
    """What is wrong with built pages: links that lead nowhere, and whatever is fetched from elsewhere."""
    pages = {
        path.resolve(): PageLinks(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
    }
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute, for any depth
            continue
        for link in sorted(page.links | page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.fetched and parts.scheme != "data":
                    wrong.append(f"{path.relative_to(site)}: fetches {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            name = unquote(parts.fragment)
            if not target.is_file():
                wrong.append(f"{path.relative_to(site)}: no page {link}")
            elif name and target in pages and name not in pages[target].names:
                wrong.append(f"{path.relative_to(site)}: no heading {link}")
    for style in sorted(site.rglob("*.css")):
        if _CSS_URL.search(style.read_text(encoding="utf-8")):
            wrong.append(f"{style.relative_to(site)}: fetches something from elsewhere")
    return wrong


def build() -> int:
    """Build the site, with warnings as errors."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, encoding="utf-8") as zensical:
        assert zensical.stderr is not None
        told = [_pass_on(line) for line in zensical.stderr]
    if zensical.returncode:
        return zensical.returncode
    write_offline_index(SITE)
    # Strict are links and pages; what the reference lacks is only told.
    wrong = [line.strip() for line in told if line.startswith("griffe:")] + check_site(SITE)
    sys.stderr.writelines(f"{each}\n" for each in wrong)
    sys.stdout.write(f"{(SITE / 'index.html').relative_to(ROOT)}: {len(list(SITE.rglob('*.html')))} pages\n")
    return 1 if wrong else 0


def _pass_on(line: str) -> str:
    sys.stderr.write(line)
    return line


def serve(arguments: list[str]) -> int:
    """Show the site on loopback; pages are staged again every second, so that edits appear."""
    stage()
    ended = threading.Event()

    def stage_again() -> None:
        while not ended.wait(1):
            stage()

    threading.Thread(target=stage_again, daemon=True).start()
    try:
        return _run_zensical("serve", *arguments)
    except KeyboardInterrupt:
        return 0
    finally:
        ended.set()


def _run_zensical(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "zensical", *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build"]:
            sys.exit(build())
        case ["serve", *rest]:
            sys.exit(serve(rest))
        case _:
            sys.exit("docs_site.py build, or docs_site.py serve [options of zensical serve]")
