"""The HTTP server: OpenAI wire formats in front of the engine process."""
