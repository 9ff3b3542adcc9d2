"""KV memory: slots, radix tree, per-sequence page tables."""
