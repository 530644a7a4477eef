"""A container's last word: one JSON document of at most 4 KiB in the termination log.

`octavo inspect` leaves its facts there, and every command leaves the reason when it refuses to run, so that the
operator can put it into status instead of "CrashLoopBackOff".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from octavo_runtime.contract.facts import ContractModel, ModelFacts
from octavo_runtime.contract.launch import TERMINATION_LIMIT_BYTES
from octavo_runtime.contract.refused import Refused

MESSAGE_LIMIT = 1024

LONGEST_ESCAPE_BYTES = 6
"""JSON writes a control character as `\\u0000`."""


class ExitCode(IntEnum):
    """Process exit codes; a wrong input does not look like a crash."""

    OK = 0
    FAILED = 1
    """A defect or an environment failure: trying again may help."""
    REFUSED = 3
    """The input cannot work (checkpoint, flags, device): trying again does not help."""


class Refusal(ContractModel):
    """Why a command refused: CamelCase reason for machines, a sentence for people that says what to do."""

    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{2,63}$")]
    message: Annotated[str, Field(min_length=1, max_length=MESSAGE_LIMIT)]
    retryable: bool = False
    """Whether the cause may go away by itself, e.g. a source that is not reachable now."""


class TerminationReport(ContractModel):
    """Exactly one of `facts` and `refusal`."""

    facts: ModelFacts | None = None
    refusal: Refusal | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.facts is None) == (self.refusal is None):
            raise ValueError("a termination report holds either facts or a refusal")
        return self

    def to_json(self) -> str:
        """Compact JSON without empty fields; raises ValueError when over the kubelet's 4 KiB."""
        text = self.model_dump_json(by_alias=True, exclude_none=True)
        if len(text.encode()) > TERMINATION_LIMIT_BYTES:
            raise ValueError(
                f"termination report is {len(text.encode())} bytes, the kubelet keeps {TERMINATION_LIMIT_BYTES}"
            )
        return text

    @classmethod
    def parse(cls, text: str) -> TerminationReport | None:
        """The report, or None when the text is something else (a traceback, an OOM note, nothing)."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def report_of(refused: Refused) -> TerminationReport:
    """The report of a refusal; its message is cut so that the document fits the kubelet's limit whatever it says."""
    message = refused.message.encode(errors="replace").decode()[:MESSAGE_LIMIT] or refused.reason
    while True:
        report = TerminationReport(refusal=Refusal(reason=refused.reason, message=message, retryable=refused.retryable))
        excess_bytes = len(report.model_dump_json(by_alias=True).encode()) - TERMINATION_LIMIT_BYTES
        if excess_bytes <= 0:
            return report
        message = message[: -max(1, excess_bytes // LONGEST_ESCAPE_BYTES)]
