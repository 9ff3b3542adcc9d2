"""Jobs end by their deadline, whatever they do, and the next one works.

The jobs are functions of the standard library where one does what is needed; the others stand in a
module that the test writes.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specrt.errors import SchemaError
from specrt.grammars.compile_worker import CompileError, CompileWorker
from specrt.grammars.schema.unsupported import UnsupportedError
from specrt.grammars.schema_check import Violation, check_schema, validate_instance

# What the machine may be late by.
SLACK_S = 3.0
SLOW_PATTERN = ("(a+)+$", "a" * 50 + "b")

JOBS = """
import sys

from specrt.grammars.schema.unsupported import UnsupportedError


class UnpicklableError(UnsupportedError):
    def __init__(self, one, two):
        super().__init__("has two parts")


UnpicklableError.__module__ = "specrt.grammars.nowhere"


class Panic(BaseException):
    pass


def refuse(reason, pointer):
    raise UnsupportedError(reason, pointer, "pattern")


def refuse_badly():
    raise UnpicklableError(1, 2)


def panic():
    raise Panic("index out of bounds")


def recurse():
    return recurse()


def overflow_the_stack():
    nested = ()
    for _ in range(300_000):
        nested = (nested,)
    return hash(nested)


def keep(num_bytes, kept=[]):
    kept.append(bytearray(num_bytes))


def speak():
    print("text in the middle of the channel", flush=True)
    print("and in the log", file=sys.stderr, flush=True)
    return sys.stdin.read()


def modules():
    return sorted(sys.modules)


def table(rows):
    import numpy as np

    return {"transitions": np.arange(rows * 256, dtype=np.int32).reshape(rows, 256)}
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "compile_worker_jobs.py").write_text(JOBS, encoding="utf-8")
    slow_start = folder / "compile_worker_slow_start.py"
    slow_start.write_text("import time; time.sleep(0.7)", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield __import__("compile_worker_jobs")


@pytest.fixture
def worker(jobs: Any) -> Iterator[CompileWorker]:
    worker = CompileWorker(deadline_s=1.0, memory_bytes=256 << 20, modules=["compile_worker_jobs"])
    yield worker
    worker.close()


def reason_of(worker: CompileWorker, function: Callable[..., object], *args: object) -> str:
    with pytest.raises(CompileError) as caught:
        worker.run(function, *args)
    return caught.value.reason


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.01)


def test_jobs_run_in_one_other_process(worker: CompileWorker) -> None:
    pid = worker.run(os.getpid)
    assert pid != os.getpid()
    assert worker.run(divmod, 17, 5) == (3, 2)
    assert worker.run(os.getpid) == pid


def test_large_arrays_come_and_go(worker: CompileWorker, jobs: Any) -> None:
    found = worker.run(jobs.table, 4000, deadline_s=10)
    assert (found["transitions"] == jobs.table(4000)["transitions"]).all()
    assert worker.run(len, bytes(5 << 20), deadline_s=10) == 5 << 20
    assert worker.run(np.sum, found["transitions"], deadline_s=10) == found["transitions"].sum()


def test_a_loop_in_c_is_killed_and_the_next_job_works(worker: CompileWorker) -> None:
    worker.run(os.getpid)
    start = time.monotonic()
    assert reason_of(worker, re.search, *SLOW_PATTERN) == "took longer than 1 s"
    assert 1 <= time.monotonic() - start < 1 + SLACK_S
    assert worker.run(abs, -3) == 3


def test_a_job_may_have_a_deadline_of_its_own(worker: CompileWorker) -> None:
    worker.run(time.sleep, 1.2, deadline_s=5)
    with pytest.raises(CompileError, match=r"took longer than 0\.1 s"):
        worker.run(time.sleep, 1, deadline_s=0.1)


def test_the_start_counts_for_no_job(jobs: Any) -> None:
    worker = CompileWorker(deadline_s=0.5, modules=["compile_worker_slow_start"])
    worker.run(abs, -3)
    worker.close()


def test_memory_is_limited(worker: CompileWorker) -> None:
    pid = worker.run(os.getpid)
    assert reason_of(worker, bytearray, 300 << 20) == "needed more than 256 MiB of memory"
    assert reason_of(worker, np.zeros, 300 << 20) == "needed more than 256 MiB of memory"
    assert worker.run(os.getpid) != pid
    # Rust code has no exception for it.
    build = "__import__('outlines_core').Index(r'(a|b)*a(a|b){18}', __import__('outlines_core')."
    build += "Vocabulary(0, {'a': [1], 'b': [2]}))"
    assert "needed more than" in reason_of(CompileWorker(memory_bytes=16 << 20), eval, build)


def test_a_child_that_kept_too_much_is_replaced(worker: CompileWorker, jobs: Any) -> None:
    pid = worker.run(os.getpid)
    for _ in range(10):  # 400 MiB in all
        worker.run(jobs.keep, 40 << 20)
    assert worker.run(os.getpid) != pid


def test_a_crash_costs_one_job(worker: CompileWorker, jobs: Any) -> None:
    assert reason_of(worker, os._exit, 0) == "crashed"
    assert reason_of(worker, os.kill, 0, signal.SIGKILL) == "crashed"
    assert reason_of(worker, os.abort) == "crashed or needed more than 256 MiB of memory"
    assert worker.run(abs, -3) == 3


def test_a_child_that_died_between_jobs_is_replaced(worker: CompileWorker) -> None:
    pid = worker.run(os.getpid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), 5)
    assert worker.run(abs, -3) == 3


def test_errors_of_specrt_come_back_as_they_are(worker: CompileWorker, jobs: Any) -> None:
    with pytest.raises(UnsupportedError) as unsupported:
        worker.run(jobs.refuse, "no such thing", "/a/pattern")
    error = unsupported.value
    assert (error.reason, error.pointer, error.keyword) == (
        "no such thing",
        "/a/pattern",
        "pattern",
    )
    pid = worker.run(os.getpid)
    with pytest.raises(SchemaError) as refused:
        worker.run(check_schema, {"type": 7}, "tools", deadline_s=5)
    assert refused.value.pointer == "/type"
    assert refused.value.param == "tools"
    assert worker.run(os.getpid) == pid


def test_other_errors_say_what_they_are(worker: CompileWorker, jobs: Any) -> None:
    pid = worker.run(os.getpid)
    with pytest.raises(CompileError) as caught:
        worker.run(int, "x")
    assert caught.value.reason.startswith("failed: ValueError: invalid literal")
    assert "Traceback" in caught.value.details
    assert reason_of(worker, jobs.panic) == "failed: Panic: index out of bounds"
    assert reason_of(worker, jobs.recurse).startswith("failed: RecursionError")
    assert reason_of(worker, sys.exit, 3) == "failed: SystemExit: 3"
    assert reason_of(worker, jobs.refuse_badly) == "failed: UnpicklableError: has two parts"
    assert reason_of(worker, threading.Lock).startswith("failed: TypeError: cannot pickle")
    assert worker.run(os.getpid) == pid


def test_a_stack_that_overflows_is_a_crash(worker: CompileWorker, jobs: Any) -> None:
    worker.run(os.getpid)
    with pytest.raises(CompileError, match="^crashed$"):
        worker.run(jobs.overflow_the_stack, deadline_s=10)
    assert worker.run(abs, -3) == 3


def test_arguments_that_nest_too_deeply_are_refused(worker: CompileWorker) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "nested too deeply" in reason_of(worker, len, nested)
    while nested:  # or its destruction is a recursion, too
        nested = nested.pop()


def test_what_jobs_print_and_read_is_not_the_channel(
    worker: CompileWorker, jobs: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert worker.run(jobs.speak) == ""
    assert worker.run(abs, -3) == 3
    assert capfd.readouterr() == ("", "")


def test_it_imports_nothing_heavy(jobs: Any) -> None:
    worker = CompileWorker(modules=["specrt.grammars.schema_check"])
    loaded = worker.run(jobs.modules)
    worker.close()
    assert "specrt.grammars.schema_check" in loaded
    assert not {"torch", "transformers", "fastapi"} & set(loaded)
    bare = CompileWorker()
    assert "jsonschema" not in bare.run(jobs.modules, deadline_s=10)
    bare.close()


def test_a_module_that_is_missing_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    worker = CompileWorker(modules=["no_such_module"])
    for _ in range(2):
        assert "no_such_module" in reason_of(worker, abs, -3)
    worker.close()


def test_threads_take_turns(worker: CompileWorker) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: worker.run(divmod, n, 7), range(200)))
    assert found == [divmod(n, 7) for n in range(200)]


def test_waiting_does_not_count_but_is_bounded(jobs: Any) -> None:
    worker = CompileWorker(deadline_s=5, queue_s=1.0)
    worker.run(os.getpid)
    with ThreadPoolExecutor(6) as pool:
        jobs_ = [pool.submit(worker.run, time.sleep, 0.35) for _ in range(6)]
        errors = [job.exception() for job in jobs_]
    reasons = [error.reason for error in errors if isinstance(error, CompileError)]
    assert 2 <= errors.count(None) <= 4, "one begins at 0 s, the last that may at 1 s"
    assert set(reasons) == {"waited longer than 1 s for its turn"}
    assert worker.run(abs, -3) == 3
    worker.close()


def test_threads_and_broken_jobs_do_not_mix(worker: CompileWorker) -> None:
    def ask(number: int) -> object:
        if number % 5:
            return worker.run(divmod, number, 7)
        with pytest.raises(CompileError):
            worker.run(os._exit, 1)
        return divmod(number, 7)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(40))) == [divmod(number, 7) for number in range(40)]


def test_many_respawns_leave_nothing_behind() -> None:
    worker = CompileWorker()
    worker.run(os.getpid)
    num_descriptors = len(os.listdir("/proc/self/fd"))
    pids = []
    for _ in range(50):
        pids.append(worker.run(os.getpid))
        assert reason_of(worker, os._exit, 1) == "crashed"
    assert len(set(pids)) == 50
    assert len(os.listdir("/proc/self/fd")) == num_descriptors
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "zombies"
    worker.close()


def test_close_ends_the_child_and_the_job(worker: CompileWorker) -> None:
    pid = worker.run(os.getpid)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(worker.run, time.sleep, 20, deadline_s=30)
        time.sleep(0.2)
        start = time.monotonic()
        worker.close()
        assert time.monotonic() - start < SLACK_S
        with pytest.raises(CompileError, match="closed"):
            job.result()
    assert not Path(f"/proc/{pid}").exists()
    assert "closed" in reason_of(worker, abs, -3)
    worker.warm()
    assert "closed" in reason_of(worker, abs, -3)
    worker.close()


def test_a_forgotten_worker_ends_its_child(jobs: Any) -> None:
    worker = CompileWorker()
    pid = worker.run(os.getpid)
    del worker
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_warm_starts_the_child(worker: CompileWorker) -> None:
    worker.warm()
    worker.warm()
    child = worker._child
    assert child is not None
    assert worker.run(os.getpid) == child.process.pid


def test_an_interrupt_at_the_terminal_is_the_parents_business(
    worker: CompileWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = worker.run(os.getpid)
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    assert worker.run(os.getpid) == pid
    assert capfd.readouterr().err == ""


PARENT = """
import os, re, sys, threading
from specrt.grammars.compile_worker import CompileWorker

worker = CompileWorker(deadline_s=1.0)
print(worker.run(os.getpid), flush=True)
if sys.argv[1] == "busy":
    threading.Thread(target=worker.run, args=(re.search, "(a+)+$", "a" * 50 + "b")).start()
    print("busy", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_killed_parent_takes_the_child_along(state: str) -> None:
    command = [sys.executable, "-c", PARENT, state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if state == "busy":
            parent.stdout.readline()
            time.sleep(0.2)
        assert is_running(pid)
        parent.kill()
        # In the middle of a loop in C only the kernel's alarm can end it: at 2 s.
        wait_until(lambda: not is_running(pid), 2 + SLACK_S)


def test_a_parent_that_ends_leaves_no_child_and_no_noise() -> None:
    command = [sys.executable, "-W", "error", "-c", PARENT, "idle"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == ""
    assert not is_running(int(done.stdout))


def test_validation_runs_in_it(worker: CompileWorker) -> None:
    schema = '{"properties": {"a": {"pattern": "^(a+)+$"}}}'
    found = worker.run(validate_instance, schema, {"a": "b"}, deadline_s=5)
    assert [type(violation) for violation in found] == [Violation]
    assert found == validate_instance(schema, {"a": "b"})
    reason = reason_of(worker, validate_instance, schema, {"a": "a" * 50 + "b"})
    assert reason == "took longer than 1 s"
