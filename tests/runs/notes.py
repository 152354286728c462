"""An observer that keeps what it is told."""

from laconic.runs.folder import Observer


class Notes(Observer):
    def __init__(self):
        self.notes, self.calls, self.begun = [], 0, []

    def begin(self, label, total, done, rounds_each=1):
        self.begun.append((label, done))

    def progress(self, label, done, loss, norm=None):
        self.calls += 1

    def note(self, text):
        self.notes.append(text)
