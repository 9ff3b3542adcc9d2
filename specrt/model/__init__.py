"""The target model: one lean Llama-family decoder and its weights."""
