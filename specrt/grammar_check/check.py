"""`specrt grammar check`: a file of labelled instances against the grammars of its schemas.

Every row runs in a worker process with a deadline; one that is stuck is killed and counted.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict

from specrt.bench.environment import describe, environment
from specrt.bench.report import write_json
from specrt.grammar_check.finished_rows import FinishedRows, engine_fingerprint, row_key
from specrt.grammar_check.options import CheckOptions
from specrt.grammar_check.report import document, render
from specrt.grammar_check.row_check import (
    BASELINE,
    SPECRT,
    CheckSettings,
    RowResult,
    check_row,
    get_ready,
)
from specrt.grammar_check.rows import SchemaRow, read_rows
from specrt.grammars.compile_worker import CompileError, CompileWorker
from specrt.progress import Progress

ROW_S = 10.0  # seconds of wall-clock time for one row and one engine
_READY_S = 120.0  # to read the vocabulary; 1 s for 49,152 tokens
_MEMORY_BYTES = 8 << 30  # address space: threads of the libraries reserve much and use little
_MODULES = ("specrt.grammar_check.row_check",)


def run(options: CheckOptions) -> int:
    """Check, print the table, write the JSON.

    Returns:
        0, or 1 when an invalid instance is accepted (with --lenient: accepted and not flagged).

    Raises:
        ConfigError: a file or the model cannot be used.
    """
    assert options.schemas is not None
    rows = read_rows(options.schemas, options.limit)
    engines = [SPECRT, *([BASELINE] if options.baseline else [])]
    results = check_rows(
        rows,
        engines,
        CheckSettings(
            model_path=options.model_path,
            backend=options.grammar_backend,
            strict=not options.lenient,
        ),
        processes=options.processes,
        work=options.work,
    )
    env = environment()
    print(describe(env))
    print(render(results, is_lenient=options.lenient))
    if options.json is not None:
        found = document(results, is_lenient=options.lenient)
        write_json(options.json, {"environment": env, "options": asdict(options), **found})
    misses = (miss for result in results[SPECRT] for miss in result.invalid_accepted)
    return 1 if any(not (options.lenient and miss.is_flagged) for miss in misses) else 0


def check_rows(
    rows: list[SchemaRow],
    engines: list[str],
    settings: CheckSettings,
    *,
    processes: int,
    work: str | None,
    row_s: float = ROW_S,
) -> dict[str, list[RowResult]]:
    """The result of every row for every engine, in the order of the rows.

    Args:
        rows: of one file.
        engines: SPECRT and BASELINE.
        settings: of the run.
        processes: rows at once.
        work: folder of finished rows; None = none are kept.
        row_s: deadline of a row, in seconds.

    Raises:
        ConfigError: the model or the folder cannot be used.
    """
    fingerprints = {engine: engine_fingerprint(engine) for engine in engines}
    results: dict[str, dict[int, RowResult]] = {engine: {} for engine in engines}
    finished = FinishedRows(work)
    pending: list[tuple[int, str, str]] = []
    for (index, row), engine in itertools.product(enumerate(rows), engines):
        key = row_key(row, engine, settings, fingerprints[engine])
        known = finished.get(key)
        if known is None:
            pending.append((index, engine, key))
        else:
            results[engine][index] = known
    done = len(rows) * len(engines) - len(pending)
    progress = Progress("schemas", len(rows) * len(engines), done)
    workers = [
        CompileWorker(memory_bytes=_MEMORY_BYTES, modules=_MODULES)
        for _ in range(min(processes, len(pending)))
    ]
    try:
        for index, engine, key, result in _run_all(workers, rows, pending, settings, row_s):
            results[engine][index] = result
            finished.put(key, result)
            done += 1
            progress.update(done)
    finally:
        for worker in workers:
            worker.close()
        finished.close()
    progress.close()
    return {engine: [by_row[i] for i in range(len(rows))] for engine, by_row in results.items()}


def _run_all(
    workers: list[CompileWorker],
    rows: list[SchemaRow],
    pending: list[tuple[int, str, str]],
    settings: CheckSettings,
    row_s: float,
) -> Iterator[tuple[int, str, str, RowResult]]:
    """(index, engine, key, result) of every pending job as it finishes."""
    if not workers:
        return
    idle: queue.SimpleQueue[CompileWorker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def judge(index: int, engine: str) -> RowResult:
        worker = idle.get()
        try:
            return _judge(worker, rows[index], engine, settings, row_s)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        jobs: dict[Future[RowResult], tuple[int, str, str]] = {}
        try:
            for index, engine, key in pending:
                jobs[pool.submit(judge, index, engine)] = (index, engine, key)
            for job in as_completed(jobs):
                yield (*jobs[job], job.result())
        except BaseException:
            for job in jobs:
                job.cancel()
            for worker in workers:
                worker.close()
            raise


def _judge(
    worker: CompileWorker, row: SchemaRow, engine: str, settings: CheckSettings, row_s: float
) -> RowResult:
    # A new process has to read the vocabulary first; in one that has, this takes 0.1 ms.
    worker.run(get_ready, settings, deadline_s=_READY_S)
    try:
        return worker.run(check_row, row, engine, settings, deadline_s=row_s)
    except CompileError as error:
        reason = f"it {error.reason}"
        return RowResult(row_id=row.row_id, source=row.source, outcome="unfinished", reason=reason)
