"""MkDocs hooks: put example programs, configuration files and the list of settings into the site."""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from raymq.cluster.cluster_config import SETTINGS

_ROOT = Path(__file__).resolve().parents[1]
_EXAMPLES = "examples.md"
#: Where a page has the sections of the settings.
_SETTINGS = "<!-- settings -->"
#: A link's target below the repository's root, as "../examples/delayed_delivery.py" in a page of docs/.
_TARGET = re.compile(r"\]\((?:\.\./)+(examples|configs|README\.md)(/[^)#\s]*)?(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page of all examples, and the files of configs/ as they are."""
    files.append(File.generated(config, _EXAMPLES, content=_examples_page()))
    for path in sorted((_ROOT / "configs").rglob("*")):
        if path.is_file() and path.suffix in {".yaml", ".sh", ""}:
            files.append(File.generated(config, path.relative_to(_ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to files outside docs/ to their copies in the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        place, rest = match[1], (match[2] or "").strip("/")
        if place == "README.md":
            target = "index.md"
        elif place == "examples":
            target = _EXAMPLES + (f"#{_anchor(rest)}" if rest else "")
        else:
            target = posixpath.join(place, rest)
        path, hash_sign, anchor = target.partition("#")
        return f"]({posixpath.relpath(path, folder or '.')}{hash_sign}{anchor})"

    return _TARGET.sub(replaced, markdown.replace(_SETTINGS, settings_as_markdown()))


def settings_as_markdown() -> str:
    """Return a section for each setting of a configuration file."""
    parts = []
    for setting in SETTINGS.values():
        unit = f" ({setting.unit})" if setting.unit else ""
        parts.append(
            f"## `{setting.name}`\n\n{setting.description}\n\n"
            f"- Default: `{json.dumps(setting.default)}`{unit}\n"
            f"- Allowed: {setting.allowed}\n"
            f"- A change takes effect {setting.effect}.\n"
        )
    return "\n".join(parts)


def _anchor(file_name: str) -> str:
    return Path(file_name).stem.replace("_", "-")


def _examples_page() -> str:
    parts = ["# Examples\n\nSmall programs to run, in the folder `examples` of the repository."]
    for path in sorted((_ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
        heading = f"## `{path.name}` {{ #{_anchor(path.name)} }}"
        parts += [heading, docstring.partition("\n")[0], f"```python\n{source}```"]
    return "\n\n".join(parts) + "\n"
