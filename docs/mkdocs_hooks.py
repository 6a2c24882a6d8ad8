"""What mkdocs makes the site of: the project's pages where they lie, the files they link to, and the reference.

Pages keep their places, so that a link that works in the repository works on the site. A link to a file of code leads
to a page that shows it; a link to a folder becomes its name. The reference of the commands is read from the commands,
that of their JSON from the classes of their results, that of Python from signatures and docstrings: none is written,
and none can go stale.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "docs/*.svg", "docs/*.js", "reports/**/*.md", "reports/**/*.svg")
_LINK = re.compile(r"```.*?```|\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)|`[^`\n]*`|(?P<index>\]\[)", re.DOTALL)
_LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="((?:https?:)?//[^"]*)"')
_LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".sh": "sh", ".toml": "toml"}
log = get_plugin_logger("refsim")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the theme's files, the project's pages, the reference, and every file of the project that a page links to."""
    pages = Files([file for file in files if file.src_dir != config.docs_dir])
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    for path in paths:
        uri = path.relative_to(ROOT).as_posix()
        pages.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls))
    linked = {target for path in paths if path.suffix == ".md" for target in _targets(path)}
    shown = {_source(path): _code(path) for path in sorted(linked - set(paths)) if path.is_file()}
    made = {"cli": _commands(), "json": _json(), "python": _python()}
    reference = {f"docs/reference_{name}.md": text for name, text in made.items()}
    for uri, text in {**reference, **shown}.items():
        pages.append(File.generated(config, uri, content=text))
    return pages


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Links to files of code lead to the pages that show them, and folders are named."""
    here = posixpath.dirname(page.file.src_uri)

    def follow(match: re.Match[str]) -> str:
        if match[0].startswith("```"):  # what the tests are told about a block is not for readers
            return re.sub(r"^```(\w+) .*", r"```\1", match[0], count=1)
        if match["index"]:  # as in K[1][shard 0], which is no link
            return r"]\["
        words, target, anchor, _ = match.groups()
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        path = ROOT / posixpath.normpath(posixpath.join(here, target))
        if files.get_file_from_path(path.relative_to(ROOT).as_posix()):
            return match[0]
        if files.get_file_from_path(_source(path)):
            return f"[{words}]({posixpath.relpath(_source(path), here)}{anchor or ''})"
        return f"`{words.strip('`')}`" if path.is_dir() else match[0]  # mkdocs says what leads nowhere

    return _LINK.sub(follow, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> None:
    """Keep the site readable without a network: nothing is loaded from one."""
    for address in _LOADED.findall(output):
        log.warning(f"{page.file.src_uri} loads {address}")


def _targets(page: Path) -> set[Path]:
    links = (match[2] for match in _LINK.finditer(page.read_text(encoding="utf-8")) if match[2])
    return {(page.parent / target).resolve() for target in links if not re.match(r"[a-z]+:", target)}


def _source(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def _code(path: Path) -> str:
    language, text = _LANGUAGES.get(path.suffix, "text"), path.read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT)}\n\n`````{language}\n{text}\n`````\n"


def _commands() -> str:
    import typer
    from typer.cli import get_docs_for_click

    from refsim.cli.app import app, mount

    mount()
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name="refsim", title="The command line")


def _json() -> str:
    from refsim.cli.result_schemas import markdown

    return markdown()


def _python() -> str:
    import refsim
    from refsim import api

    homes = {name: f"{home}.{api._HOME[name]}" if home == "refsim.api" else home for name, home in refsim._HOME.items()}
    names = "\n\n".join(f"::: {home}.{name}" for name, home in sorted(homes.items()))
    return f"# From Python\n\n{names}\n"
