"""The one error a person may meet here."""


class ImageError(Exception):
    """An image could not be built, packed, pushed or found: what was seen and what to do."""
