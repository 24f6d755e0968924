"""Single kernels next to their ceilings: ``python -m benchmarks.kernels``."""
