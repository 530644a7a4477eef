"""Log lines: a constant message and key-value fields, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed as `extra`."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05Z INFO planned model=default/qwen pool=hopper`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback if there is one."""
        fields = " ".join(f"{key}={value}" for key, value in fields_of(record).items())
        line = f"{_moment(record)} {record.levelname} {record.getMessage()} {fields}".rstrip()
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message and fields."""
        document = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def configure_logs(level: str, style: str) -> None:
    """Log to stderr; kopf's own chatter about each watch is only of interest when debugging it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
