"""Who sends what to whom in a round: every message to all (all-gather), or each worker averages one
piece of all messages and hands its mean round (reduce-scatter and all-gather of the means).

The second sends about 8 bytes a parameter, however many workers there are. The first is needed
where every message is: by optimizers that look at each, by robust means, and it is the smaller one
for few workers and for compressed messages.
"""

from typing import NamedTuple

from laconic.engines.stream import HEAD
from laconic.errors import LaconicError, unknown
from laconic.method import Method

AUTO, GATHER, REDUCE = "auto", "gather", "reduce"
EXCHANGES = {
    AUTO: "whichever sends fewer bytes",
    GATHER: "every message to every worker",
    REDUCE: "each worker averages one piece of all messages and sends its mean to the others",
}
SPELLED = {GATHER: "all-gather", REDUCE: "reduce-scatter"}


class Traffic(NamedTuple):
    """What each worker sends in a round: `messages` to each of the others, `bytes` in all of them
    together without what the links add."""

    messages: int
    bytes: int


class Topology(NamedTuple):
    """The way chosen, and the bytes that a worker sends in a round."""

    kind: str
    sent: int

    @property
    def words(self) -> str:
        """For people."""
        spelled = " and ".join(SPELLED[kind] for kind in self.kind.split("+"))
        return f"exchange: {spelled}, {self.sent / 1e6:.1f} MB a round"


def check_exchange(asked: str, method: Method) -> None:
    """Raise for a way that there is not, or that this method cannot go."""
    if asked not in EXCHANGES:
        raise unknown("exchange", asked, EXCHANGES)
    obstacle = needs_all(method)
    if asked == REDUCE and obstacle:
        raise LaconicError(
            f"{obstacle}, so pieces of messages cannot be averaged on the way: leave out "
            "--exchange, or choose gather."
        )


def needs_all(method: Method) -> str:
    """Why every worker must see every message; "" if their mean is enough."""
    if method.aggregate is not None:
        return f"{method.aggregate.name} needs every message"
    if method.outer.combine == "gather":
        return f"{method.label} looks at every worker's message"
    return ""


def choose(asked: str, K: int, gather: Traffic, reduce: Traffic | None) -> Topology:
    """The way that was asked for, or the cheaper one of those there are; `reduce` is None where
    that cannot be done."""
    sent = lambda one: (K - 1) * one.messages * HEAD.size + one.bytes
    if reduce is None:
        return Topology(GATHER, sent(gather))
    if asked == REDUCE or (asked == AUTO and sent(reduce) < sent(gather)):
        return Topology(REDUCE, sent(reduce))
    return Topology(GATHER, sent(gather))
