"""The report as one HTML file: sections of blocks, all text escaped, no scripts.

Figures are SVG inside the page and PNG beside it. They have a white ground of their
own, so that they read the same on a light page, a dark one and paper.
"""

import base64
import dataclasses
import html
import io

import matplotlib

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --ground: #fff; --soft: #5a5a5a;
  --line: #d4d4d4; --band: #f5f5f5; --link: #0058a8; --warn: #8a3b00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --ground: #16181b;
  --soft: #a8a8a8; --line: #3c4046; --band: #1f2226; --link: #7cb8f0;
  --warn: #f0a860; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--ground); max-width: 64rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem;
  overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .6rem; padding-top: .6rem;
  border-top: 1px solid var(--line); }
a { color: var(--link); }
p { margin: .5rem 0; max-width: 50rem; overflow-wrap: anywhere; }
nav { columns: 2; font-size: .95rem; margin: 1rem 0; }
nav a { display: block; text-decoration: none; padding: .05rem 0; }
.verdict { border-left: .3rem solid var(--link); padding: .3rem 1rem;
  background: var(--band); margin: 1rem 0; }
.missing { color: var(--warn); }
.problems { border-left: .3rem solid var(--warn); padding: .3rem 1rem;
  background: var(--band); margin: 1rem 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figure img { display: block; width: 100%; height: auto; background: #fff;
  border: 1px solid var(--line); border-radius: .4rem; padding: .4rem; }
figcaption { color: var(--soft); font-size: .9rem; margin: .4rem 0;
  max-width: 50rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; }
.word { text-align: left; overflow-wrap: break-word; }
th:first-child, td:first-child { padding-left: 0; }
tr.group td { border-top: 2px solid var(--line); }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--link); }
@media (max-width: 40rem) { nav { columns: 1; } body { padding: .8rem; } }
@media print { :root { color-scheme: light; --text: #000; --ground: #fff;
  --soft: #333; --line: #bbb; --band: #fff; --link: #000; --warn: #000; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  nav { display: none; } h2 { break-after: avoid; border-top: none; }
  figure img { width: auto; max-height: 9.5cm; }
  figure, tr { break-inside: avoid; } thead { display: table-header-group; }
  .scroll { overflow: visible; } table { font-size: 8pt; } }
"""
# The page asks for nothing, whatever is in it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def as_html(self):
        return f"<p>{_safe(self.text)}</p>"


@dataclasses.dataclass(frozen=True)
class Missing:
    """What cannot be shown, and why: one line."""

    text: str

    def as_html(self):
        return f'<p class="missing">{_safe(self.text)}</p>'


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines that stand out, of the kind "verdict" or "problems"."""

    kind: str
    lines: list

    def as_html(self):
        lines = "".join(f"<p>{_safe(line)}</p>" for line in self.lines)
        return f'<div class="{self.kind}">{lines}</div>'


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        name: of its file, without a suffix.
        figure: `matplotlib.figure.Figure`.
        alt: what it shows, for those who do not see it.
        caption: what is averaged, how many replicates, what the bars are.
    """

    name: str
    figure: object
    alt: str
    caption: str

    def as_html(self):
        data = base64.b64encode(_svg(self.figure)).decode()
        # All figures at one scale, where there is room. (In print by height.)
        most = f"max-width: {6.4 * self.figure.get_figwidth():.0f}rem"
        return (
            f'<figure id="{_safe(self.name)}"><img alt="{_safe(self.alt)}" '
            f'style="{most}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{_safe(self.caption)}</figcaption></figure>"
        )

    def as_png(self):
        """The bytes of a PNG file."""
        data = io.BytesIO()
        self.figure.savefig(data, format="png", dpi=150)
        return data.getvalue()


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows.
        heading: a text for each column.
        rows: lists of texts.
        words: how many of the columns, from the left, are words, not numbers.
        groups: indices of the rows that have a line above them.
    """

    caption: str
    heading: tuple
    rows: list
    words: int = 1
    groups: tuple = ()

    def as_html(self):
        head = self._cells("th", self.heading)
        body = "".join(
            f"<tr{' class=group' if index in self.groups else ''}>"
            f"{self._cells('td', row)}</tr>"
            for index, row in enumerate(self.rows)
        )
        return (
            f"<figure><figcaption>{_safe(self.caption)}</figcaption>"
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div></figure>"
        )

    def _cells(self, tag, texts):
        return "".join(
            f"<{tag}{' class=word' if index < self.words else ''}>{_safe(text)}</{tag}>"
            for index, text in enumerate(texts)
        )


@dataclasses.dataclass(frozen=True)
class Folded:
    """Blocks that are shown when asked for."""

    summary: str
    blocks: list

    def as_html(self):
        inside = "".join(block.as_html() for block in self.blocks)
        return f"<details><summary>{_safe(self.summary)}</summary>{inside}</details>"


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: list

    @property
    def pictures(self):
        return [block for block in self.blocks if isinstance(block, Picture)]

    def as_html(self, number):
        blocks = "\n".join(block.as_html() for block in self.blocks)
        return (
            f'<section id="section-{number}"><h2>{number}. {_safe(self.title)}</h2>\n'
            f"{blocks}</section>"
        )


def page(title, head, sections):
    """The whole page, a text.

    Args:
        title: heading of the page.
        head: blocks before the first section.
        sections: list of `Section`.
    """
    numbered = list(enumerate(sections, start=1))
    links = "".join(
        f'<a href="#section-{number}">{number}. {_safe(section.title)}</a>'
        for number, section in numbered
    )
    top = "\n".join(block.as_html() for block in head)
    body = "\n".join(section.as_html(number) for number, section in numbered)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_safe(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><header><h1>{_safe(title)}</h1>\n{top}\n<nav>{links}</nav></header>\n"
        f"<main>{body}</main></body></html>\n"
    )


def _safe(text):
    # What no UTF-8 file can hold (a folder's name may) gets its escape.
    text = str(text).encode("utf-8", "backslashreplace").decode()
    return html.escape(text)


def _svg(figure):
    """The bytes of an SVG file, the same each time."""
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "prunetrain"}):
        figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()
