"""Commands beside the controller itself."""
