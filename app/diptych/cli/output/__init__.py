"""What the command line writes to stdout and stderr."""
