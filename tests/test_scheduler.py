"""The scheduler alone: a fake worker that answers plans, no tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.cache.manager import CacheManager
from specrt.config import SchedulerConfig
from specrt.errors import ContextLengthError, RequestError
from specrt.plan import RequestResult, StepPlan, StepResult
from specrt.request import EngineRequest, SamplingParams
from specrt.scheduler import Scheduler


def request(
    request_id: str, prompt: list[int], max_tokens: int = 4, namespace: str = ""
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens),
        namespace=namespace,
    )


class Rig:
    """A scheduler over a checked cache, and a worker that 'draws' a running count."""

    def __init__(self, num_slots: int = 256, max_tree_rows: int = 4, **config: object) -> None:
        self.cache = CacheManager(num_slots, check=True)
        self.scheduler = Scheduler(
            SchedulerConfig(**config),  # type: ignore[arg-type]
            self.cache,
            context_length=200,
            max_tree_rows=max_tree_rows,
        )
        self.finished: dict[str, list[int]] = {}
        self.open: set[str] = set()
        self.num_rows: dict[str, int] = {}
        self.accept = 0  # tree rows that the fake worker accepts

    def step(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is None:
            return None
        for request_id in plan.closed:
            self.open.remove(request_id)
        for opened in plan.opened:
            assert opened.request_id not in self.open
            self.open.add(opened.request_id)
        results = []
        all_slots = np.concatenate(
            [p.slots[p.num_computed_tokens :] for p in plan.requests] or [[]]
        )
        assert len(set(all_slots.tolist())) == len(all_slots), "two rows write one slot"
        for p in plan.requests:
            assert p.request_id in self.open
            entry = self.scheduler.get(p.request_id)
            assert entry is not None
            assert len(p.slots) == p.num_computed_tokens + p.num_chain_rows + p.max_tree_rows
            self.num_rows[p.request_id] = self.num_rows.get(p.request_id, 0) + p.num_chain_rows
            new: list[int] = []
            accepted = 0
            if p.is_decision:
                accepted = min(self.accept, p.max_tree_rows)
                new = [1000 + entry.num_output_tokens + i for i in range(accepted + 1)]
            results.append(
                RequestResult(
                    request_id=p.request_id,
                    num_computed_tokens=p.num_computed_tokens + p.num_chain_rows + accepted,
                    new_token_ids=new,
                )
            )
        for entry, _ in self.scheduler.commit(
            StepResult(step_id=plan.step_id, requests=tuple(results))
        ):
            if entry.max_new_tokens == 0:
                self.finished[entry.request.request_id] = list(entry.token_ids)
                self.scheduler.finish(entry)
        self.cache.check_integrity()
        return plan

    def run(self, max_steps: int = 500) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            assert self.step() is not None, "work is left but nothing runs"
        raise AssertionError("requests did not finish")


def test_prompt_is_computed_in_chunks_and_the_last_one_decides() -> None:
    rig = Rig(chunked_prefill_size=8)
    rig.scheduler.add(request("a", list(range(20))))
    rows = []
    while rig.scheduler.has_work:
        plan = rig.step()
        assert plan is not None
        rows.append((plan.requests[0].num_chain_rows, plan.requests[0].is_decision))
    assert rows == [(8, False), (8, False), (4, True), (1, True), (1, True), (1, True)]


def test_decoding_requests_go_before_a_long_prefill() -> None:
    rig = Rig(chunked_prefill_size=8)
    rig.scheduler.add(request("a", list(range(4)), max_tokens=8))
    rig.step()
    rig.scheduler.add(request("b", list(range(100, 140))))
    plan = rig.step()
    assert plan is not None
    assert [(p.request_id, p.num_chain_rows) for p in plan.requests] == [("a", 1), ("b", 7)]


def test_a_shared_uncached_prefix_is_computed_once() -> None:
    rig = Rig(chunked_prefill_size=16)
    prompt = list(range(40))
    for i in range(4):
        rig.scheduler.add(request(f"r{i}", prompt))
    rig.run()
    # The first computes 40 rows; the others only the last prompt token; 3 more rows a decode.
    assert rig.num_rows["r0"] == 40 + 3
    assert [rig.num_rows[f"r{i}"] for i in (1, 2, 3)] == [1 + 3] * 3


def test_namespaces_share_nothing() -> None:
    rig = Rig()
    prompt = list(range(40))
    for name in ("x", "y"):
        rig.scheduler.add(request(name, prompt, namespace=name))
    rig.run()
    assert rig.num_rows == {"x": 43, "y": 43}


def test_longest_prefix_goes_first_but_nobody_waits_for_ever() -> None:
    rig = Rig(max_running_requests=1, max_wait_admissions=3)
    rig.scheduler.add(request("warm", list(range(50))))
    rig.run()
    rig.scheduler.add(request("cold", list(range(100, 150))))
    order = []
    for i in range(8):
        rig.scheduler.add(request(f"hot{i}", list(range(50)) + [i + 60]))
    while rig.scheduler.has_work:
        plan = rig.step()
        assert plan is not None
        order += [o.request_id for o in plan.opened]
    assert order.index("cold") == 3


def test_fcfs_keeps_the_order_of_arrival() -> None:
    rig = Rig(max_running_requests=1, schedule_policy="fcfs")
    rig.scheduler.add(request("warm", list(range(50))))
    rig.run()
    for name, prompt in (("a", [7, 8, 9]), ("b", list(range(50)))):
        rig.scheduler.add(request(name, prompt))
    rig.run()
    assert list(rig.finished) == ["warm", "a", "b"]


def test_too_long_for_the_context_or_the_pool_is_refused_with_the_numbers() -> None:
    rig = Rig(num_slots=64)
    with pytest.raises(ContextLengthError, match=r"190 tokens and max_tokens is 20.*210.*200"):
        rig.scheduler.add(request("a", [1] * 190, max_tokens=20))
    with pytest.raises(ContextLengthError, match=r"80 tokens.*84.*holds 64"):
        rig.scheduler.add(request("b", [1] * 80))
    assert not rig.scheduler.has_work


def test_one_id_twice_is_refused() -> None:
    rig = Rig()
    rig.scheduler.add(request("a", [1, 2]))
    with pytest.raises(RequestError, match="already in flight"):
        rig.scheduler.add(request("a", [1, 2]))


def test_retraction_when_the_pool_is_full_and_everyone_finishes() -> None:
    rig = Rig(num_slots=64)
    for i in range(4):
        rig.scheduler.add(request(f"r{i}", [100 * i + k for k in range(12)], max_tokens=30))
    rig.run()
    assert rig.scheduler.num_retractions > 0
    for i in range(4):
        prompt = [100 * i + k for k in range(12)]
        assert rig.finished[f"r{i}"] == prompt + [1000 + k for k in range(30)]


def test_a_request_that_just_fits_alone_runs() -> None:
    rig = Rig(num_slots=32)
    rig.scheduler.add(request("a", list(range(20)), max_tokens=13))
    rig.scheduler.add(request("b", list(range(50, 70)), max_tokens=13))
    rig.run()
    assert set(rig.finished) == {"a", "b"}


def test_abort_keeps_the_computed_prefix_and_frees_the_rest() -> None:
    rig = Rig(chunked_prefill_size=8)
    entry = rig.scheduler.add(request("a", list(range(20))))
    rig.step()
    rig.scheduler.finish(entry)
    stats = rig.cache.stats()
    assert (stats.num_cached, stats.num_held) == (8, 0)
    assert rig.scheduler.schedule().closed == ("a",)  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),  # family: requests of a family share a prefix
            st.integers(1, 20),  # own suffix length
            st.integers(1, 25),  # max_tokens
            st.integers(0, 3),  # steps before the next one arrives
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(64, 128),
    st.integers(1, 16),
    st.integers(0, 3),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_every_request_ends_with_its_own_tokens(
    arrivals: list[tuple[int, int, int, int]],
    num_slots: int,
    chunk: int,
    accept: int,
    aborted: list[int],
) -> None:
    rig = Rig(num_slots=num_slots, chunked_prefill_size=chunk)
    rig.accept = accept
    prompts = {}
    for i, (family, suffix, max_tokens, steps) in enumerate(arrivals):
        prompt = [family * 50 + k for k in range(15)] + [200 + 40 * i + k for k in range(suffix)]
        prompts[f"r{i}"] = (prompt, max_tokens)
        rig.scheduler.add(request(f"r{i}", prompt, max_tokens))
        for _ in range(steps):
            rig.step()
        if i in aborted:
            entry = rig.scheduler.get(f"r{i}")
            if entry is not None:
                rig.scheduler.finish(entry)
                del prompts[f"r{i}"]
    rig.run()
    rig.step()  # tells the worker to close the last ones
    assert not rig.open
    for request_id, (prompt, max_tokens) in prompts.items():
        assert rig.finished[request_id] == prompt + [1000 + k for k in range(max_tokens)]
    stats = rig.cache.stats()
    assert stats.num_held == 0
    assert stats.num_free + stats.num_cached == stats.num_total
