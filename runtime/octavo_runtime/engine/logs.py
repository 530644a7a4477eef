"""Structured logs on stderr: a constant message and key=value fields, one line each, in logfmt or JSON.

Both processes use it. Fields come through `extra`; the same things have the same keys everywhere (`model`, `request`).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


class LogFormat(StrEnum):
    """How a line looks."""

    LOGFMT = "logfmt"
    JSON = "json"


class _Formatter(logging.Formatter):
    def __init__(self, style: LogFormat) -> None:
        super().__init__()
        self._json = style is LogFormat.JSON

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("octavo."),
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps(fields, default=str)
        return " ".join(f"{key}={_logfmt(value)}" for key, value in fields.items())


def _logfmt(value: object) -> str:
    text = str(value)
    if text and not any(c in '"= ' or c < " " for c in text):
        return text
    return json.dumps(text, ensure_ascii=False)


def configure_logs(style: LogFormat) -> None:
    """Send everything from INFO on to stderr in `style`; call once per process, at its edge."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(style))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for library in ("uvicorn", "httpx"):
        logging.getLogger(library).setLevel(logging.WARNING)


def logger(component: str) -> logging.Logger:
    """The logger of one component (engine, server, ...)."""
    return logging.getLogger(f"octavo.{component}")
