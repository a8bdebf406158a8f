"""What both sides need. Nothing here knows of attacks or of data."""
