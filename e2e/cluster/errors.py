"""The one error a person may meet here: a sentence that says what is wrong and what to do."""


class ClusterError(Exception):
    """What went wrong, with the values seen and the remedy; printed without a traceback."""
