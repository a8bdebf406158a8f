"""Experiments: train targets, repeat attacks where nothing can be found, reproduce the papers."""
