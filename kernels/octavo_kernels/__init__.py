"""Number formats and kernels: FP8 KV, INT4 experts, paged attention, integrity. Knows torch, nothing of serving."""
