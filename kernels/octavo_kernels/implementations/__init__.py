"""What each folder of kernels offers to the registry: one file per folder, entries in order of preference."""
