"""Every published number has its command here: `python -m benchmarks NAME [--quick] [--json]`."""
