"""Why an expression cannot be compiled, and why it could not be evaluated for a message."""

from __future__ import annotations

from dataclasses import dataclass

PARSE_EXCEPTION = "org.apache.rocketmq.filter.parser.ParseException"
TOKEN_ERROR = "org.apache.rocketmq.filter.parser.TokenMgrError"
NUMBER_ERROR = "java.lang.NumberFormatException"
RUNTIME_EXCEPTION = "java.lang.RuntimeException"


REASON_SIZE_MAX = 4_096
"""Characters of a message for a client: it may have the whole expression in it."""


class FilterError(ValueError):
    """The text is no expression that a broker may use.

    `reason` is what Java's parser says. `line` and `column` count from 1 and say where, in UTF-16 units;
    both are 0 where the whole expression is meant, or an operand of an otherwise correct expression.
    """

    def __init__(
        self, reason: str, *, line: int = 0, column: int = 0, java_class: str = RUNTIME_EXCEPTION
    ) -> None:
        if len(reason) > REASON_SIZE_MAX:
            reason = reason[:REASON_SIZE_MAX] + "..."
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column
        self._java_class = java_class

    @property
    def remark(self) -> str:
        """The remark of CHECK_CLIENT_CONFIG (46), as Java's `MQFilterException` has it."""
        return f"{self._java_class}: {self.reason}"


@dataclass(frozen=True, slots=True)
class EvaluationFailed:
    """A message for which the expression has no value: it does not match, and `reason` is for the log."""

    reason: str


class CannotEvaluate(Exception):
    """Raised between the closures of a filter; outside there is `EvaluationFailed`."""
