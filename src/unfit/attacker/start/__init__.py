"""From trained weights to the weights that training started from, by the seed they were drawn with."""

from unfit.attacker.start.find import Search, Start, find_start, search_start

__all__ = ["Search", "Start", "find_start", "search_start"]
