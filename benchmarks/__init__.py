"""Measures the service beside what it is compared with. `python -m benchmarks --help`; docs/performance.md explains."""
