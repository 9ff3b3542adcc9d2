"""Regular languages over bytes: automata from outlines-core, token masks, device tables."""
