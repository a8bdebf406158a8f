"""Shared by attacker and auditor. Nothing here knows about attacks or data."""
