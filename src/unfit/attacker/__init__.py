"""The attacker's side: weights in, candidates out. Nothing here sees training data."""
