"""The engine's own process: takes commands, steps, sends events.

Leaves when the process that started it is gone; that one ends it otherwise.
"""

from __future__ import annotations

import logging
import os
import signal
import time

import zmq

from specrt import messages
from specrt.config import EngineConfig
from specrt.errors import ConfigError, RequestError

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


def run_engine(config: EngineConfig, address: str, parent_pid: int, log_level: str) -> None:
    """Entry point of the process.

    Args:
        config: everything the engine needs.
        address: ZeroMQ address that the server has bound.
        parent_pid: process id of the server; when it is no longer our parent we leave.
        log_level: name of a logging level.
    """
    logging.basicConfig(
        level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # Ctrl-C reaches the whole terminal group, and a service manager's SIGTERM every process; the
    # server decides when the engine ends.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.set_hwm(0)  # a slow reader must not stall the loop, and nothing may be dropped
    socket.connect(address)
    try:
        EngineLoop(config, socket, parent_pid).run()
    finally:
        socket.close()
        context.term()


class EngineLoop:
    """Commands in, events out, one step of the engine between."""

    def __init__(self, config: EngineConfig, socket: zmq.Socket[bytes], parent_pid: int) -> None:
        self.config = config
        self.socket = socket
        self.parent_pid = parent_pid
        self._last_beat = 0.0
        self._added_s: dict[str, float] = {}  # of the requests in the queue

    def run(self) -> None:
        """Load the engine, then loop until the server is gone."""
        try:
            from specrt.engine import LLMEngine

            self.engine = LLMEngine(self.config)
        except ConfigError as exc:
            self._send(messages.Failed(str(exc), is_config=True))
            return
        except Exception as exc:
            logger.exception("the engine could not start")
            self._send(messages.Failed(f"{type(exc).__name__}: {exc}", is_config=False))
            return
        self._send(messages.Ready(self.engine.stats()))
        while os.getppid() == self.parent_pid:
            wait_ms = 0 if self.engine.has_work else int(HEARTBEAT_S * 1000)
            while self.socket.poll(wait_ms):
                self._handle(messages.decode_command(self.socket.recv()))
                wait_ms = 0
            step_s = time.monotonic()
            outputs = self.engine.step() if self.engine.has_work else []
            if self._added_s:
                self._send_started(step_s)
            if outputs:
                self._send(messages.Outputs(outputs))
            now = time.monotonic()
            if now - self._last_beat >= HEARTBEAT_S:
                self._last_beat = now
                self._send(messages.Heartbeat())
        logger.warning("the server process is gone: leaving")

    def _send_started(self, step_s: float) -> None:
        """Tell which requests the step that began at `step_s` took out of the queue."""
        waiting = {entry.request.request_id for entry in self.engine.scheduler.waiting}
        started = [request_id for request_id in self._added_s if request_id not in waiting]
        if started:
            self._send(messages.Started({i: step_s - self._added_s.pop(i) for i in started}))

    def _handle(self, command: messages.Command) -> None:
        """Carry out one command."""
        match command:
            case messages.Add(request):
                try:
                    self.engine.add(request)
                    self._added_s[request.request_id] = time.monotonic()
                except RequestError as exc:
                    self._send(
                        messages.Rejected(
                            request.request_id,
                            type(exc).__name__,
                            exc.message,
                            exc.param,
                            exc.code,
                        )
                    )
            case messages.Abort(request_id):
                self.engine.abort(request_id)
                self._added_s.pop(request_id, None)
            case messages.GetStats(query_id):
                self._send(messages.Answer(query_id, self.engine.stats()))
            case messages.FlushCache(query_id):
                done = self.engine.flush_cache()
                self._send(messages.Answer(query_id, {"flushed": done}))

    def _send(self, event: messages.Event) -> None:
        self.socket.send(messages.encode(event))
