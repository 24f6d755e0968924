"""Measurements of forno and of its peers: what each prints is a ratio within one run. See ``BENCHMARKS.md``."""
