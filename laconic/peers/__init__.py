"""Workers that exchange more with each other than their messages: DES-LOC and NoLoCo."""

from laconic.peers.desloc import desloc_client
from laconic.peers.noloco import noloco_client

__all__ = ["desloc_client", "noloco_client"]
