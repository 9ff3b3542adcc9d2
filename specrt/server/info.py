"""What the server tells about itself, in SGLang's keys."""

from __future__ import annotations

from specrt import __version__
from specrt.config import EngineConfig, ServerConfig, flatten
from specrt.server.metrics import Stats, acceptance_length, hit_rate, number
from specrt.server.served_model import ServedModel


def server_info(
    config: ServerConfig, engine_config: EngineConfig, model_name: str, stats: Stats
) -> dict[str, object]:
    """All flags, the version, and the engine's state as `internal_states[0]`.

    Args:
        config: of the server; its API key is not shown.
        engine_config: of the engine.
        model_name: as served.
        stats: the engine's statistics.
    """
    num_slots = int(number(stats, "num_total_slots"))
    length = round(acceptance_length(stats), 4)
    return {
        **flatten(config),
        **flatten(engine_config),
        "api_key": None if config.api_key is None else "***",
        "served_model_name": model_name,
        "context_length": int(number(stats, "context_length")) or None,
        "version": __version__,
        "max_total_num_tokens": num_slots,
        "tree_cache_hit_rate": round(hit_rate(stats), 4),
        "average_acceptance_length": length,
        "internal_states": [
            {
                **stats,
                "last_gen_throughput": number(stats, "last_gen_throughput"),
                "avg_spec_accept_length": length,
                "tree_cache_hit_rate": round(hit_rate(stats), 4),
                "memory_usage": {
                    "token_capacity": num_slots,
                    "kvcache": round(number(stats, "kv_bytes") / 2**30, 3),
                    "weight": round(number(stats, "weight_bytes") / 2**30, 3),
                },
                "effective_max_running_requests_per_dp": (
                    engine_config.scheduler.max_running_requests
                ),
            }
        ],
    }


def model_info(engine_config: EngineConfig, model: ServedModel) -> dict[str, object]:
    """What is served, in SGLang's keys.

    Args:
        engine_config: of the engine.
        model: what is served.
    """
    return {
        "model_path": engine_config.model.model_path or model.name,
        "tokenizer_path": engine_config.model.model_path or model.name,
        "served_model_name": model.name,
        "is_generation": True,
        "max_context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "tool_call_parser": model.tool_format.name,
    }


def load_info(stats: Stats) -> list[dict[str, object]]:
    """How busy the engine is, in SGLang's keys; one entry, there is one engine."""
    running, waiting = (int(number(stats, name)) for name in ("num_running", "num_waiting"))
    held = int(number(stats, "num_held_slots"))
    return [
        {
            "dp_rank": 0,
            "num_reqs": running + waiting,
            "num_waiting_reqs": waiting,
            "num_tokens": held,
        }
    ]
