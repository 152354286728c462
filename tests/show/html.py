"""What an HTML page holds, and that its tags are balanced."""

from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "hr", "img", "input", "link", "source"}
LINKS = ("src", "srcset", "href", "xlink:href")


class Page(HTMLParser):
    """Tags with attributes, the text of each element, the cells of each table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts, self.tables, self.styles = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if "style" in found and tag != "svg":
            scrolls = "scroll" in " ".join(kind for _, kind in self.open)
            self.styles.append((found["style"], scrolls))
        if tag not in VOID:
            self.open.append((tag, found.get("class") or ""))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        assert tag in {*VOID, "path", "g", "svg", "circle", "text", "rect"}, tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1][0] if self.open else "", data))
        if {"th", "td"} & {tag for tag, _ in self.open}:
            self.tables[-1][-1][-1] += data

    @property
    def text(self):
        return "".join(data for tag, data in self.texts if tag != "style")

    @property
    def words(self):
        return " ".join(self.text.split())

    def count(self, tag):
        return sum(tag == name for name, _ in self.tags)

    def values(self, *names):
        return [found[name] for _, found in self.tags for name in names if name in found]
