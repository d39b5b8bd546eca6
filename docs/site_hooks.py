"""Hooks of `make docs`: pages that are made from files of the repository, and links into it.

The README is the first page, the changelog and the results of benchmarks are pages, and decisions
have a list. A page may link to any file of the repository, as it may where the repository is
browsed: the file becomes a page of the site. A link to a file that is not there ends the build.
Examples in docstrings, which Markdown would take for quotations, become code.
"""

import posixpath
import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "docs/decisions": "decisions/index.md",
}
# A code block, which has no links, or a link.
LINK = re.compile(r"^ *```.*?^ *```|(\]\()([^)#\s]+)(#[^)\s]*)?(\))", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".proto": "protobuf", ".yaml": "yaml"}


class Examples(griffe.Extension):
    """Fences what begins with `>>>` in a docstring, up to the next empty line."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages that are made of the repository's files, and every file that a page links to."""
    for source, page in PAGES.items():
        text = _decisions() if source == "docs/decisions" else (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text))
    for file in list(files.documentation_pages()):
        for link in LINK.finditer(file.content_string):
            if link[2] and "://" not in link[2]:
                target = _target(link[2], _source_of(file.src_uri))
                made = _page_of(target)
                if made.startswith("files/") and made not in files.src_uris:
                    files.append(File.generated(config, made, content=_as_page(target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead from page to page, where they led from file to file."""
    uri = page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        if not link[2] or "://" in link[2]:
            return link[0]
        made = _page_of(_target(link[2], _source_of(uri)))
        relative = posixpath.relpath(made, posixpath.dirname(uri) or ".")
        return f"{link[1]}{relative}{link[3] or ''}{link[4]}"

    return markdown if uri.startswith("files/") else LINK.sub(lead, markdown)


def _source_of(page: str) -> str:
    """The file of the repository that a page is made of."""
    return next((source for source, made in PAGES.items() if made == page), f"docs/{page}")


def _page_of(source: str) -> str:
    """The page that is made of a file or folder of the repository."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return f"files/{source}.md"


def _target(link: str, source: str) -> str:
    """The path in the repository to which a link of a file leads."""
    folder = source if source == "docs/decisions" else posixpath.dirname(source)
    return posixpath.normpath(posixpath.join(folder, link))


def _decisions() -> str:
    lines = ["# Decisions", "", "One page each: the context, the choice, what was given up.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _as_page(source: str) -> str:
    path = ROOT / source
    if path.is_dir():
        names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in path.iterdir())
        text, language = "\n".join(name for name in names if name != "__pycache__/"), "text"
    else:
        text, language = path.read_text(), LANGUAGES.get(path.suffix, "text")
    return f"# {source}\n\n````{language}\n{text}\n````\n"
