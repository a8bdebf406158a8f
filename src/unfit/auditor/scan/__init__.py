"""`unfit scan`: what stands in a file in plain sight."""
