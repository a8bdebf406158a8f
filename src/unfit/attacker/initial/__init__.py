"""From trained weights to the weights that training started from, by the seed they were drawn with."""

from unfit.attacker.initial.find import find_initial_weights, search_initial_weights
from unfit.attacker.initial.found import InitialWeights, Search

__all__ = ["InitialWeights", "Search", "find_initial_weights", "search_initial_weights"]
