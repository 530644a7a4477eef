"""Stands for every test of tests/kernels/triton: conftest.py collects them here, with their tensors on the GPU."""
