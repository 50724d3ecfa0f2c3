"""The compiled backend: kernels in Python, made into machine code by Numba on first use."""
