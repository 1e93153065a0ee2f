"""Pages of the site that are no files of ``docs``, and links that lead out of it.

Documents that stay at the top of the repository or beside what they describe get pages; so does
every file of the repository that a document links to, and the Python interface.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from npusim.ops import OPERATORS

ROOT = Path(__file__).parents[1]

#: Document -> its page, where the path is not the same.
PAGES = {
    "README.md": "index.md",
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "configs/README.md": "reference/configuration.md",
    "configs/silicon/README.md": "reference/measured-silicon.md",
    "configs/profiles/README.md": "reference/sample-profile.md",
    "tools/README.md": "tools.md",
    "configs/silicon/notes/tilings.md": "notes/tilings.md",
    "configs/silicon/notes/tried.md": "notes/tried.md",
}


def _operators() -> list[str]:
    """Places of the operators, each in the module of its function."""
    return [f"{function.__module__}.{name}" for name, function in OPERATORS.items()]


#: Page of the Python interface -> its title and modules.
INTERFACE = {
    "npusim": (
        "npusim",
        [
            "npusim",
            "npusim.networks.network.network",
            "npusim.call.options.Options",
            "npusim.base.errors.RuleError",
        ],
    ),
    "ops": (
        "npusim.ops",
        ["npusim.ops", *_operators()],
    ),
    "results": ("Results", ["npusim.results"]),
    "language": ("npusim.language", ["npusim.language"]),
    "layout": ("npusim.problem.layouts", ["npusim.problem.layouts"]),
    "compat": (
        "npusim.compat",
        [
            "npusim.compat",
            "npusim.compat.tbe",
            "npusim.compat.tbe_dsl",
            "npusim.compat.tbe_tvm",
            "npusim.compat.aclnn",
            "npusim.compat.ftdsp",
        ],
    ),
    "torch": ("npusim.torch", ["npusim.torch", "npusim.torch.log"]),
}

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".txt": "text", ".csv": "text", "": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for document, page in PAGES.items():
        files.append(_generated(config, page, (ROOT / document).read_text(encoding="utf-8")))
    for name, (title, modules) in INTERFACE.items():
        parts = "\n".join(f"::: {module}\n{_members(module)}" for module in modules)
        files.append(_generated(config, f"api/{name}.md", f"# {title}\n\n{parts}"))
    files.append(_generated(config, "api/kernels.md", _kernels()))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(_generated(config, f"notebooks/{path.stem}.md", _notebook(path)))
    documents = [
        *PAGES,
        *(f"docs/{f.src_uri}" for f in files if (ROOT / "docs" / f.src_uri).exists()),
    ]
    linked = {target for name in documents for target in _targets(name)}
    for target in sorted(linked):
        if _page(target) == f"source/{target}.md":
            files.append(_generated(config, f"source/{target}.md", _source(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links lead to pages of the site."""
    here = page.file.src_uri
    if "/" not in here:
        page.meta["hide"] = ["navigation"]  # it is alone in its chapter
    document = {page: name for name, page in PAGES.items()}.get(here, f"docs/{here}")

    def site(link: re.Match[str]) -> str:
        head, target, anchor, tail = link.groups(default="")
        if "://" in target or here.startswith(("source/", "notebooks/")):
            return link[0]
        to = _page(_resolved(document, target))
        return f"{head}{posixpath.relpath(to, posixpath.dirname(here) or '.')}{anchor}{tail}"

    return _LINK.sub(site, markdown)


def _generated(config: MkDocsConfig, uri: str, content: str) -> File:
    return File.generated(config, uri, content=content)


def _targets(document: str) -> list[str]:
    """Files of the repository that a document links to, by their path from the root."""
    path = ROOT / document
    if path.suffix != ".md":
        return []
    links = [match[2] for match in _LINK.finditer(path.read_text(encoding="utf-8"))]
    return [_resolved(document, link) for link in links if "://" not in link]


def _resolved(document: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(document), target))


def _page(path: str) -> str:
    """The page or file of the site that stands for a file of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"source/{path}.md"


def _source(path: str) -> str:
    """A file of the repository as a page."""
    file = ROOT / path
    language = _LANGUAGES.get(file.suffix, "text")
    body = file.read_text(encoding="utf-8")
    return f"# {path}\n\n`````{language}\n{body}\n`````\n"


def _members(module: str) -> str:
    """What a page shows of the package itself, whose list of public names is made, not written."""
    names = ", ".join(name for name in import_module("npusim").__all__ if name[0] != "_")
    return f"    options:\n      members: [{names}]\n" if module == "npusim" else ""


def _kernels() -> str:
    """Every kernel: its docstring, which is a loop nest, and its classes; then their tilings."""
    parts = ["# npusim.kernels\n"]
    for path in sorted((ROOT / "kernels").glob("[a-z]*.py")):
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        parts += [f"## {path.stem}\n\n`````text\n{about}\n`````\n", *_classes(path)]
    for path in sorted((ROOT / "kernels" / "tilings").glob("[a-z]*.py")):
        classes = [text for text in _classes(path) if "Tiling\n" in text]
        parts += [f"## tilings.{path.stem}\n", *classes] if classes else []
    return "\n".join(parts)


def _classes(path: Path) -> list[str]:
    """The public classes of a module, except the records of its tasks."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return [
        f"::: npusim.{module}.{node.name}\n"
        "    options:\n      heading_level: 3\n      members: false\n"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and node.name[0] != "_"
        and "NamedTuple" not in map(ast.unparse, node.bases)
    ]


def _notebook(path: Path) -> str:
    """A notebook as Markdown, with the outputs it was saved with."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "](../").replace(".ipynb)", ".md)"))
        else:
            parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                parts.append(f"![](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(parts)
