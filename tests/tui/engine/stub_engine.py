"""An engine without a trainer, for tests of what is around one: words, folder, events as real.

It makes a step each 20 ms, `max_steps` of them; STUB_FAULT is what goes wrong: `refused`, `failed`,
`crash`. Before it takes its folder it waits for the file STUB_WAITS_FOR.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from pathlib import Path

import click

from poros import events, run_registry, starting_runs
from poros.cli_guard import Guard
from poros.cli_train import train, train_options
from poros.control import Control
from poros.control_socket import ControlSocket
from poros.engine_process import LogFiles, leave_terminal
from poros.engine_record import write_engine_record
from poros.errors import PorosError, PorosNonFiniteError
from poros.event_log import EventLog
from poros.orders import obey
from poros.run_folder import open_run_folder
from tests.tui.made_steps import made_step

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def run(config):
    leave_terminal()
    logs = LogFiles()
    os.write(2, b"said before there was a folder\n")
    inbox, control = queue.SimpleQueue(), Control()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda n, _: control.stop(signal.Signals(n).name))
    folder, fault = Path(config.output_dir), os.environ.get("STUB_FAULT", "")
    while "STUB_WAITS_FOR" in os.environ and not Path(os.environ["STUB_WAITS_FOR"]).exists():
        time.sleep(0.01)  # it reads its libraries
    try:
        with open_run_folder(folder, identity={}) as opened:
            logs.take(opened.logs)
            if fault == "refused":
                opened.discard()
                raise PorosError("nothing like that is here", where="model x", remediation="y")
            opened.record("max_steps: 1\n")
            with EventLog(opened.events_path) as log, ControlSocket(folder, inbox) as server:
                return steps(config, opened, log, server, inbox, control, logs, fault)
    except PorosError as error:
        logs(failed(error), events.to_line(failed(error), seq=0, time_s=time.time()))
        logs.give_back()
        sys.stderr.write(f"{error.line()}\n")
        return error.exit_code


def failed(error):
    return events.RunFailed(
        step=0, type=error.type, code=error.code, message=error.message, where=error.where,
        remediation=error.remediation, exit_code=error.exit_code,
    )  # fmt: skip


def steps(config, opened, log, server, inbox, control, logs, fault):
    def emit(event):
        logs(event, log.append(event))

    write_engine_record(opened.logs)
    starting_runs.forget()
    run_registry.keep(opened.run_id, opened.path)
    emit(
        events.RunStarted(
            run_id=opened.run_id,
            pid=os.getpid(),
            output_dir=str(opened.path),
            model="m",
            device="cpu",
            total_steps=config.max_steps,
            resumed_from_step=None,
            versions={},
        )
    )
    print("the library says something", flush=True)
    os.write(2, b"and something else\n")
    step, stop = 0, None
    while step < config.max_steps and stop is None:
        step += 1
        time.sleep(0.02)
        emit(made_step(step))
        if fault == "failed" and step == 3:
            emit(failed(PorosNonFiniteError("the loss is NaN", where="step 4", remediation="z")))
            logs.give_back()
            return 12
        if fault == "crash" and step == 3:
            os.abort()
        while not inbox.empty() or (control.is_paused and not control.is_stopping):
            with contextlib.suppress(queue.Empty):
                obey(inbox.get(timeout=0.05), control, emit, step=step)
        server.show(
            {"step": step, "phase": "train", "blocks": "rc.", "computing": 1,
             "direction": "forward", "host_rss_bytes": 1, "device": None,
             "unwritten": log.trouble}
        )  # fmt: skip
        stop = control.poll().stop
    code = EXIT_CODES.get(stop, 0)
    emit(
        events.RunFinished(
            status="stopped" if stop else "finished",
            step=step,
            final_loss=1.0,
            adapter_path="adapter",
            checkpoint_path=None,
            duration_s=1.0,
            peak_vram_allocated_bytes=0,
            peak_vram_reserved_bytes=0,
            exit_code=code,
        )
    )
    logs.give_back()
    return code


@click.command()
@click.argument("command")
@click.argument("config", type=click.Path(path_type=Path))
@train_options
@click.pass_obj
def cli(guard, /, command, config, **options):
    assert command == "run"
    return train(guard, config, detached=True, run=run, **options)


if __name__ == "__main__":
    sys.exit(Guard().run(cli, None, name="poros"))
