"""Number formats and record layouts: encode, decode, pack. Each file is one format, with its source."""
