"""What the command line writes: an answer to stdout, a run's progress to stderr, reports."""
