"""Output: answers on stdout, progress of runs on stderr, reports."""
