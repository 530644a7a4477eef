"""The engine process: start up, then serve messages until told to stop or until the HTTP process is gone."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.engine.link import Link, PeerGone
from octavo_runtime.engine.logs import LogFormat, configure_logs, logger
from octavo_runtime.engine.messages import Cancel, Failed, Shutdown, Started, Starting, Stepped, Submit
from octavo_runtime.engine.result import Steps
from octavo_runtime.engine.settings import EngineSettings

HEARTBEAT_SECONDS = 0.5
"""How often an idle engine says that it lives."""

Report = Callable[[str, str], None]
Start = Callable[[EngineSettings, Report], tuple[Steps, Started]]


@dataclass(frozen=True)
class EngineProgram:
    """What the process runs: how the engine is started, with which settings. Pickled to the new process."""

    start: Start
    settings: EngineSettings
    log_format: LogFormat


def run_engine_process(program: EngineProgram, sock: socket.socket) -> None:
    """Body of the engine process. Ends by returning (told to stop), by exit 1 (a defect) or 3 (refused)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the HTTP process decides
    configure_logs(program.log_format)
    link = Link(sock, on_gone=lambda: os._exit(ExitCode.FAILED))
    try:
        engine, started = program.start(program.settings, lambda stage, detail: link.send(Starting(stage, detail)))
        link.send(Stepped(engine.stats()))
        link.send(started)
        serve_messages(engine, link)
        os._exit(ExitCode.OK)  # nothing is left to save; unloading torch takes a second that a drain has to wait for
    except PeerGone:
        raise SystemExit(ExitCode.FAILED) from None
    except Refused as refused:
        link.send(Failed(refused.reason, refused.message, refused=True, retryable=refused.retryable))
        raise SystemExit(ExitCode.REFUSED) from None
    except Exception as error:
        logger("engine").exception("engine failed")
        link.send(Failed(type(error).__name__, str(error) or repr(error), refused=False, retryable=True))
        raise SystemExit(ExitCode.FAILED) from None


def serve_messages(engine: Steps, link: Link) -> None:
    """Step while there is work, answer messages between steps, give a sign of life when there is neither.

    The heartbeat comes from this very loop: a step that does not return stops it, which is what liveness looks at.
    """
    log = logger("engine")
    audited = True
    while True:
        for message in link.take(HEARTBEAT_SECONDS if engine.idle else 0):
            match message:
                case Submit():
                    engine.submit(message)
                case Cancel():
                    engine.cancel(message.request, message.index)
                case Shutdown():
                    return
        if not engine.idle:
            result = engine.step()
            for violation in result.violations:
                fields = {"request": violation.request, "step": violation.step, "reason": ",".join(violation.reasons)}
                log.error("kv integrity violation", extra=fields)
            link.send(Stepped(engine.stats(), list(result.tokens), list(result.failures), list(result.violations)))
            audited = False
            continue
        if not audited:
            engine.audit()
            audited = True
        engine.self_check()
        link.send(Stepped(engine.stats()))
