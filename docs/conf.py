"""How `make book` makes pages of these files.

The files are plain Markdown, to be read where they are as well. So there is no directive in them: the
order of the book is the order of the links on index.md, and of those on a README.md to pages beside and
below it. A page that none of them links to, and a link that leads nowhere, fail the build.
"""
# ruff: noqa: INP001

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "Strandline"
project_copyright = "the authors of Strandline"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Strandline"
html_copy_source = False
html_show_sphinx = False

_LINK = re.compile(r"\]\((?!\.\./|/|#|\w+:)([^)#\s]+)\.md(?:#[^)]*)?\)")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_toctree)
    app.add_transform(LinksOutOfTheBook)


def add_toctree(_app: Sphinx, docname: str, source: list[str]) -> None:
    """What a page of contents links to, a toctree for each of its chapters."""
    if docname.rpartition("/")[2] not in ("index", "README"):
        return
    pieces = ["", *_HEADING.split(source[0])]
    for heading, text in zip(pieces[::2], pieces[1::2], strict=True):
        links = dict.fromkeys(_LINK.findall(text))
        if links:
            caption = f":caption: {heading}\n" if heading else ""
            source[0] += "\n\n```{toctree}\n:hidden:\n" + caption + "\n" + "\n".join(links) + "\n```\n"


class LinksOutOfTheBook(SphinxTransform):
    """A link to a file of the repository that is no page: the file is put beside the book. Of a folder only
    the name stays. One that is not there stays as it is, and is told."""

    default_priority = 5  # before anything is resolved

    def apply(self, **_: object) -> None:
        for link in list(self.document.findall(addnodes.pending_xref)):
            target = link["reftarget"]
            path = HERE / f"{target}.md" if link["refdomain"] == "doc" else None
            if path is None:
                folder = (HERE / link["refdoc"]).parent / target
                if folder.is_dir() and folder.resolve().is_relative_to(ROOT):
                    link.replace_self(nodes.inline("", "", *link.children))
            elif not path.resolve().is_relative_to(HERE) and path.resolve().is_relative_to(ROOT):
                place = "/" + target + ".md"
                link.replace_self(
                    addnodes.download_reference(
                        "", "", *link.children, refdoc=link["refdoc"], reftarget=place, reftype="myst"
                    )
                )
