"""From trained weights to the weights that training started from, by the seed they were drawn with."""
