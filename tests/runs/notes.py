"""An observer that keeps what it is told."""


class Notes:
    def __init__(self):
        self.notes, self.calls, self.begun = [], 0, []

    def begin(self, label, rounds, done):
        self.begun.append((label, done))

    def progress(self, label, done, loss):
        self.calls += 1

    def note(self, text):
        self.notes.append(text)
