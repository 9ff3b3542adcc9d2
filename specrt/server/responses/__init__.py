"""/v1/responses: OpenAI's item-based API, translated to the path of chat completions."""
