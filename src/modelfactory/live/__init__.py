"""A run as it goes on, for a person: live on a terminal, a few plain lines elsewhere; always on stderr."""

from modelfactory.live.board import Board
from modelfactory.live.display import Live

__all__ = ["Board", "Live"]
