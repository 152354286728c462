"""For the documentation site: the aligned `name: meaning` lines of a docstring become a list, not
one paragraph."""

import re

import griffe

FIELD = re.compile(r"^(\w+):\s+(?=\S)", re.MULTILINE)


class Fields(griffe.Extension):
    """Rewrites docstrings as the site collects them; the source stays as it is."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """One object of the package."""
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(listed, paragraphs))


def listed(paragraph: str) -> str:
    """A paragraph that is nothing but fields as a Markdown list; any other as it is."""
    if len(FIELD.findall(paragraph)) < 2 or not FIELD.match(paragraph):
        return paragraph
    joined = re.sub(r"\n\s+", " ", paragraph)
    return FIELD.sub(r"- `\1`: ", joined)
