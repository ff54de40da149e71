"""Benchmarks; see ``run.py``."""
