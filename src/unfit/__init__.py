"""unfit: the inverse of fit."""

__version__ = "0.1.0"
