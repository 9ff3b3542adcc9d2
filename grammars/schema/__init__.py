"""JSON Schema, read once: parsed, normalised into rules that every engine can write, or refused."""
