"""Many attacks with sampled settings, resumable, here or on a cluster."""
