"""Pages of docs/ that hold tables made by a program between words written by people."""

import re
from pathlib import Path

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def put(page: Path, title: str, tables: str) -> None:
    """Put the tables between the marks of the page; a page without marks gets them at its end, none gets a title."""
    text = f"{BEGIN}\n\n{tables}\n{END}"
    old = page.read_text() if page.exists() else f"# {title}\n"
    if BEGIN in old:
        new = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: text, old, flags=re.DOTALL)
    else:
        new = f"{old.rstrip()}\n\n{text}\n"
    page.write_text(new)
