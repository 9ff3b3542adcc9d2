"""/get_server_info in SGLang's keys."""

from __future__ import annotations

from specrt import __version__
from specrt.config import EngineConfig, ServerConfig, flatten
from specrt.server.metrics import Stats, acceptance_length, hit_rate, number


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
