"""Logging set-up: where lines go and what they look like.

It does not decide what is logged; whoever sees the event does.

*Concurrency:* loggers may be used from any thread.

*Invariants:* a log call never raises, also when the log's disk is full.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

__all__ = ["LOG_LEVELS", "get_logger", "set_up_logging"]

#: What `--log-level` accepts, from the most to the least talkative.
LOG_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _LossyStream:
    """A text stream that drops what cannot be written.

    A full disk under the log must cost the log line, not the request that wrote it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: closed at interpreter exit, or not encodable
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def isatty(self) -> bool:
        return self._stream.isatty()


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry `name`; pass values as keywords, never inside the event."""
    return cast(FilteringBoundLogger, structlog.get_logger(logger_name=name))


def set_up_logging(level: str, stream: TextIO | None = None) -> None:
    """Send this process's logs, structlog's and the standard library's, to `stream` (stderr)."""
    number = LOG_LEVELS[level]
    target = cast(TextIO, _LossyStream(stream if stream is not None else sys.stderr))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # The plain formatter: the default one prints local variables, and those hold users' data.
    renderer = structlog.dev.ConsoleRenderer(
        colors=target.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
        pad_event_to=0,
        repr_native_str=True,  # a file name with a line feed in it stays on its line
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        )
    )
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
    logging.raiseExceptions = False
